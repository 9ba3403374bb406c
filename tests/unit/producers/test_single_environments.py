"""P single environments: in this process, and, for what is promised of both, each in its own."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from odstream.errors import DemonstrationError, EnvironmentContractError
from odstream.producers.base import Episode, ProducerContext, Segment
from odstream.producers.environment import EnvironmentProducerFactory, GymEnvironmentProducer
from tests.fakes.environments import (
    ActionListEnv,
    CountingEnv,
    DiscreteEnv,
    FaultyEnv,
    NestedEnv,
    RememberingExpert,
    ReusingEnv,
    SeededEnv,
    SegmentEnv,
    always_zero,
    nan_expert,
    nested_plus_hundred,
    plus_hundred,
    raising_expert,
    wide_expert,
)
from tests.fakes.staging import STALE, MemoryStaging, Recorded, column, record

OBS, ACTIONS, REWARDS = ("obs",), ("actions",), ("rewards",)
BOTH_WAYS = pytest.mark.parametrize("vectorization", ["sync", "async"])


def producer(
    factory: Any = CountingEnv, *, attempts: int = 3, limit: int = 20, **config: Any
) -> GymEnvironmentProducer:
    config = {"factory": factory, "expert": plus_hundred, "seed": 0, **config}
    context = ProducerContext(max_episode_steps=limit, max_generation_attempts=attempts)
    return EnvironmentProducerFactory(config)(context)


def recorded(factory: Any = CountingEnv, count: int = 1, *, limit: int = 20, **config: Any) -> Recorded:
    made = producer(factory, limit=limit, **config)
    try:
        return record(made, count, max_episode_steps=limit)
    finally:
        made.close()


def environment_of(made: GymEnvironmentProducer, index: int = 0) -> Any:
    return made._stage._players[index]._environment.unwrapped  # type: ignore[attr-defined]


# ---------------------------------------------------------------- frames


@BOTH_WAYS
@pytest.mark.spec("CTX-05")
def test_a_frame_pairs_an_observation_with_the_action_chosen_on_it(vectorization: str) -> None:
    """Field case W11."""
    ((episode, frames),) = recorded(vectorization=vectorization).accepted
    assert episode.length == 6
    assert column(frames, OBS) == [0, 1, 2, 3, 4, 5]
    assert column(frames, ACTIONS) == [100, 101, 102, 103, 104, 105]
    assert column(frames, REWARDS) == [0, 1, 2, 3, 4, 5]


@BOTH_WAYS
def test_every_recorded_leaf_is_a_copy(vectorization: str) -> None:
    """Field case C12: the environment overwrites the same nested arrays at every step."""
    ((_, frames),) = recorded(NestedEnv, expert=nested_plus_hundred, vectorization=vectorization).accepted
    steps = [0, 1, 2, 3, 4, 5]
    assert column(frames, ("obs", "arm", "q")) == steps
    assert column(frames, ("obs", "arm", "on")) == [0, 1, 0, 1, 0, 1]
    assert column(frames, ("obs", "camera"), 47) == steps
    assert column(frames, ("obs", "pair", "0")) == steps
    assert column(frames, ("obs", "pair", "1")) == steps
    assert frames[("obs", "camera")].dtype == np.uint8
    assert frames[("obs", "arm", "q")].dtype == np.float64


def test_an_observation_that_the_step_overwrites_is_recorded_as_it_was_seen() -> None:
    """Field cases W11, C12."""
    ((_, frames),) = recorded(ReusingEnv).accepted
    assert column(frames, OBS) == [0, 1, 2, 3, 4, 5]


def test_an_action_outside_the_bounds_is_stored_and_executed_unchanged() -> None:
    """Field case N08, the expert's half."""
    made = producer(SegmentEnv, expert=None, kwargs={"plan": (("far", 1),)})
    environment = environment_of(made)
    environment.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    ((_, frames),) = record(made, 1).accepted
    assert column(frames, ACTIONS) == [100.0]
    assert float(environment.actions[0][0]) == 100.0
    made.close()


def test_discrete_observations_and_actions_are_scalars() -> None:
    made = producer(DiscreteEnv, expert=always_zero)
    ((_, frames),) = record(made, 1).accepted
    assert frames[OBS].tolist() == [0, 1, 2, 3, 4, 5]
    assert frames[ACTIONS].tolist() == [0] * 6
    assert made.spec.action_dim == 1
    assert hash(environment_of(made).actions[0]) == 0  # usable as a key, as a plain int is
    made.close()


