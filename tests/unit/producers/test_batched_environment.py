"""Natively batched environments, in all three of Gymnasium's autoreset modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from odstream.errors import DemonstrationError, EnvironmentContractError
from odstream.producers.base import Episode, ProducerContext, Segment
from odstream.producers.environment import EnvironmentProducerFactory, GymEnvironmentProducer
from tests.fakes.environments import (
    RESET_REWARD,
    CountingEnv,
    CountingVectorEnv,
    NestedEnv,
    SeededEnv,
    SegmentVectorEnv,
    plus_hundred,
)
from tests.fakes.staging import MemoryStaging, Recorded, column, record

OBS, ACTIONS, REWARDS = ("obs",), ("actions",), ("rewards",)
MODES = ["Disabled", "NextStep", "SameStep"]
ALL_MODES = pytest.mark.parametrize("autoreset", MODES)


def producer(
    factory: Any = CountingVectorEnv, *, num_envs: int = 2, attempts: int = 3, limit: int = 20, **config: Any
) -> GymEnvironmentProducer:
    config = {"factory": factory, "num_envs": num_envs, "expert": plus_hundred, "seed": 0, **config}
    context = ProducerContext(max_episode_steps=limit, max_generation_attempts=attempts)
    return EnvironmentProducerFactory(config)(context)


def recorded(factory: Any = CountingVectorEnv, count: int = 4, *, limit: int = 20, **config: Any) -> Recorded:
    made = producer(factory, limit=limit, **config)
    result = record(made, count, max_episode_steps=limit)
    made.close()
    return result


def environment_of(made: GymEnvironmentProducer) -> Any:
    return made._stage._environment  # type: ignore[attr-defined]


def assert_whole_and_genuine(result: Recorded) -> None:
    """Every episode counts from 0 without a hole and pairs each observation with the action chosen on it."""
    for episode, frames in zip(result.episodes, result.frames, strict=True):
        steps = list(range(episode.length))
        assert column(frames, OBS) == steps
        assert column(frames, ACTIONS) == [100 + t for t in steps]
        assert column(frames, REWARDS) == steps
        assert len(set(column(frames, OBS, 1))) <= 1  # one attempt
        assert len(set(column(frames, OBS, 2))) <= 1  # one row


# ---------------------------------------------------------------- frames


@ALL_MODES
@pytest.mark.parametrize("ends", [("terminated",), ("truncated",), ("terminated", "truncated")])
def test_the_reset_step_is_never_a_frame(autoreset: str, ends: Sequence[str]) -> None:
    """Field cases W06, W09."""
    result = recorded(count=6, kwargs={"autoreset": autoreset, "lengths": (3, 5), "ends": ends})
    assert_whole_and_genuine(result)
    by_row = {row: set() for row in (0.0, 1.0)}  # type: dict[float, set[int]]
    for episode, frames in result.accepted:
        by_row[column(frames, OBS, 2)[0]].add(episode.length)
        assert RESET_REWARD not in column(frames, REWARDS)
    assert by_row == {0.0: {3}, 1.0: {5}}


@ALL_MODES
@pytest.mark.spec("ENG-03", "ENG-10")
def test_rows_succeed_fail_and_finish_at_different_times(autoreset: str) -> None:
    """Field case W13: odd attempts fail, and only even ones are accepted."""
    kwargs = {"autoreset": autoreset, "lengths": (3, 5, 4), "success": "even"}
    result = recorded(count=5, num_envs=3, success="success", kwargs=kwargs)
    assert_whole_and_genuine(result)
    assert len(result.accepted) == len(result.failures) == 5
    assert {column(frames, OBS, 1)[0] % 2 for _, frames in result.accepted} == {0}
    assert sorted(episode.scene for episode, _ in result.accepted) == [0, 1, 2, 3, 4]


@ALL_MODES
def test_success_before_the_end_ends_the_episode_there(autoreset: str) -> None:
    result = recorded(success="success", kwargs={"autoreset": autoreset, "success_step": 1})
    assert [(episode.accepted, episode.length) for episode in result.episodes] == [(True, 2)] * 4
    assert_whole_and_genuine(result)


@ALL_MODES
def test_an_attempt_that_does_not_fit_into_a_row_fails(autoreset: str) -> None:
    made = producer(limit=4, attempts=2, kwargs={"autoreset": autoreset, "lengths": (3, 5)})
    seen = Recorded()
    with pytest.raises(DemonstrationError, match="2 attempts.*longer than max_episode_steps=4"):
        record(made, 4, max_episode_steps=4, into=seen)
    assert_whole_and_genuine(seen)
    assert {episode.length for episode, _ in seen.accepted} == {3}
    assert set(seen.failures) == {"the episode is longer than max_episode_steps=4"}
    made.close()


@pytest.mark.parametrize("autoreset", ["NextStep", "SameStep"])
def test_a_row_that_cannot_be_reset_and_never_ends_is_reported(autoreset: str) -> None:
    kwargs = {"autoreset": autoreset, "ends": ("never",), "success_step": 1}
    with pytest.raises(EnvironmentContractError, match="did not end by itself within 200 frames.*DISABLED"):
        recorded(success="success", kwargs=kwargs)


def test_a_row_that_can_be_reset_need_not_end() -> None:
    result = recorded(success="success", kwargs={"ends": ("never",), "success_step": 1})
    assert len(result.accepted) == 4


@ALL_MODES
def test_the_next_call_starts_anew(autoreset: str) -> None:
    made = producer(kwargs={"autoreset": autoreset})
    for fill in range(3):
        result = record(made, 3)
        assert_whole_and_genuine(result)
        assert sorted(episode.scene for episode in result.episodes) == [3 * fill + k for k in range(3)]
    made.close()


@ALL_MODES
def test_fewer_scenes_than_rows_leave_the_other_rows_unrecorded(autoreset: str) -> None:
    result = recorded(count=1, num_envs=3, kwargs={"autoreset": autoreset, "lengths": (9, 2, 2)})
    assert [(episode.scene, episode.length) for episode in result.episodes] == [(0, 9)]
    assert_whole_and_genuine(result)


@ALL_MODES
def test_should_stop_ends_production_before_the_next_step(autoreset: str) -> None:
    made = producer(kwargs={"autoreset": autoreset})
    environment = environment_of(made)
    memory = MemoryStaging(made.spec, 20)
    assert list(made.produce(4, memory.staging, should_stop=lambda: len(environment.actions) == 2)) == []
    assert len(environment.actions) == 2
    assert_whole_and_genuine(record(made, 2))
    made.close()


# ---------------------------------------------------------------- Gymnasium's own vector environments


def sync_vector(num_envs: int, autoreset: str, kind: type[gym.Env[Any, Any]] = CountingEnv, **kwargs: Any) -> Any:
    makers = [lambda: kind(**kwargs) for _ in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=autoreset)


def nested_batch_plus_hundred(observation: Any) -> np.ndarray:
    return observation["arm"]["q"][:, :1].astype(np.float32) + 100


@ALL_MODES
def test_gymnasiums_vector_environment_behaves_the_same(autoreset: str) -> None:
    """Field case W09. Its info arrays hold None for environments that reported nothing."""
    kwargs = {"autoreset": autoreset, "lengths": (3, 5), "success": "even"}
    result = recorded(sync_vector, 4, success="success", kwargs=kwargs)
    assert [episode.length for episode in result.episodes] == [3, 3, 5, 5] * 2
    assert len(result.accepted) == 4
    for episode, frames in zip(result.episodes, result.frames, strict=True):
        assert column(frames, OBS) == list(range(episode.length))
        assert column(frames, ACTIONS) == [100 + t for t in range(episode.length)]


@ALL_MODES
def test_nested_batches_are_copied_leaf_by_leaf(autoreset: str) -> None:
    """Field case C12."""
    kwargs = {"autoreset": autoreset, "kind": NestedEnv, "lengths": (3, 4)}
    for episode, frames in recorded(sync_vector, 3, expert=nested_batch_plus_hundred, kwargs=kwargs).accepted:
        steps = list(range(episode.length))
        assert column(frames, ("obs", "arm", "q")) == column(frames, ("obs", "pair", "1")) == steps
        assert column(frames, ("obs", "camera"), 47) == column(frames, ("obs", "pair", "0")) == steps
        assert frames[("obs", "camera")].dtype == np.uint8
        assert frames[("obs", "arm", "q")].dtype == np.float64


def fingerprints(result: Recorded) -> dict[int, list[bytes]]:
    return {episode.scene: [frames[key].tobytes() for key in sorted(frames)] for episode, frames in result.accepted}


def test_scenes_are_the_same_for_any_number_of_rows() -> None:
    runs = [
        fingerprints(recorded(sync_vector, 5, num_envs=n, seed=4, kwargs={"autoreset": "Disabled", "kind": SeededEnv}))
        for n in (1, 2, 3)
    ]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("autoreset", ["NextStep", "SameStep"])
def test_an_autoresetting_batch_repeats_itself(autoreset: str) -> None:
    kwargs = {"autoreset": autoreset, "kind": SeededEnv}
    first, second = (fingerprints(recorded(sync_vector, 5, seed=4, kwargs=kwargs)) for _ in range(2))
    assert first == second
    assert len({tuple(value) for value in first.values()}) == 5


def test_every_attempt_is_reset_with_the_seed_that_it_reports() -> None:
    made = producer(success="success", kwargs={"success": "even", "lengths": (3,)})
    result = record(made, 2)
    given = [seed for call in environment_of(made).seeds for seed in call if seed is not None]
    assert given == [episode.seed for episode in sorted(result.episodes, key=lambda e: (e.accepted, e.scene))]
    made.close()


# ---------------------------------------------------------------- experts


class BatchExpert:
    """Commands the number of calls since a row's reset, plus 100."""

    def __init__(self) -> None:
        self.calls = np.zeros(2)

    def reset(self, observation: Any, rows: np.ndarray) -> None:
        assert (observation[rows, 0] == 0).all()
        self.calls[rows] = 0

    def __call__(self, observation: Any) -> np.ndarray:
        self.calls += 1
        return (self.calls[:, None] + 99).astype(np.float32)


