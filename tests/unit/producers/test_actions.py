"""Descriptors, terms, the manager, and controller commands: pure, on arms made of arrays."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from odstream.producers.action_manager import ActionManager
from odstream.producers.action_terms import (
    ActionTerm,
    JointPosition,
    ParallelGripper,
    RelativeEndEffectorPose,
    RelativeJointPosition,
)
from odstream.producers.actions import ActionDescriptor, ControllerAction, ExpertActionSpec
from tests.fakes.arms import CONTRACTS, JOINTS, ArrayRobot, arm_manager

ARM = tuple(f"joint{number}" for number in range(1, 8))
HOME = (0.0, 0.15, 0.0, -2.25, 0.0, 2.40, 0.785)
EVERYONE = np.arange(5)


def seven_joints(jacobian: np.ndarray, num_envs: int = 1) -> ArrayRobot:
    return ArrayRobot(num_envs, ARM, np.tile([-3.0, 3.0], (7, 1)), jacobian)


def hand(robot: ArrayRobot, **settings: Any) -> RelativeEndEffectorPose:
    scales = {"translation_scale_m": 0.03, "rotation_scale_rad": 0.2}
    return RelativeEndEffectorPose(robot, ARM, **(scales | settings))


# ---------------------------------------------------------------- terms


def test_a_relative_pose_moves_and_turns_the_hand_by_its_scales() -> None:
    robot = seven_joints(np.hstack([np.eye(6), np.zeros((6, 1))])[None])
    robot.positions[0] = HOME
    targets = hand(robot, posture=HOME).targets(np.array([[1.0, 0, 0, 0, 0, -0.5]]), np.arange(1))
    np.testing.assert_allclose((targets - robot.positions)[0], [0.03, 0, 0, 0, 0, -0.1, 0], atol=1e-4)


def test_spare_motion_pulls_the_arm_to_its_posture() -> None:
    robot = seven_joints(np.hstack([np.eye(6), np.zeros((6, 1))])[None])
    still = np.zeros((1, 6))
    pulled = hand(robot, posture=(1.0,) * 7, posture_gain=0.1).targets(still, np.arange(1))
    np.testing.assert_allclose(pulled[0], [0, 0, 0, 0, 0, 0, 0.1], atol=1e-4)
    np.testing.assert_allclose(hand(robot).targets(still, np.arange(1)), np.zeros((1, 7)), atol=1e-12)


def test_a_row_does_not_depend_on_the_others_of_its_batch() -> None:
    rng = np.random.default_rng(0)
    robot = seven_joints(rng.normal(size=(5, 6, 7)), 5)
    robot.positions = rng.normal(size=(5, 7))
    requests, term = rng.uniform(-1, 1, (5, 6)), hand(robot, posture=HOME)
    batched = term.targets(requests, EVERYONE)
    alone = [term.targets(requests[[row]], np.array([row]))[0] for row in range(5)]
    np.testing.assert_array_equal(batched, alone)


def test_relative_requests_hold_joints_at_their_limits() -> None:
    robot = seven_joints(np.ones((1, 6, 7)))
    robot.positions[:] = 2.999
    assert hand(robot, damping=1.0).targets(np.ones((1, 6)), np.arange(1)).max() == 3.0
    term = RelativeJointPosition(robot, ARM, scale=0.5)
    np.testing.assert_array_equal(term.targets(np.ones((1, 7)), np.arange(1)), np.full((1, 7), 3.0))


def test_a_relative_joint_position_starts_from_what_is_measured() -> None:
    robot = seven_joints(np.ones((1, 6, 7)))
    robot.positions[:] = 1.0
    term = RelativeJointPosition(robot, ARM[2:4], scale=(0.5, 0.25))
    np.testing.assert_array_equal(term.targets(np.array([[-1.0, 1.0]]), np.arange(1)), [[0.5, 1.25]])
    assert term.units == ("0.5 rad", "0.25 rad") and term.feature_names == ("joint3", "joint4")


def test_an_absolute_joint_position_is_bounded_by_the_limits_and_never_beyond_them() -> None:
    limits = np.array([[-2.8973, 2.8973], [-0.0698, 3.0718], [-1.0, 1.0]])
    term = JointPosition(ArrayRobot(1, JOINTS, limits), JOINTS)
    assert (np.array(term.low) >= limits[:, 0]).all() and (np.array(term.high) <= limits[:, 1]).all()
    np.testing.assert_allclose(np.array([term.low, term.high]).T, limits, atol=1e-6)
    assert (term.low[2], term.high[2]) == (-1.0, 1.0)
    np.testing.assert_array_equal(term.targets(np.array([term.high]), np.arange(1)), [term.high])


def test_a_gripper_lies_between_its_two_ends() -> None:
    robot = ArrayRobot(1, JOINTS)
    term = ParallelGripper(robot, ("g",), at_minus_one=0.08, at_plus_one=0.0)
    np.testing.assert_array_equal(term.targets(np.array([[-1.0], [0.0], [1.0]]), np.arange(3)), [[0.08], [0.04], [0.0]])
    assert term.settings == {"at_minus_one": (0.08,), "at_plus_one": (0.0,)}


def test_two_fingers_go_together() -> None:
    robot = ArrayRobot(1, ("left", "right"), [[0.0, 0.04], [-0.04, 0.0]])
    term = ParallelGripper(robot, ("left", "right"), at_minus_one=(0.04, -0.04), at_plus_one=0)
    np.testing.assert_array_equal(term.targets(np.array([[-0.5]]), np.arange(1)), [[0.03, -0.03]])


@pytest.mark.parametrize(
    ("term", "settings", "error", "message"),
    [
        (RelativeJointPosition, {"joint_names": ("b", "a"), "scale": 1}, ValueError, r"in its order, .*'a', 'b', 'g'"),
        (RelativeJointPosition, {"joint_names": ("a", "x"), "scale": 1}, ValueError, "must be joints of the robot"),
        (RelativeJointPosition, {"joint_names": (), "scale": 1}, ValueError, "joint_names must be distinct, non-empty"),
        (RelativeJointPosition, {"joint_names": ["a"], "scale": 1}, TypeError, "joint_names must be a tuple"),
        (
            RelativeJointPosition,
            {"joint_names": ("a", "b"), "scale": 0},
            ValueError,
            "scale must be finite and greater",
        ),
        (RelativeJointPosition, {"joint_names": ("a", "b"), "scale": (1, 2, 3)}, ValueError, "a number or 2"),
        (RelativeJointPosition, {"joint_names": ("a", "b"), "scale": True}, TypeError, "scale must be a number"),
        (
            ParallelGripper,
            {"joint_names": ("g",), "at_minus_one": 0.2, "at_plus_one": 0},
            ValueError,
            "at_minus_one must",
        ),
        (ParallelGripper, {"joint_names": ("g",), "at_minus_one": 0, "at_plus_one": 0}, ValueError, "must differ"),
        (ParallelGripper, {"joint_names": ("g",), "at_minus_one": 0, "at_plus_one": np.nan}, ValueError, "finite"),
    ],
)
def test_a_term_that_makes_no_sense_is_refused(
    term: Any, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        term(ArrayRobot(1), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"translation_scale_m": 0.0}, "translation_scale_m must be finite and greater than 0, got 0"),
        ({"rotation_scale_rad": float("inf")}, "rotation_scale_rad must be finite"),
        ({"damping": -1.0}, "damping must be finite and greater than 0, got -1"),
        ({"posture": (1.0,)}, "posture must be a number or 7, one per joint"),
    ],
)
def test_a_setting_of_the_hand_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^eef_pose.relative@1: {message}"):
        hand(seven_joints(np.ones((1, 6, 7))), **settings)


def test_joints_without_limits_have_no_absolute_positions() -> None:
    with pytest.raises(ValueError, match="must have finite limits"):
        JointPosition(ArrayRobot(1, JOINTS, [[-np.inf, np.inf]] * 3), JOINTS)


# ---------------------------------------------------------------- the manager


@pytest.mark.spec("ENG-19")
def test_terms_lie_side_by_side_in_their_order() -> None:
    manager = arm_manager(ArrayRobot(2))
    assert manager.contracts == CONTRACTS and manager.width == 3 and manager.joint_names == JOINTS
    assert [(item.name, item.start, item.stop) for item in manager.descriptors] == [("arm", 0, 2), ("hand", 2, 3)]
    assert manager.action_space.shape == (3,) and manager.action_space.dtype == np.float32
    assert [float(bound) for bound in manager.action_space.high] == [1.0, 1.0, 1.0]


def test_commands_are_in_the_order_of_the_joints_whatever_the_order_of_the_terms() -> None:
    robot = ArrayRobot(1)
    robot.positions[0] = [1.0, 2.0, 0.0]
    terms: dict[str, ActionTerm] = {
        "hand": ParallelGripper(robot, ("g",), at_minus_one=0.08, at_plus_one=0.0),
        "a": RelativeJointPosition(robot, ("a",), scale=0.5),
        "b": RelativeJointPosition(robot, ("b",), scale=0.25),
    }
    command = ActionManager(terms, robot).process(np.array([-1.0, 1.0, -1.0], np.float32))
    assert command.joint_names == JOINTS
    np.testing.assert_array_equal(command.positions, [1.5, 1.75, 0.08])


def test_some_rows_can_be_processed_alone() -> None:
    robot = ArrayRobot(3)
    robot.positions[:, 0] = [0.0, 1.0, 2.0]
    manager = arm_manager(robot)
    requests = np.array([[1, 0, 1], [-1, 0, 1], [0, 0, 1]], np.float32)
    whole = manager.process(requests).positions
    np.testing.assert_array_equal(whole[:, 0], [0.5, 0.5, 2.0])
    np.testing.assert_array_equal(manager.process(requests[[2, 0]], np.array([2, 0])).positions, whole[[2, 0]])


@pytest.mark.parametrize(("bad", "text"), [(1.7949, "1.7949"), (np.nan, "nan"), (-np.inf, "-inf")])
def test_a_request_outside_the_bounds_is_refused_with_value_and_bounds(bad: float, text: str) -> None:
    """Field case N08."""
    requests = np.zeros((2, 3))
    requests[1, 2] = bad
    with pytest.raises(ValueError, match=rf"row 1 has hand.gripper = {text} \(element 2\).* within \[-1.0, 1.0\]"):
        arm_manager(ArrayRobot(2)).process(requests)


def test_requests_exactly_at_the_bounds_are_accepted() -> None:
    """Field case N08."""
    for bound in (-1.0, 1.0):
        arm_manager(ArrayRobot(1)).process(np.full(3, bound, np.float32))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 2), (2, 4), (2, 3, 1)])
def test_requests_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"requests must have shape \(2, 3\), got "):
        arm_manager(ArrayRobot(2)).process(np.zeros(shape))


def test_every_joint_belongs_to_exactly_one_term() -> None:
    robot = ArrayRobot(1)
    whole = JointPosition(robot, JOINTS)
    part = RelativeJointPosition(robot, ("a", "b"), scale=1)
    with pytest.raises(ValueError, match=r"joints \['g'\] of the robot belong to no action term"):
        ActionManager({"arm": part}, robot)
    with pytest.raises(ValueError, match="joint 'a' belongs to action terms 'all' and 'arm'"):
        ActionManager({"all": whole, "arm": part}, robot)
    with pytest.raises(ValueError, match="action term 'all' was built on another robot"):
        ActionManager({"all": whole}, ArrayRobot(1))
    with pytest.raises(ValueError, match="at least one term, got none"):
        ActionManager({}, robot)
    with pytest.raises(TypeError, match="action term 'all' must be an ActionTerm, got 'x'"):
        ActionManager({"all": "x"}, robot)  # type: ignore[dict-item]


# ---------------------------------------------------------------- descriptors, commands, layouts

GOOD: dict[str, Any] = {
    "name": "hand",
    "contract": "gripper.parallel@1",
    "start": 2,
    "stop": 3,
    "feature_names": ("gripper",),
    "units": ("share",),
    "joint_names": ("g",),
    "low": (-1.0,),
    "high": (1.0,),
}


def test_a_descriptor_can_be_written_down_and_travels() -> None:
    descriptor = arm_manager(ArrayRobot(1)).descriptors[1]
    assert json.loads(json.dumps(descriptor.to_json())) == descriptor.to_json()
    assert descriptor.to_json()["settings"] == {"at_minus_one": [0.08], "at_plus_one": [0.0]}
    assert pickle.loads(pickle.dumps(descriptor)) == descriptor


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"name": ""}, ValueError, "name must be distinct, non-empty"),
        ({"contract": "gripper"}, ValueError, "'hand': contract must be 'word.word@version', such as .*got 'gripper'"),
        ({"contract": "gripper@0"}, ValueError, "contract must be"),
        ({"start": -1}, ValueError, "'hand': start must be at least 0, got -1"),
        ({"stop": 2}, ValueError, "'hand': stop must be at least 3, got 2"),
        ({"stop": 4}, ValueError, "feature_names must be a tuple of 2, one per column"),
        ({"units": ()}, ValueError, "units must be a tuple of 1"),
        ({"units": ("",)}, ValueError, "units must be non-empty strings"),
        ({"joint_names": ["g"]}, TypeError, "joint_names must be a tuple of strings"),
        ({"low": (0.1,)}, ValueError, "low must be finite numbers that float32 holds"),
        ({"high": (float("inf"),)}, ValueError, "high must be finite numbers that float32 holds"),
        ({"high": (True,)}, ValueError, "high must be finite numbers"),
        ({"high": (-1.0,)}, ValueError, "low must be below high in every column"),
    ],
)
def test_a_descriptor_that_contradicts_itself_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    ActionDescriptor(**GOOD)
    with pytest.raises(error, match=message):
        ActionDescriptor(**(GOOD | changes))


def test_a_command_owns_its_numbers() -> None:
    """Field case C12."""
    positions = np.zeros(3)
    command = ControllerAction(positions, JOINTS, positions)
    positions[:] = 9
    assert command.positions.tolist() == [0, 0, 0] and command.velocities is not None
    for array in (command.positions, command.velocities):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.zeros(2), JOINTS), ValueError, r"positions must have shape \(3,\) or \(P, 3\).* got \(2,\)"),
        ((np.zeros((1, 1, 3)), JOINTS), ValueError, "positions must have shape"),
        ((np.array([0, np.nan, 0]), JOINTS), ValueError, r"positions must be finite, got nan at element \(1,\)"),
        ((np.zeros(3), JOINTS, np.full(3, np.inf)), ValueError, "velocities must be finite, got inf at element"),
        ((np.zeros(3), JOINTS, np.zeros((1, 3))), ValueError, r"velocities must have shape \(3,\), got \(1, 3\)"),
        ((np.array(["a", "b", "c"]), JOINTS), TypeError, "positions must be numbers"),
        ((np.zeros(3), ("a", "a", "g")), ValueError, "joint_names must be distinct"),
    ],
)
def test_a_command_that_nobody_can_execute_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ControllerAction(*arguments)


def test_a_layout_turns_commands_into_rows_and_back() -> None:
    positions = np.array([[1.0, 2.0, 3.0]])
    spec = ExpertActionSpec(joint_names=JOINTS)
    assert (spec.width, spec.position_slice, spec.velocity_slice) == (3, slice(0, 3), None)
    np.testing.assert_array_equal(spec.encode(ControllerAction(positions, JOINTS)), positions)
    both = ExpertActionSpec(joint_names=JOINTS, mode="position_velocity")
    assert (both.width, both.velocity_slice) == (6, slice(3, 6))
    assert both.feature_names == tuple(f"{j}.{kind}" for kind in ("position", "velocity") for j in JOINTS)
    row = both.encode(ControllerAction(positions, JOINTS, -positions))
    again = both.decode(row)
    np.testing.assert_array_equal(again.positions, positions)
    np.testing.assert_array_equal(again.velocities, -positions)
    assert json.loads(json.dumps(both.to_json())) == both.to_json()


def test_a_layout_refuses_other_commands() -> None:
    position = ExpertActionSpec(joint_names=JOINTS)
    both = ExpertActionSpec(joint_names=JOINTS, mode="position_velocity")
    still = ControllerAction(np.zeros(3), JOINTS)
    with pytest.raises(ValueError, match="the command has no velocities, recorded is mode 'position_velocity'"):
        both.encode(still)
    with pytest.raises(ValueError, match="the command has velocities, recorded is mode 'position'"):
        position.encode(ControllerAction(np.zeros(3), JOINTS, np.zeros(3)))
    with pytest.raises(ValueError, match=r"for joints \['b', 'a', 'g'\], recorded are \['a', 'b', 'g'\]"):
        position.encode(ControllerAction(np.zeros(3), ("b", "a", "g")))
    with pytest.raises(ValueError, match="a recorded action must have 3 columns"):
        position.decode(np.zeros(4))
    with pytest.raises(ValueError, match="mode must be one of 'position', 'position_velocity', got 'torque'"):
        ExpertActionSpec(joint_names=JOINTS, mode="torque")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype must be one of 'float32', 'float64'"):
        ExpertActionSpec(joint_names=JOINTS, dtype="float16")  # type: ignore[arg-type]