def test_nothing_is_written_beyond_the_end_of_an_episode() -> None:
    """ENG-12."""
    made = producer(kwargs={"lengths": (3,)})
    memory = MemoryStaging(made.spec, 20)
    (episode,) = made.produce(1, memory.staging)
    for array in memory.arrays.values():
        assert (array[episode.row, 3:] == STALE).all()
    made.close()


# ---------------------------------------------------------------- acceptance and retries


@BOTH_WAYS
@pytest.mark.spec("ENG-10", "ENG-14")
def test_only_successful_attempts_are_accepted_and_all_are_counted(vectorization: str) -> None:
    """Field case W13."""
    result = recorded(count=4, success="success", kwargs={"success": "even"}, vectorization=vectorization)
    assert len(result.episodes) == 8
    assert len(result.accepted) == 4
    assert {column(frames, OBS, 1)[0] % 2 for _, frames in result.accepted} == {0}
    assert result.failures == ["info['success'] never turned true"] * 4


@BOTH_WAYS
@pytest.mark.spec("ENG-14")
def test_a_scene_that_never_succeeds_ends_production_with_the_number_of_attempts(vectorization: str) -> None:
    """Field case W13."""
    made = producer(success="success", kwargs={"success": "never"}, vectorization=vectorization)
    seen = Recorded()
    with pytest.raises(DemonstrationError, match=r"in 3 attempts .*info\['success'\] never turned true"):
        record(made, 1, into=seen)
    assert [episode.accepted for episode in seen.episodes] == [False] * 3
    made.close()


def test_a_success_key_that_does_not_exist_is_said_so() -> None:
    result = Recorded()
    made = producer(success="is_success", attempts=1)
    with pytest.raises(DemonstrationError, match=r"info has only \['success'\]"):
        record(made, 1, into=result)
    made.close()


def test_an_episode_ends_as_soon_as_it_succeeds() -> None:
    ((episode, _),) = recorded(success="success", kwargs={"success_step": 1}).accepted
    assert (episode.length, episode.terminated, episode.truncated) == (2, False, False)


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_how_an_episode_ended_is_reported(ends: str) -> None:
    """Field case W06: without a success rule an episode is accepted whatever ended it."""
    ((episode, _),) = recorded(kwargs={"ends": ends}).accepted
    assert (episode.terminated, episode.truncated) == (ends == "terminated", ends == "truncated")


@BOTH_WAYS
def test_an_attempt_that_does_not_fit_into_a_row_fails(vectorization: str) -> None:
    kwargs = {"lengths": (21, 20)}
    result = recorded(kwargs=kwargs, vectorization=vectorization)
    assert [(episode.accepted, episode.length) for episode in result.episodes] == [(False, 20), (True, 20)]
    assert result.failures == ["the episode is longer than max_episode_steps=20"]


def reward_above_three(episode: Episode, frames: Any) -> bool:
    assert not frames[REWARDS].flags.writeable
    return bool(frames[REWARDS][-1] > 3)


def answerless(episode: Episode, frames: Any) -> None:
    """Return nothing."""


def test_the_validator_has_the_last_word() -> None:
    result = recorded(count=2, kwargs={"lengths": (3, 6)}, accept=reward_above_three)
    assert [episode.accepted for episode in result.episodes] == [False, True, False, True]
    assert result.failures == ["gym_config['accept'] said no"] * 2


def test_a_validator_without_an_answer_is_an_error() -> None:
    with pytest.raises(EnvironmentContractError, match=r"gym_config\['accept'\] must give a flag"):
        recorded(accept=answerless)


@pytest.mark.spec("ENG-03")
def test_other_environments_go_on_while_one_retries() -> None:
    made = producer(num_envs=2, success="success", kwargs={"lengths": (4,)})
    environment_of(made, 0).success = "even"
    result = record(made, 4)
    assert [(episode.scene, episode.accepted) for episode in result.episodes] == [
        *((0, False), (1, True), (0, True), (2, True), (3, False), (3, True))
    ]
    made.close()


@BOTH_WAYS
def test_exactly_as_many_scenes_are_begun_as_were_asked_for(vectorization: str) -> None:
    """Lengths do not matter: a fill of four holds the four scenes that were begun, short and long ones alike."""
    made = producer(num_envs=3, kwargs={"lengths": (2, 9)}, vectorization=vectorization)
    for fill in range(2):
        result = record(made, 4)
        assert sorted(episode.scene for episode in result.episodes) == [4 * fill + k for k in range(4)]
    made.close()


