"""An expert may say which sub-task each of its actions belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from odstream.errors import EnvironmentContractError
from odstream.producers.base import ProducerContext, Segment
from odstream.producers.environment import EnvironmentProducerFactory
from odstream.producers.expert_segments import SegmentTrace
from tests.fakes.environments import CountingEnv, CountingVectorEnv, plus_hundred
from tests.fakes.staging import Recorded, record


class StagedExpert:
    """Reaches during the first two steps of an episode, then grasps."""

    segment_names = ("reach", "grasp")
    segment_instructions = ("reach out", None)

    def __init__(self) -> None:
        self.segments: Any = 0

    def __call__(self, observation: Any) -> np.ndarray:
        self.segments = (np.asarray(observation)[..., 0] >= 2).astype(np.int64)
        return plus_hundred(observation)


class LostExpert(StagedExpert):
    """Names a sub-task that it does not have."""

    def __call__(self, observation: Any) -> np.ndarray:
        action = super().__call__(observation)
        self.segments = 7
        return action


def recorded(expert: Any, factory: Any = CountingEnv, count: int = 4, **config: Any) -> Recorded:
    gym_config = {"factory": factory, "expert": expert, "seed": 0, **config}
    made = EnvironmentProducerFactory(gym_config)(ProducerContext(max_episode_steps=20, max_generation_attempts=1))
    try:
        return record(made, count)
    finally:
        made.close()


@pytest.mark.parametrize(
    ("factory", "num_envs", "vectorization"),
    [(CountingEnv, 2, "sync"), (CountingEnv, 2, "async"), (CountingVectorEnv, 3, "sync")],
)
def test_every_row_records_its_own_segments(factory: Any, num_envs: int, vectorization: str) -> None:
    episodes = recorded(
        StagedExpert, factory, num_envs=num_envs, vectorization=vectorization, kwargs={"lengths": (3, 6, 2)}
    ).episodes
    lengths = {episode.length for episode in episodes}
    assert {3, 6} <= lengths
    for episode in episodes:
        grasp = (Segment(start=2, end=episode.length, name="grasp"),) if episode.length > 2 else ()
        assert episode.segments == (Segment(start=0, end=2, name="reach", instruction="reach out"), *grasp)


def test_an_expert_without_names_records_no_segments() -> None:
    assert {episode.segments for episode in recorded(plus_hundred).episodes} == {()}


def test_a_segment_without_a_name_is_refused() -> None:
    with pytest.raises(EnvironmentContractError, match="expert.segments must be indices into its 2 segment_names"):
        recorded(LostExpert)


def test_names_and_instructions_must_match() -> None:
    expert = StagedExpert()
    expert.segment_instructions = ("reach out",)  # type: ignore[assignment]
    with pytest.raises(EnvironmentContractError, match="2 segment_names and 1 segment_instructions"):
        SegmentTrace(expert, 1, 5)


def test_a_sub_task_that_comes_back_is_another_segment() -> None:
    expert = StagedExpert()
    trace = SegmentTrace(expert, 1, 5)
    for frame, segment in enumerate([0, 1, 1, 0]):
        expert.segments = segment
        trace.note(np.array([frame]))
    assert [(segment.start, segment.end, segment.name) for segment in trace.cut(0, 4)] == [
        (0, 1, "reach"),
        (1, 3, "grasp"),
        (3, 4, "reach"),
    ]
