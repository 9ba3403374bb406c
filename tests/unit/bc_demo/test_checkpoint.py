"""Checkpoints to resume from: what they hold, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.ods.simple_bc_demo.checkpoint import load_training, restore, settings_of
from odstream.envs.franka.policy import load_policy, save_policy
from tests.unit.bc_demo.episodes import CFG, Bench, source_of

pytestmark = pytest.mark.franka


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of six updates."""
    bench = Bench(tmp_path, cfg=replace(CFG, loop=replace(CFG.loop, updates=6)))
    bench.training.run()
    return bench.path(6)


def test_the_generators_go_on_where_they_were(checkpoint: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    np.random.seed(7)
    torch.manual_seed(7)
    bench.save(0)
    expected = (np.random.random(3).tolist(), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())
    np.random.seed(8)
    torch.manual_seed(8)
    restore(load_training(bench.path(0)), bench.learner, source_of(), torch.Generator())
    assert (np.random.random(3).tolist(), np.random.standard_normal(3).tolist(), torch.rand(3).tolist()) == expected


def test_it_is_a_policys_checkpoint_too(checkpoint: Path) -> None:
    policy, training = load_policy(checkpoint), load_training(checkpoint)
    assert policy.cfg == CFG.policy
    torch.testing.assert_close(policy.state_dict(), dict(training["learner"]["policy"]), rtol=0, atol=0)


def test_it_brings_the_settings_for_a_new_folder_and_the_same_data(checkpoint: Path) -> None:
    cfg = settings_of(checkpoint)
    assert cfg.output is None
    assert cfg.resume == checkpoint
    assert cfg.dataset == checkpoint.parent / "dataset"
    expected = replace(CFG, loop=replace(CFG.loop, updates=6), resume=checkpoint, dataset=cfg.dataset)
    assert cfg == expected


def test_a_policy_alone_cannot_be_resumed(checkpoint: Path, tmp_path: Path) -> None:
    save_policy(load_policy(checkpoint), tmp_path / "policy.pt")
    with pytest.raises(ValueError, match=r"holds a policy alone; resume from a training\.pt"):
        load_training(tmp_path / "policy.pt")


@pytest.mark.parametrize("field", ["format", "task", "schema", "action_contracts"])
def test_a_checkpoint_that_belongs_elsewhere_is_refused(checkpoint: Path, field: str) -> None:
    torch.save({**torch.load(checkpoint, weights_only=True), field: "another"}, checkpoint)
    with pytest.raises(ValueError, match=f"{field} .?'another'" if field == "format" else f"of another {field}"):
        load_training(checkpoint)


def test_other_data_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path, source=source_of(seed=1))
    with pytest.raises(ValueError, match="source_id"):
        bench.resume(checkpoint)


def test_resident_data_does_not_go_on_live(checkpoint: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    live = object()
    with pytest.raises(ValueError, match="written on live data and the source is resident, or the other way"):
        restore(load_training(checkpoint), bench.learner, live, bench.generator)  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["settings", "updates", "source"])
def test_a_checkpoint_that_misses_something_is_refused_by_name(checkpoint: Path, missing: str) -> None:
    document = torch.load(checkpoint, weights_only=True)
    del document["training"][missing]
    torch.save(document, checkpoint)
    with pytest.raises(ValueError, match=f"it misses {missing}"):
        settings_of(checkpoint)


def test_settings_of_another_version_are_refused(checkpoint: Path) -> None:
    document = torch.load(checkpoint, weights_only=True)
    document["training"]["settings"] = "{}"
    torch.save(document, checkpoint)
    with pytest.raises(ValueError, match="holds settings of another version"):
        settings_of(checkpoint)