def test_an_idle_environment_is_left_alone() -> None:
    """The fakes raise when they are stepped past their end."""
    made = producer(num_envs=3, kwargs={"lengths": (2,)})
    environment_of(made, 2).lengths = (9,)
    record(made, 3)
    assert [len(environment_of(made, index).actions) for index in range(3)] == [2, 2, 9]
    made.close()


# ---------------------------------------------------------------- seeds


def fingerprints(result: Recorded) -> dict[int, list[bytes]]:
    return {
        episode.scene: [frames[key].tobytes() for key in sorted(frames)] + [str(episode.seed).encode()]
        for episode, frames in result.accepted
    }


def test_the_same_seed_gives_bitwise_the_same_episodes_for_any_number_of_environments() -> None:
    runs = [
        fingerprints(recorded(SeededEnv, 6, seed=5, num_envs=num_envs, vectorization=vectorization))
        for num_envs, vectorization in [(1, "sync"), (1, "sync"), (4, "sync"), (2, "async")]
    ]
    assert runs[0] == runs[1] == runs[2] == runs[3]
    assert len({tuple(run) for run in runs[0].values()}) == 6
    assert fingerprints(recorded(SeededEnv, 6, seed=6)) != runs[0]


def test_every_attempt_is_reset_with_the_seed_that_it_reports() -> None:
    made = producer(success="success", kwargs={"success": "even"})
    result = record(made, 3)
    assert environment_of(made).seeds == [episode.seed for episode in result.episodes]
    assert len(set(environment_of(made).seeds)) == 6
    made.close()


# ---------------------------------------------------------------- experts


def test_a_stateful_expert_is_reset_and_not_shared() -> None:
    result = recorded(count=4, num_envs=2, expert=RememberingExpert())
    for _, frames in result.accepted:
        assert column(frames, ACTIONS) == [100, 101, 102, 103, 104, 105]


def careless_expert(observation: Any) -> np.ndarray:
    action = plus_hundred(observation)
    observation[:] = -1
    return action


def test_an_expert_that_writes_into_its_observation_spoils_no_record() -> None:
    """Field case C12."""
    ((_, frames),) = recorded(expert=careless_expert).accepted
    assert column(frames, OBS) == [0, 1, 2, 3, 4, 5]


def test_an_expert_class_is_instantiated() -> None:
    ((_, frames),) = recorded(expert="tests.fakes.environments:RememberingExpert").accepted
    assert column(frames, ACTIONS)[0] == 100


@BOTH_WAYS
def test_an_environment_that_nobody_can_drive_is_refused(vectorization: str) -> None:
    with pytest.raises(EnvironmentContractError, match="no 'expert'.*nor create_demo_action_list"):
        producer(expert=None, vectorization=vectorization)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("expert", "words"),
    [
        (wide_expert, r"the expert returned actions of shape \(3,\); declared is \(1,\)"),
        (nan_expert, r"actions is nan at element \(0,\) of frame 2, from the expert"),
    ],
)
def test_a_wrong_action_is_a_clear_error(expert: Any, words: str, vectorization: str) -> None:
    with pytest.raises(EnvironmentContractError, match=words):
        recorded(expert=expert, vectorization=vectorization)


def test_an_expert_that_raises_is_heard_unchanged() -> None:
    """Field case C09."""
    with pytest.raises(ValueError, match="^expert-42$") as caught:
        recorded(expert=raising_expert)
    assert "environments.py" in str(caught.traceback[-1].path)


# ---------------------------------------------------------------- faults of the environment


@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_an_environment_that_raises_is_heard_unchanged(where: str) -> None:
    """Field case C09."""
    with pytest.raises(ValueError, match="^boom-42$"):
        recorded(FaultyEnv, kwargs={"fault": "raise", "where": where})


@pytest.mark.parametrize(
    ("fault", "where", "words"),
    [
        ("nan", "step", r"obs is nan at element \(3, 1\) \[frame, ...\] of scene 0, attempt 1"),
        ("nan", "reset", r"obs is nan at element \(0, 1\)"),
        ("inf_reward", "step", r"rewards is inf at element \(2,\)"),
        ("shape", "reset", r"obs of shape \(3,\); declared is \(2,\)"),
        ("shape", "step", r"obs of shape \(3,\); declared is \(2,\)"),
        ("dtype", "step", "obs as <U1; declared is float32"),
    ],
)
def test_a_wrong_observation_or_reward_is_named_and_never_recorded(fault: str, where: str, words: str) -> None:
    seen = Recorded()
    made = producer(FaultyEnv, kwargs={"fault": fault, "where": where})
    with pytest.raises(EnvironmentContractError, match=words):
        record(made, 1, into=seen)
    assert seen.episodes == []
    made.close()