@ALL_MODES
def test_a_stateful_expert_is_told_which_rows_begin(autoreset: str) -> None:
    result = recorded(count=6, expert=BatchExpert, kwargs={"autoreset": autoreset})
    assert_whole_and_genuine(result)


def careless_expert(observation: Any) -> np.ndarray:
    action = plus_hundred(observation)
    observation[:] = -1
    return action


def test_an_expert_that_writes_into_its_observation_spoils_no_record() -> None:
    """Field case C12."""
    assert_whole_and_genuine(recorded(expert=careless_expert))


def one_row(observation: Any) -> np.ndarray:
    return np.zeros(1, np.float32)


def nan_in_row_one(observation: Any) -> np.ndarray:
    action = plus_hundred(observation)
    action[1] = np.nan
    return action


@pytest.mark.parametrize(
    ("expert", "words"),
    [
        (one_row, r"actions of shape \(1,\); declared is \(2, 1\)"),
        (nan_in_row_one, r"actions is nan at element \(1, 0\) \[recorded row, ...\], from the expert"),
    ],
)
def test_a_wrong_action_is_a_clear_error(expert: Any, words: str) -> None:
    with pytest.raises(EnvironmentContractError, match=words):
        recorded(expert=expert)


def test_what_an_expert_says_about_rows_that_are_not_recorded_does_not_matter() -> None:
    assert len(recorded(count=1, expert=nan_in_row_one).accepted) == 1


