"""The training loop on resident data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.unit.bc_demo.episodes import CFG, Bench, source_of

pytestmark = pytest.mark.franka


@pytest.mark.spec("APP-03")
def test_every_selection_is_completed_and_the_source_agrees(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.training.run()
    trajectories = bench.training.exposure.trajectories()
    assert trajectories.totals == {"delivered": 96, "completed": 96, "failed": 0, "in_flight": 0}
    ledger = bench.source.get_sampling_budget_snapshot()
    assert ledger["total_delivered_chunks"] == 96
    assert {one.episode_id: one.completed for one in trajectories.episodes} == {
        row["episode_id"]: row["delivered"] for row in ledger["rows"]
    }
    assert bench.evaluated == [5, 12]
    assert len(bench.losses) == 12


def test_normalisation_is_frozen_from_the_first_batches_which_are_trained_on_then(tmp_path: Path) -> None:
    bench, twin = Bench(tmp_path), Bench(tmp_path)
    first = torch.cat([twin.training.draw() for _ in range(3)])  # type: ignore[arg-type]
    bench.training.run()
    expected = first["obs"][first["valid"]].mean(0)  # type: ignore[index]
    assert torch.equal(bench.learner.policy.get_buffer("observation_mean"), expected)
    state = bench.learner.policy.get_buffer("action_std").clone()
    bench.training.cfg = replace(bench.training.cfg, updates=20)
    bench.source = source_of(seed=1, scale=100.0)
    bench.training.run()
    assert torch.equal(bench.learner.policy.get_buffer("action_std"), state)
    assert torch.equal(bench.learner.policy.get_buffer("observation_mean"), expected)


def test_the_learners_time_is_in_named_states(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.training.run()
    seen = bench.training.meter.snapshot()
    assert seen.counts["steps"] == 12
    assert seen.counts["completed"] == seen.counts["delivered"] == 96
    for state in ("fetch", "compute", "eval", "checkpoint"):
        assert seen.states_ns[state] > 0
    assert seen.states_ns["wait"] == 0


@pytest.mark.spec("APP-03")
def test_an_update_that_fails_is_counted_as_failed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    draw, drawn = bench.training.draw, []

    def poisoned() -> object:
        batch = draw()
        drawn.append(batch)
        if len(drawn) == 5:
            batch["actions"][batch["loss_mask"]] = float("nan")
        return batch

    bench.training.draw = poisoned  # type: ignore[assignment]
    with pytest.raises(FloatingPointError, match="the loss of update 5 is nan"):
        bench.training.run()
    assert bench.training.exposure.trajectories().totals == {
        "delivered": 40,
        "completed": 32,
        "failed": 8,
        "in_flight": 0,
    }
    assert bench.training.meter.snapshot().counts["failed_updates"] == 8


def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    whole = Bench(tmp_path)
    whole.training.run()
    rest = Bench(tmp_path, cfg=replace(CFG, seed=99))
    rest.cfg = CFG
    rest.resume(whole.path(6))
    assert rest.training.updates == 6
    rest.training.run()
    assert rest.losses == whole.losses[6:]
    torch.testing.assert_close(rest.learner.state_dict(), whole.learner.state_dict(), rtol=0, atol=0)
    assert rest.source.get_sampling_budget_snapshot() == whole.source.get_sampling_budget_snapshot()
    assert torch.equal(torch.rand(3, generator=rest.generator), torch.rand(3, generator=whole.generator))