def test_closing_twice_closes_once_and_reports_what_failed() -> None:
    made = producer(FaultyEnv, num_envs=2, kwargs={"fault": "raise", "where": "close"})
    with pytest.raises(ValueError, match="boom-42"):
        made.close()
    made.close()


def test_a_failed_construction_closes_what_was_built() -> None:
    closed: list[int] = []

    class Late(CountingEnv):
        built = 0

        def __init__(self) -> None:
            Late.built += 1
            if Late.built == 3:
                raise ValueError("boom-44")
            super().__init__()

        def close(self) -> None:
            closed.append(1)

    LATE["class"] = Late
    with pytest.raises(ValueError, match="boom-44"):
        producer(build_late, num_envs=4)
    assert len(closed) == 2


LATE: dict[str, Any] = {}


def build_late() -> Any:
    return LATE["class"]()


# ---------------------------------------------------------------- plans


@BOTH_WAYS
@pytest.mark.spec("ENG-14")
def test_an_environment_can_plan_its_own_segments(vectorization: str) -> None:
    result = recorded(SegmentEnv, 2, expert=None, kwargs={"rejects": ("grasp",)}, vectorization=vectorization)
    assert [episode.accepted for episode in result.episodes] == [False, True, False, True]
    assert result.failures[0] == "validator of segment 'grasp' said no"
    episode, frames = result.accepted[0]
    assert episode.segments == (
        Segment(start=0, end=2, name="reach", instruction="do reach"),
        Segment(start=2, end=5, name="grasp", instruction="do grasp"),
    )
    assert column(frames, ACTIONS) == [100, 101, 102, 103, 104]


@BOTH_WAYS
@pytest.mark.spec("ENG-14")
def test_an_action_list_is_played_as_one_segment_and_a_missing_one_is_retried(vectorization: str) -> None:
    result = recorded(ActionListEnv, 1, expert=None, kwargs={"unplannable": (1,)}, vectorization=vectorization)
    assert [(episode.accepted, episode.length) for episode in result.episodes] == [(False, 0), (True, 4)]
    assert result.accepted[0][0].segments == (Segment(start=0, end=4, name="episode"),)


@pytest.mark.spec("ENG-14")
def test_actions_after_the_end_are_not_executed() -> None:
    made = producer(SegmentEnv, expert=None, kwargs={"lengths": (3,), "plan": (("a", 2), ("b", 4), ("c", 1))})
    ((episode, _),) = record(made, 1).accepted
    assert episode.length == 3
    assert episode.terminated
    assert episode.segments[-1] == Segment(start=2, end=3, name="b", instruction="do b")
    assert environment_of(made).log == [*("plan a", "step 0", "step 1", "validate a", "plan b", "step 2", "cleanup")]
    made.close()


@pytest.mark.parametrize(
    ("kwargs", "success", "failure"),
    [
        ({"lengths": (3,), "ends": "truncated", "success": "never"}, None, "truncated the episode before its plan"),
        ({"lengths": (3,), "success": "never"}, "success", r"info\['success'\] never turned true"),
        ({"success": "never"}, "success", r"info\['success'\] never turned true during the plan"),
        ({"plan": (("long", 21),)}, None, "longer than max_episode_steps=20"),
        ({"plan": ()}, None, "planned no segment"),
        ({"plan": (("a", 1), ("idle", 0))}, None, "segment 'idle' has no actions"),
    ],
)
def test_a_plan_can_fail_in_many_ways(kwargs: dict[str, Any], success: str | None, failure: str) -> None:
    with pytest.raises(DemonstrationError, match=failure):
        recorded(SegmentEnv, expert=None, attempts=2, success=success, kwargs=kwargs)


def test_a_plan_may_fill_a_row_to_the_last_frame() -> None:
    ((episode, _),) = recorded(SegmentEnv, expert=None, kwargs={"plan": (("all", 20),)}).accepted
    assert episode.length == 20