# ---------------------------------------------------------------- contract


def undeclared(num_envs: int) -> Any:
    environment = CountingVectorEnv(num_envs)
    environment.metadata = {}
    return environment


def of_three(**kwargs: Any) -> Any:
    return CountingVectorEnv(3, **kwargs)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"factory": undeclared}, r"must declare metadata\['autoreset_mode'\]"),
        ({"factory": of_three}, r"gym_config\['num_envs'\] is 2; the factory built a batch of 3"),
        ({"expert": None}, "no 'expert'"),
        ({"vectorization": "async"}, r"gym_config\['vectorization'\] = 'async' is for single environments"),
    ],
)
def test_a_batch_that_cannot_be_used_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvironmentContractError, match=words):
        producer(**{"factory": CountingVectorEnv, **config})


class NanBatch(CountingVectorEnv):
    def step(self, actions: Any) -> Any:
        observation, *rest = super().step(actions)
        observation[1, 1] = np.where(self.t[1] == 2, np.nan, 1)
        return observation, *rest


def test_what_is_not_finite_is_never_an_episode() -> None:
    seen = Recorded()
    made = producer(NanBatch)
    with pytest.raises(EnvironmentContractError, match=r"obs is nan at element \(2, 1\) .* of scene 1, attempt 1"):
        record(made, 2, into=seen)
    assert [episode.scene for episode in seen.episodes] == [0]
    made.close()


def test_the_report_is_that_of_one_row() -> None:
    made = producer()
    spec = made.spec
    assert (spec.num_envs, spec.state_dim, spec.action_dim, spec.step_dt) == (2, 3, 1, 1 / 20)
    assert spec.fields[OBS].shape == (3,)
    made.close()
    made.close()


def odd_scenes(episode: Episode, frames: Any) -> bool:
    return frames[OBS][0, 1] % 2 == 1


