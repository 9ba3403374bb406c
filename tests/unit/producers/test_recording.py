"""Scenes, seeds and attempts."""

from __future__ import annotations

import numpy as np
import pytest

from odstream.errors import DemonstrationError
from odstream.producers.base import FieldSpec, RolloutSpec
from odstream.producers.recording import Recorder, Scenes, scene_seed
from tests.fakes.staging import MemoryStaging


def test_a_seed_depends_on_the_scene_and_the_attempt_and_nothing_else() -> None:
    seeds = {scene_seed(seed, scene, attempt) for seed in range(3) for scene in range(50) for attempt in (1, 2, 3)}
    assert len(seeds) == 3 * 50 * 3
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert scene_seed(0, 0, 1) == scene_seed(0, 0, 1) == 3581274545


def test_scenes_are_numbered_for_the_life_of_a_producer() -> None:
    scenes = Scenes(0, 3)
    scenes.open(2)
    assert [scenes.begin().scene, scenes.begin().scene] == [0, 1]
    assert scenes.exhausted
    scenes.open(1)
    assert (scenes.begin().scene, scenes.exhausted) == (2, True)


def test_a_retry_is_the_same_scene_number_with_another_seed() -> None:
    scenes = Scenes(7, 3)
    scenes.open(1)
    first = scenes.begin()
    second = scenes.again(first, "slipped")
    assert (second.scene, second.number) == (first.scene, 2)
    assert second.seed == scene_seed(7, 0, 2) != first.seed


@pytest.mark.spec("ENG-14")
def test_the_last_failure_and_the_number_of_attempts_are_in_the_error() -> None:
    scenes = Scenes(0, 2)
    scenes.open(1)
    second = scenes.again(scenes.begin(), "slipped")
    with pytest.raises(DemonstrationError, match=r"scene 0 was not accepted in 2 attempts .*=2.*because dropped"):
        scenes.again(second, "dropped")


def test_without_a_seed_every_run_is_another() -> None:
    first, second = Scenes(None, 3), Scenes(None, 3)
    first.open(1)
    second.open(1)
    assert first.begin().seed != second.begin().seed


def test_storage_of_another_shape_is_refused_by_field() -> None:
    def spec(width: int) -> RolloutSpec:
        fields = {("obs",): FieldSpec(shape=(width,), dtype=np.dtype(np.float32))}
        return RolloutSpec(num_envs=1, fields=fields, state_dim=width, action_dim=1)

    memory = MemoryStaging(spec(3), 10)
    for wanted, limit in ((spec(4), 10), (spec(3), 11)):
        with pytest.raises(ValueError, match="staging array obs must be"):
            Recorder(wanted, memory.staging, max_episode_steps=limit, accept=None, instruction=None)
