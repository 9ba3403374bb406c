"""What is stored, executed and refused, in every way of driving an environment with an action manager."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from odstream.errors import DemonstrationError, EnvironmentContractError
from odstream.producers.action_recording import PlainActions, open_channel
from odstream.producers.actions import ControllerAction, ExpertActionSpec
from odstream.producers.base import ProducerContext, RolloutSpec
from odstream.producers.environment import EnvironmentProducerFactory, GymEnvironmentProducer
from tests.fakes.arms import (
    CONTRACTS,
    JOINTS,
    STEPS,
    ArmEnv,
    ArmVectorEnv,
    ArrayRobot,
    Commands,
    ListedArmEnv,
    PlannedArmEnv,
    PlannedArmVectorEnv,
    Requests,
    arm_manager,
    flat_commands,
    flat_commands_of_the_first_row,
)
from tests.fakes.environments import CountingEnv, SegmentEnv, plus_hundred
from tests.fakes.staging import Recorded, record

OBS, ACTIONS, REWARDS = ("obs",), ("actions",), ("rewards",)
REQUEST, COMMAND = "policy_request", "expert_controller_command"
PLANNED = {"plan": PlannedArmEnv, "list": ListedArmEnv, "batched plan": PlannedArmVectorEnv}
DRIVERS = ["sync", "async", "batched", "batched, NextStep", "batched, SameStep", *PLANNED]
IN_EVERY_DRIVER = pytest.mark.parametrize("driver", DRIVERS)


def producer(
    driver: str, expert: Any, semantics: str = REQUEST, *, attempts: int = 3, num_envs: int | None = None, **kwargs: Any
) -> GymEnvironmentProducer:
    """A producer of `ArmEnv` episodes; ``expert`` drives it in the way asked for."""
    factory: Any = ArmEnv
    config: dict[str, Any] = {"expert": expert, "num_envs": num_envs or (2 if "batched" in driver else 1)}
    if driver in PLANNED:
        factory, config["expert"] = PLANNED[driver], None
        kwargs["driver"] = expert
    elif driver == "async":
        config["vectorization"] = "async"
    elif "batched" in driver:
        factory = ArmVectorEnv
        kwargs["autoreset"] = driver.partition(", ")[2] or "Disabled"
    context = ProducerContext(
        max_episode_steps=20,
        max_generation_attempts=attempts,
        action_semantics=semantics,  # type: ignore[arg-type]
    )
    return EnvironmentProducerFactory({"factory": factory, "kwargs": kwargs, "seed": 0, **config})(context)


def produced(driver: str, expert: Any, semantics: str = REQUEST, *, count: int = 2, **more: Any) -> Recorded:
    made = producer(driver, expert, semantics, **more)
    try:
        return record(made, count)
    finally:
        made.close()


def spec_of(driver: str, semantics: str, **kwargs: Any) -> RolloutSpec:
    made = producer(driver, Requests(), semantics, **kwargs)
    made.close()
    return made.spec


# ---------------------------------------------------------------- what is reported


@IN_EVERY_DRIVER
@pytest.mark.spec("ENG-19", "ENG-20")
def test_a_producer_says_what_it_would_record(driver: str) -> None:
    spec = spec_of(driver, REQUEST)
    assert spec.action_semantics == REQUEST and spec.joint_names == JOINTS and spec.expert_action_spec is None
    assert tuple(item.contract for item in spec.action_descriptors) == CONTRACTS
    assert (spec.action_dim, spec.fields[ACTIONS].dtype) == (3, np.float32)
    spec = spec_of(driver, COMMAND)
    assert spec.action_semantics == COMMAND and spec.joint_names == JOINTS and spec.action_descriptors == ()
    assert spec.expert_action_spec == ExpertActionSpec(joint_names=JOINTS)
    assert spec_of(driver, COMMAND, mode="position_velocity").action_dim == 6


def test_the_environment_is_told_what_is_recorded() -> None:
    for semantics in (REQUEST, COMMAND):
        made = producer("sync", Requests(), semantics)
        assert made._stage._players[0]._environment.rollout_action_semantics == semantics  # type: ignore[attr-defined]
        made.close()


@pytest.mark.spec("ENG-25")
def test_a_plain_environment_records_its_actions_whatever_was_asked_for() -> None:
    """Its spec tells, and the engine compares."""
    for semantics in (REQUEST, COMMAND):
        context = ProducerContext(max_episode_steps=9, max_generation_attempts=1, action_semantics=semantics)  # type: ignore[arg-type]
        made = EnvironmentProducerFactory({"factory": CountingEnv, "expert": plus_hundred})(context)
        made.close()
        assert made.spec.action_semantics == COMMAND
        assert (made.spec.action_descriptors, made.spec.expert_action_spec, made.spec.joint_names) == ((), None, None)


@pytest.mark.spec("ENG-25")
def test_objects_of_another_make_under_the_same_names_mean_nothing() -> None:
    class Foreign(CountingEnv):
        action_manager = object()
        expert_action_spec = "mine"
        joint_names = ("a",)

    foreign = Foreign()
    assert isinstance(open_channel(foreign, foreign.action_space, "policy_request", ()), PlainActions)


@pytest.mark.parametrize("driver", ["sync", "async", "batched"])
def test_settings_reach_the_action_manager(driver: str) -> None:
    config = {"factory": ArmVectorEnv if driver == "batched" else ArmEnv, "expert": Requests(), "num_envs": 1}
    if driver == "async":
        config["vectorization"] = "async"
    context = ProducerContext(
        max_episode_steps=9, max_generation_attempts=1, action_semantics="policy_request", action_config={"scale": 0.25}
    )
    made = EnvironmentProducerFactory(config)(context)
    made.close()
    assert made.spec.action_descriptors[0].settings == {"scale": (0.25, 0.25)}
    with pytest.raises(ValueError, match="action_config must be given once"):
        EnvironmentProducerFactory({**config, "kwargs": {"action_config": {}}})(context)


def test_a_manager_without_a_layout_cannot_record_commands() -> None:
    with pytest.raises(EnvironmentContractError, match="offers an action_manager and no expert_action_spec"):
        producer("sync", Requests(), COMMAND, flaw="no spec")
    producer("sync", Requests(), REQUEST, flaw="no spec").close()


@pytest.mark.parametrize("driver", ["sync", "batched"])
def test_a_wrapper_that_changes_requests_is_noticed(driver: str) -> None:
    with pytest.raises(EnvironmentContractError, match=r"has the bounds .* accepts .* to \[1.  1.  0.5\]"):
        producer(driver, Requests(), flaw="other bounds")


def test_an_action_wrapper_is_noticed() -> None:
    config = {"factory": "tests.unit.producers.test_action_recording:rescaled", "expert": Requests()}
    context = ProducerContext(max_episode_steps=9, max_generation_attempts=1, action_semantics="policy_request")
    with pytest.raises(EnvironmentContractError, match="a wrapper changes actions"):
        EnvironmentProducerFactory(config)(context)


def rescaled() -> Any:
    low, high = np.full(3, -2, np.float32), np.full(3, 2, np.float32)
    return gym.wrappers.RescaleAction(ArmEnv(), low, high)


# ---------------------------------------------------------------- requests


@IN_EVERY_DRIVER
@pytest.mark.spec("ENG-20", "CTX-05")
def test_the_raw_request_is_stored_with_the_observation_it_was_made_on(driver: str) -> None:
    """Field case W11."""
    for episode, frames in produced(driver, Requests()).accepted:
        assert episode.length == STEPS
        np.testing.assert_array_equal(frames[ACTIONS], np.tile(np.float32([0.1, -0.2, 1.0]), (STEPS, 1)))
        assert frames[OBS][:, 0].tolist() == [0, 1, 2, 3]
        replayed(frames)


def replayed(frames: dict[Any, Any]) -> None:
    """Requests through the manager, from the first observation: every observation and reward, to the bit."""
    robot = ArrayRobot(1)
    robot.positions[0] = frames[OBS][0, 2:]
    manager = arm_manager(robot)
    for seen, request, reward in zip(frames[OBS], frames[ACTIONS], frames[REWARDS], strict=True):
        np.testing.assert_array_equal(robot.positions[0], seen[2:])
        robot.positions[0] = manager.process(request).positions
        assert np.float32(robot.positions[0, 0]) == reward


@pytest.mark.spec("ENG-20")
@pytest.mark.parametrize(
    ("driver", "bad", "text"),
    [
        (driver, bad, str(bad))
        for driver in DRIVERS
        for bad in (1.7949, -1.0001, np.nan, np.inf, -np.inf)
        if driver != "async" or bad == 1.7949  # a process takes its time to start
    ],
)
def test_a_request_outside_the_bounds_rejects_the_attempt_and_names_value_and_bounds(
    driver: str, bad: float, text: str
) -> None:
    """Field case N08."""
    result = produced(driver, Requests(bad, at=2, row=0, attempts=1))
    whose = "plan" if driver in PLANNED else "expert"
    assert result.failures == [
        f"the {whose} requested arm.b = {text} (element 1), which must be finite and within [-1.0, 1.0]"
    ]
    (failed,) = (episode for episode in result.episodes if not episode.accepted)
    assert failed.length == 2
    assert len(result.accepted) == 2
    for _, frames in result.accepted:
        assert np.abs(frames[ACTIONS]).max() <= 1.0
        replayed(frames)


@IN_EVERY_DRIVER
@pytest.mark.parametrize("bound", [-1.0, 1.0])
def test_a_request_exactly_at_a_bound_is_accepted(driver: str, bound: float) -> None:
    """Field case N08."""
    for _, frames in produced(driver, Requests(bound, at=1, attempts=99)).accepted:
        assert frames[ACTIONS][1].tolist() == [np.float32(0.1), bound, 1.0]
        replayed(frames)


@IN_EVERY_DRIVER
@pytest.mark.spec("ENG-20")
@pytest.mark.parametrize("dtype", ["bool", "int64"])
def test_a_request_that_is_no_floating_number_is_refused(driver: str, dtype: str) -> None:
    whose = "plan" if driver in PLANNED else "expert"
    with pytest.raises(EnvironmentContractError, match=f"the {whose} requested {dtype} values; .* floating numbers"):
        produced(driver, Requests(dtype=dtype))


@IN_EVERY_DRIVER
def test_a_first_request_that_is_bad_leaves_no_frame(driver: str) -> None:
    result = produced(driver, Requests(2.0, at=0, row=0))
    assert [episode.length for episode in result.episodes if not episode.accepted] == [0]
    assert len(result.accepted) == 2


@IN_EVERY_DRIVER
@pytest.mark.spec("ENG-14", "ENG-20")
def test_bad_requests_are_tried_again_only_so_often(driver: str) -> None:
    seen = Recorded()
    made = producer(driver, Requests(1.5, at=1, row=0, attempts=99), attempts=2, num_envs=1)
    with pytest.raises(DemonstrationError, match=r"2 attempts.*requested arm.b = 1.5 \(element 1\)"):
        record(made, 1, into=seen)
    made.close()
    assert len(seen.failures) == 2 and not seen.accepted


@IN_EVERY_DRIVER
@pytest.mark.spec("ENG-20")
def test_a_command_is_no_request(driver: str) -> None:
    made = producer(driver, Commands())
    with pytest.raises(
        EnvironmentContractError,
        match="gave a ControllerAction, which is no policy request: give the request of 3 numbers, or record action_se",
    ):
        record(made, 1)
    made.close()


@pytest.mark.parametrize("driver", ["batched", "batched, NextStep", "batched plan"])
@pytest.mark.parametrize("at", range(STEPS))
def test_a_rejected_row_does_not_disturb_the_others(driver: str, at: int) -> None:
    """The same seeds give the same frames, to the bit, whatever happens in row 0."""

    def by_seed(result: Recorded) -> dict[int, Any]:
        return {
            episode.seed if episode.seed is not None else number: frames
            for number, (episode, frames) in enumerate(
                (episode, frames)
                for episode, frames in zip(result.episodes, result.frames, strict=True)
                if episode.accepted and frames[OBS][0, 1] == 1
            )
        }

    calm = produced(driver, Requests(), num_envs=3, count=3)
    troubled = produced(driver, Requests(np.nan, at=at, row=0), num_envs=3, count=3)
    assert len(troubled.failures) == 1 and not calm.failures
    if driver == "batched, NextStep":  # unseeded: compare the rows by where their first frame is
        undisturbed = [frames for _, frames in troubled.accepted if frames[OBS][0, 1] == 1]
        expected = {frames[OBS][0].tobytes(): frames for _, frames in calm.accepted}
        pairs = [(frames, expected[frames[OBS][0].tobytes()]) for frames in undisturbed]
    else:
        left, right = by_seed(troubled), by_seed(calm)
        pairs = [(left[seed], right[seed]) for seed in left]
    assert len(pairs) == 2
    for one, other in pairs:
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def test_a_plan_that_fails_together_is_rejected_together() -> None:
    result = produced("batched plan", Requests(2.0, at=1, row=0), policy="batch_abort")
    assert len(result.failures) == 2 and len(result.accepted) == 2
    assert "the batch was aborted, because row 0 failed: the plan requested arm.b = 2.0" in result.failures[1]


def test_bad_requests_of_rows_that_nobody_records_are_no_offence() -> None:
    """The second scene's row has nothing to do while the first one goes on."""
    result = produced("batched", Requests(np.nan, at=None), count=1)
    assert not result.failures
    made = producer("batched", Requests(np.nan, at=1, row=1, attempts=99))
    result = record(made, 1)
    made.close()
    assert len(result.accepted) == 1 and not result.failures