def test_the_validator_has_the_last_word() -> None:
    result = recorded(count=4, kwargs={"lengths": (3,)}, accept=odd_scenes)
    assert len(result.accepted) == 4
    assert result.failures == ["gym_config['accept'] said no"] * 2


# ---------------------------------------------------------------- plans


@ALL_MODES
@pytest.mark.spec("ENG-14")
def test_all_rows_follow_one_lazy_plan_and_a_failed_row_is_retried(autoreset: str) -> None:
    made = producer(SegmentVectorEnv, expert=None, kwargs={"autoreset": autoreset, "rejects": {"reach": [1]}})
    result = record(made, 3)
    assert_whole_and_genuine(result)
    # Row 1 fails early on its first attempt; row 0 carries on; then both begin the next plan together.
    assert [(episode.scene, episode.accepted, episode.length) for episode in result.episodes] == [
        *((1, False, 2), (0, True, 5), (2, True, 5), (1, True, 5))
    ]
    assert result.episodes[1].segments == (
        Segment(start=0, end=2, name="reach"),
        Segment(start=2, end=5, name="grasp"),
    )
    assert result.episodes[0].segments == (Segment(start=0, end=2, name="reach"),)
    assert environment_of(made).log == ["plan reach", "validate reach", "plan grasp", "validate grasp"] * 2
    made.close()


@ALL_MODES
def test_a_failure_can_abort_the_whole_batch(autoreset: str) -> None:
    kwargs = {"autoreset": autoreset, "rejects": {"reach": [1]}, "failure_policy": "batch_abort"}
    made = producer(SegmentVectorEnv, expert=None, kwargs=kwargs)
    result = record(made, 2)
    assert [(episode.scene, episode.accepted, episode.length) for episode in result.episodes] == [
        *((1, False, 2), (0, False, 2), (0, True, 5), (1, True, 5))
    ]
    assert result.failures == [
        "validator of segment 'reach' said no",
        "the batch was aborted, because row 1 failed: validator of segment 'reach' said no",
    ]
    assert environment_of(made).log[:3] == ["plan reach", "validate reach", "plan reach"]
    made.close()


@ALL_MODES
@pytest.mark.spec("ENG-14")
def test_rows_that_end_during_the_plan_are_not_stepped_past_their_end(autoreset: str) -> None:
    kwargs = {"autoreset": autoreset, "lengths": (2, 10_000), "plan": (("all", 6),)}
    result = recorded(SegmentVectorEnv, 2, expert=None, kwargs=kwargs)
    assert_whole_and_genuine(result)
    assert [(e.scene, e.length, e.terminated) for e in result.episodes] == [(0, 2, True), (1, 6, False)]


@ALL_MODES
def test_a_plan_stops_once_every_row_is_done(autoreset: str) -> None:
    kwargs = {"autoreset": autoreset, "lengths": (2, 3), "plan": (("a", 4), ("b", 4))}
    made = producer(SegmentVectorEnv, expert=None, kwargs=kwargs)
    record(made, 2)
    assert environment_of(made).log == ["plan a"]
    assert len(environment_of(made).actions) == 3
    made.close()


@pytest.mark.parametrize(
    ("kwargs", "success", "failure"),
    [
        ({"lengths": (3,), "ends": ("truncated",), "success": "never"}, None, "truncated the episode before its plan"),
        ({"lengths": (3,), "success": "never"}, "success", r"info\['success'\] never turned true"),
        ({"success": "never"}, "success", r"info\['success'\] never turned true during the plan"),
        ({"plan": (("long", 21),)}, None, "longer than max_episode_steps=20"),
        ({"plan": ()}, None, "planned no segment"),
    ],
)
def test_a_plan_can_fail_in_many_ways(kwargs: dict[str, Any], success: str | None, failure: str) -> None:
    with pytest.raises(DemonstrationError, match=failure):
        recorded(SegmentVectorEnv, expert=None, attempts=2, success=success, kwargs=kwargs)


@ALL_MODES
def test_should_stop_ends_a_plan(autoreset: str) -> None:
    made = producer(SegmentVectorEnv, expert=None, kwargs={"autoreset": autoreset})
    environment = environment_of(made)
    memory = MemoryStaging(made.spec, 20)
    assert list(made.produce(2, memory.staging, should_stop=lambda: len(environment.actions) >= 1)) == []
    assert len(environment.actions) == 1
    assert len(record(made, 2).accepted) == 2
    made.close()


def test_the_modes_are_gymnasiums() -> None:
    assert {mode.value for mode in AutoresetMode} == set(MODES)
