"""What a run may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from examples.ods.simple_bc_demo.arms import Run, engine_cfg
from examples.ods.simple_bc_demo.journal import Journal
from examples.ods.simple_bc_demo.settings import FULL, FULL_EPISODES, SMOKE, LoopCfg, RunCfg, StreamCfg
from odstream.perf import LearnerMeter

pytestmark = pytest.mark.franka


@pytest.mark.parametrize(
    ("mode", "given", "episodes"),
    [("offline-32", None, 32), ("offline-256", None, 256), ("offline-full", None, FULL_EPISODES), ("offline-32", 7, 7)],
)
def test_an_offline_mode_says_how_many_demonstrations(mode: Any, given: int | None, episodes: int) -> None:
    assert RunCfg(mode=mode, episodes=given).offline_episodes == episodes


def test_smoke_is_the_same_in_tiny() -> None:
    assert SMOKE.mode == FULL.mode
    assert SMOKE.learner == FULL.learner
    assert SMOKE.policy == FULL.policy
    assert SMOKE.loop.updates < FULL.loop.updates


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunCfg(seed=-1), "seed must be at least 0, got -1"),
        (lambda: RunCfg(mode="frozen", plan=Path("p")), "plan has no meaning in mode 'frozen'"),
        (lambda: RunCfg(mode="live", episodes=3), "episodes has no meaning in mode 'live', got 3"),
        (lambda: RunCfg(mode="offline-32", episodes=0), "episodes must be at least 1, got 0"),
        (lambda: LoopCfg(updates=8, first_batches=9), "updates must be at least first_batches=9, got 8"),
        (lambda: LoopCfg(checkpoint_every=15), "checkpoint_every must be at least first_batches=16, got 15"),
        (lambda: LoopCfg(data_timeout_s=0.0), "data_timeout_s must be a positive number"),
        (lambda: LoopCfg(evaluate_at=(50, -5)), "evaluate_at must be at least 1, got -5"),
        (lambda: StreamCfg(num_envs=3), "cache_episodes must be a multiple of num_envs=3, got 128"),
        (lambda: StreamCfg(failure_rate=1.5), "failure_rate must be 0 to 1, got 1.5"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def run(resumed_at: int) -> Run:
    return Run(FULL, Path(), Journal(0.0), LearnerMeter(), torch.Generator(), resumed_at)


def test_a_resumed_stream_has_scenes_of_its_own_and_the_first_one_those_of_the_seed() -> None:
    assert run(0).stream_seed == FULL.seed
    seeds = {run(updates).stream_seed for updates in (0, 500, 1000)}
    assert len(seeds) == 3
    assert run(500).stream_seed == run(500).stream_seed
    assert engine_cfg(FULL, seed=run(500).stream_seed).gym_config["seed"] == run(500).stream_seed