def test_a_request_is_compared_as_it_is_stored() -> None:
    """A float64 that float32 rounds to the bound is stored, and executed, as the bound."""
    result = produced("sync", Requests(1.0 + 1e-9, at=0, dtype="float64"), count=1)
    assert not result.failures and result.accepted[0][1][ACTIONS][0, 1] == 1.0
    result = produced("sync", Requests(1e300, at=0, dtype="float64"), count=1)
    assert "requested arm.b = inf" in result.failures[0]


# ---------------------------------------------------------------- commands


@IN_EVERY_DRIVER
@pytest.mark.spec("ENG-20")
def test_a_command_is_stored_unchanged(driver: str) -> None:
    """Field case N08: no bound is applied, nothing is clipped."""
    for _, frames in produced(driver, Commands(), COMMAND).accepted:
        assert frames[ACTIONS].dtype == np.float32 and (frames[ACTIONS][:, 1] == np.float32(1.7949)).all()
        assert (frames[OBS][1:, 3] == np.float32(1.7949)).all()  # executed as stored
    for _, frames in produced(driver, Commands(1.0e6), COMMAND).accepted:
        assert (frames[ACTIONS][:, 1] == 1.0e6).all()


@IN_EVERY_DRIVER
@pytest.mark.spec("ENG-20")
def test_a_request_becomes_the_command_that_is_stored(driver: str) -> None:
    for _, frames in produced(driver, Requests(), COMMAND).accepted:
        commands, joints = frames[ACTIONS], frames[OBS][:, 2:]
        np.testing.assert_array_equal(joints[1:], commands[:-1])  # executed as stored, to the bit
        np.testing.assert_array_equal(commands[:, 0], (joints[:, 0] + 0.5 * np.float32(0.1)).astype(np.float32))
        np.testing.assert_array_equal(commands[:, 2], np.zeros(STEPS))