def test_an_expert_goes_before_the_plan_of_the_environment() -> None:
    ((episode, _),) = recorded(SegmentEnv, kwargs={"lengths": (6,)}).accepted
    assert (episode.length, episode.segments) == (6, ())


# ---------------------------------------------------------------- interruption


@BOTH_WAYS
def test_should_stop_ends_production_before_the_next_step_and_the_next_call_starts_anew(vectorization: str) -> None:
    made = producer(num_envs=2, vectorization=vectorization)
    polls = itertools.count()
    memory = MemoryStaging(made.spec, 20)
    assert list(made.produce(4, memory.staging, should_stop=lambda: next(polls) >= 3)) == []
    again = record(made, 2)
    assert [column(frames, OBS) for _, frames in again.accepted] == [[0, 1, 2, 3, 4, 5]] * 2
    made.close()


def test_should_stop_is_polled_before_every_step() -> None:
    made = producer()
    environment = environment_of(made)
    steps_at_poll: list[int] = []

    def poll() -> bool:
        steps_at_poll.append(len(environment.actions))
        return False

    record(made, 1, should_stop=poll)
    assert set(range(6)) <= set(steps_at_poll)
    made.close()


def test_an_interrupted_plan_is_cleaned_up_at_the_latest_when_closed() -> None:
    made = producer(SegmentEnv, expert=None)
    environment = environment_of(made)
    memory = MemoryStaging(made.spec, 20)
    assert list(made.produce(1, memory.staging, should_stop=lambda: bool(environment.actions))) == []
    made.close()
    assert environment.log == ["plan reach", "step 0", "cleanup"]


@pytest.mark.parametrize("count", [0, -1, True, 1.0, None])
def test_a_wrong_count_is_refused(count: Any) -> None:
    made = producer()
    with pytest.raises(ValueError, match="count must be a positive integer"):
        made.produce(count, MemoryStaging(made.spec, 20).staging)
    made.close()


# ---------------------------------------------------------------- the report


@pytest.mark.spec("ENG-19")
def test_widths_and_period_are_reported_before_the_first_step() -> None:
    made = producer(num_envs=3)
    spec = made.spec
    assert (spec.num_envs, spec.state_dim, spec.action_dim, spec.step_dt) == (3, 2, 1, 1 / 20)
    assert list(spec.fields) == [OBS, ACTIONS, REWARDS]
    assert spec.fields[REWARDS].dtype == np.float32
    assert environment_of(made).attempt == 0
    made.close()


@pytest.mark.parametrize(("key", "width"), [(None, None), ("arm.q", 5)])
def test_the_state_is_the_field_that_was_named(key: str | None, width: int | None) -> None:
    made = producer(NestedEnv, expert=nested_plus_hundred, kwargs={"width": 5}, state_key=key)
    assert made.spec.state_dim == width
    made.close()


@pytest.mark.parametrize("key", ["camera", "arm", "pair.0", "missing"])
def test_a_state_that_is_no_vector_is_refused_and_the_vectors_listed(key: str) -> None:
    with pytest.raises(EnvironmentContractError, match=rf"'{key}' is no flat vector.*\['arm.on', 'arm.q'\]"):
        producer(NestedEnv, expert=nested_plus_hundred, state_key=key)


def test_the_configured_period_wins() -> None:
    made = producer(step_dt=0.5)
    assert made.spec.step_dt == 0.5
    made.close()


def test_the_instruction_is_on_every_episode() -> None:
    ((episode, _),) = recorded(instruction="count to six").accepted
    assert episode.instruction == "count to six"


def test_environments_that_record_different_fields_are_refused() -> None:
    DIFFERENT.clear()
    with pytest.raises(EnvironmentContractError, match="environment 1 records"):
        producer(build_different, num_envs=2, expert=nested_plus_hundred)


DIFFERENT: list[int] = []


def build_different() -> Any:
    DIFFERENT.append(1)
    return NestedEnv(width=1 + len(DIFFERENT))


def test_a_registered_environment_is_driven_by_its_id() -> None:
    made = GymEnvironmentProducer(
        {"id": "CartPole-v1", "expert": always_zero, "seed": 3},
        ProducerContext(max_episode_steps=500, max_generation_attempts=1),
    )
    result = record(made, 2, max_episode_steps=500)
    assert (made.spec.state_dim, made.spec.action_dim) == (4, 1)
    assert all(episode.accepted and episode.terminated for episode in result.episodes)
    made.close()