@IN_EVERY_DRIVER
def test_a_bad_request_is_no_command_either(driver: str) -> None:
    result = produced(driver, Requests(1.5, at=1, row=0), COMMAND)
    assert len(result.failures) == 1 and "requested arm.b = 1.5 (element 1)" in result.failures[0]


@pytest.mark.parametrize("driver", ["sync", "batched"])
def test_commands_are_stored_in_the_dtype_of_the_layout(driver: str) -> None:
    made = producer(driver, Requests(), COMMAND, flaw="float64 spec")
    for _, frames in record(made, 2).accepted:
        assert frames[ACTIONS].dtype == np.float64
        np.testing.assert_array_equal(frames[ACTIONS][:, 0], frames[OBS][:, 2] + 0.5 * np.float64(np.float32(0.1)))
    made.close()


@pytest.mark.parametrize("driver", ["sync", "batched"])
def test_velocities_follow_the_positions(driver: str) -> None:
    for _, frames in produced(driver, Commands(velocities=True), COMMAND, mode="position_velocity").accepted:
        assert frames[ACTIONS].shape == (STEPS, 6) and (frames[ACTIONS][:, 3:] == 0.25).all()
    with pytest.raises(EnvironmentContractError, match="the expert gave a command .* has no velocities"):
        produced(driver, Commands(), COMMAND, mode="position_velocity")
    with pytest.raises(EnvironmentContractError, match="cannot be recorded: the command has velocities"):
        produced(driver, Commands(velocities=True), COMMAND)
    with pytest.raises(EnvironmentContractError, match="the command is for joints"):
        produced(driver, Commands(names=("b", "a", "g")), COMMAND)


@pytest.mark.parametrize("driver", ["sync", "batched"])
def test_without_a_manager_a_flat_action_is_the_command(driver: str) -> None:
    made = producer(driver, flat_commands, COMMAND, flaw="no manager")
    for _, frames in record(made, 2).accepted:
        assert (frames[ACTIONS][:, 1] == np.float32(1.7949)).all()
    made.close()
    made = producer(driver, np.zeros_like, COMMAND, flaw="no manager")
    with pytest.raises(EnvironmentContractError, match="returned actions of shape"):
        record(made, 1)
    made.close()


def test_bad_commands_of_rows_that_nobody_records_are_no_offence() -> None:
    made = producer("batched", flat_commands_of_the_first_row, COMMAND, flaw="no manager")
    (episode,) = record(made, 1).accepted
    assert np.isfinite(episode[1][ACTIONS]).all()
    with pytest.raises(EnvironmentContractError, match="must be finite"):
        record(made, 2)
    made.close()


def test_what_is_executed_is_a_command_of_its_own() -> None:
    made = producer("sync", Requests(), COMMAND)
    record(made, 1)
    environment: Any = made._stage._players[0]._environment  # type: ignore[attr-defined]
    assert all(isinstance(action, ControllerAction) for action in environment.actions)
    made.close()


@pytest.mark.spec("ENG-25")
def test_a_plain_environment_takes_no_controller_action() -> None:
    context = ProducerContext(max_episode_steps=20, max_generation_attempts=1)
    config = {"factory": SegmentEnv, "expert": "tests.unit.producers.test_action_recording:one_joint"}
    made = EnvironmentProducerFactory(config)(context)
    with pytest.raises(EnvironmentContractError, match="the expert gave a ControllerAction; .* no expert_action_spec"):
        record(made, 1)
    made.close()


def one_joint(observation: Any) -> ControllerAction:
    return ControllerAction(np.zeros(1), ("a",))
