"""Terms of a request: each turns its own columns into targets for its own joints.

| contract | a request is |
| --- | --- |
| ``eef_pose.relative@1`` | how far the end effector moves and turns in this step, as shares of a largest step |
| ``gripper.parallel@1`` | one number between two openings of a parallel gripper |
| ``joint_position.absolute@1`` | joint positions, within the joint limits |
| ``joint_position.relative@1`` | how far joints move from where they are measured, as shares of a largest step |

Shapes: ``n`` rows, ``w`` columns and ``k`` joints of a term, ``J`` joints of the robot.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from odstream.producers.actions import Setting, check_names
from odstream.validation import check_finite

__all__ = [
    "ActionTerm",
    "JointPosition",
    "ParallelGripper",
    "RelativeEndEffectorPose",
    "RelativeJointPosition",
    "Robot",
]

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
"""``[n]`` indices of the rows that a request is for."""

_MOTION_NAMES = ("move_x", "move_y", "move_z", "turn_x", "turn_y", "turn_z")


class Robot(Protocol):
    """What terms need to know about P robots. A simulator offers it; a few arrays do in a test."""

    @property
    def num_envs(self) -> int:
        """P: how many there are; 1 in a single environment."""

    @property
    def joint_names(self) -> tuple[str, ...]:
        """The J controlled joints, in the order of controller commands."""

    @property
    def joint_limits(self) -> Floats:
        """``[J, 2]`` lowest and highest position of each."""

    def joint_positions(self, rows: Rows) -> Floats:
        """Return ``[n, J]`` as measured now."""

    def jacobian(self, rows: Rows, joint_names: tuple[str, ...]) -> Floats:
        """Return ``[n, 6, k]``: how these joints move (3) and turn (3) the end effector now, in the world frame."""


class ActionTerm(ABC):
    """A term on some joints of a robot.

    Raises:
        TypeError, ValueError: If the joints are not the robot's, or not in its order.
    """

    contract: ClassVar[str]
    """Versioned id of what a request means."""
    feature_names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    settings: Mapping[str, Setting]

    def __init__(self, robot: Robot, joint_names: tuple[str, ...]) -> None:
        check_names(f"{self.contract}: joint_names", joint_names)
        ordered = tuple(name for name in robot.joint_names if name in joint_names)
        if ordered != joint_names:
            raise ValueError(
                f"{self.contract}: joint_names must be joints of the robot in its order, "
                f"{list(robot.joint_names)}, got {list(joint_names)}"
            )
        self.robot = robot
        self.joint_names = joint_names
        first = robot.joint_names.index(joint_names[0])
        self.columns: slice | list[int] = [robot.joint_names.index(name) for name in joint_names]
        if self.columns == list(range(first, first + len(joint_names))):
            self.columns = slice(first, first + len(joint_names))
        self.limits = np.array(robot.joint_limits, np.float64)[self.columns]

    @abstractmethod
    def targets(self, requests: Floats, rows: Rows) -> Floats:
        """Return positions ``[n, k]`` of the term's joints for accepted requests ``[n, w]``.

        A row depends on nothing but its own request and robot, to the bit.
        """

    def within_limits(self, positions: Floats) -> Floats:
        """Hold joints at their limits. What a request asks for beyond them does not happen; it is no error."""
        held: Floats = np.clip(positions, self.limits[:, 0], self.limits[:, 1])
        return held

    def _shares(self, features: tuple[str, ...], units: tuple[str, ...]) -> None:
        """Declare requests in -1 to 1."""
        self.feature_names, self.units = features, units
        self.low, self.high = (-1.0,) * len(features), (1.0,) * len(features)


class RelativeEndEffectorPose(ActionTerm):
    """``eef_pose.relative@1``: six shares, -1 to 1, of the largest motion in one step, in the world frame.

    Three move the end effector from where it is measured, three turn it about the world's axes. One step of damped
    least squares finds the joint targets; a posture, where one is given, is what the joints are drawn to as far as
    the end effector does not notice.

    Args:
        robot: Measured when a request is processed.
        joint_names: The arm.
        translation_scale_m: Travel that a request of 1 asks for.
        rotation_scale_rad: Rotation that a request of 1 asks for.
        damping: Added to the diagonal; larger is calmer near singular postures, and slower.
        posture: Joint positions, one per joint; None for no pull.
        posture_gain: Share of the way to it per step; positive where there is a posture.
    """

    contract = "eef_pose.relative@1"

    def __init__(
        self,
        robot: Robot,
        joint_names: tuple[str, ...],
        *,
        translation_scale_m: float,
        rotation_scale_rad: float,
        damping: float = 1e-4,
        posture: tuple[float, ...] | None = None,
        posture_gain: float = 0.05,
    ) -> None:
        super().__init__(robot, joint_names)
        move, turn = _positive(self, translation_scale_m=translation_scale_m, rotation_scale_rad=rotation_scale_rad)
        damping, gain = _positive(self, damping=damping, posture_gain=posture_gain)
        self._shares(_MOTION_NAMES, (f"{move:g} m",) * 3 + (f"{turn:g} rad",) * 3)
        self._scale = np.array([move] * 3 + [turn] * 3)
        self._damping = damping * np.eye(6)
        self._gain = gain
        self.settings = {"translation_scale_m": move, "rotation_scale_rad": turn, "damping": damping, "frame": "world"}
        self._posture: Floats | None = None
        if posture is not None:
            self._posture = np.array(per_joint(self, "posture", posture))
            self.settings = {**self.settings, "posture": tuple(self._posture.tolist()), "posture_gain": gain}

    def targets(self, requests: Floats, rows: Rows) -> Floats:
        """See `ActionTerm.targets`."""
        jacobian = self.robot.jacobian(rows, self.joint_names)
        angles = self.robot.joint_positions(rows)[:, self.columns]
        transposed = jacobian.transpose(0, 2, 1)
        wanted = (requests * self._scale)[:, :, None]
        pull: Floats | float = 0.0
        if self._posture is not None:
            pull = self._gain * (self._posture - angles)
            wanted = wanted - jacobian @ pull[:, :, None]
        motion = (transposed @ np.linalg.solve(jacobian @ transposed + self._damping, wanted))[:, :, 0]
        return self.within_limits(angles + motion + pull)


class ParallelGripper(ActionTerm):
    """``gripper.parallel@1``: one number, -1 to 1, that lies linearly between two positions of the gripper's joints.

    Which end is open is told by the two positions, not by the contract; they are in the descriptor's settings.

    Args:
        robot: Of the joints.
        joint_names: The gripper; all of them get the same share of their way.
        at_minus_one: Positions for a request of -1, within the joint limits: one number, or one per joint.
        at_plus_one: Positions for a request of 1.
    """

    contract = "gripper.parallel@1"

    def __init__(
        self,
        robot: Robot,
        joint_names: tuple[str, ...],
        *,
        at_minus_one: float | tuple[float, ...],
        at_plus_one: float | tuple[float, ...],
    ) -> None:
        super().__init__(robot, joint_names)
        self._shares(("gripper",), ("share",))
        ends = {"at_minus_one": at_minus_one, "at_plus_one": at_plus_one}
        self._ends: list[Floats] = []
        for name, value in ends.items():
            end = np.array(per_joint(self, name, value))
            if not np.array_equal(self.within_limits(end), end):
                raise ValueError(f"{self.contract}: {name} must be within {self.limits.tolist()}, got {value}")
            self._ends.append(end)
        if np.array_equal(self._ends[0], self._ends[1]):
            raise ValueError(f"{self.contract}: at_minus_one and at_plus_one must differ, got {at_plus_one} twice")
        self.settings = {name: tuple(end.tolist()) for name, end in zip(ends, self._ends, strict=True)}

    def targets(self, requests: Floats, rows: Rows) -> Floats:
        """See `ActionTerm.targets`."""
        low, high = self._ends
        return ((1.0 - requests) * low + (1.0 + requests) * high) * 0.5


class JointPosition(ActionTerm):
    """``joint_position.absolute@1``: positions of the joints, in radians or metres, within their limits.

    Args:
        robot: Its joint limits are the bounds, rounded inwards to float32.
        joint_names: One column each.
        unit: Of the joints, ``"rad"`` or ``"m"``.
    """

    contract = "joint_position.absolute@1"

    def __init__(self, robot: Robot, joint_names: tuple[str, ...], *, unit: str = "rad") -> None:
        super().__init__(robot, joint_names)
        if not np.isfinite(self.limits).all():
            raise ValueError(f"{self.contract}: the joints must have finite limits, got {self.limits.tolist()}")
        self.feature_names, self.units = joint_names, (unit,) * len(joint_names)
        self.low = tuple(_inward(float(bound), math.inf) for bound in self.limits[:, 0])
        self.high = tuple(_inward(float(bound), -math.inf) for bound in self.limits[:, 1])
        self.settings = {}

    def targets(self, requests: Floats, rows: Rows) -> Floats:
        """See `ActionTerm.targets`."""
        return requests


class RelativeJointPosition(ActionTerm):
    """``joint_position.relative@1``: per joint a share, -1 to 1, of the largest step from its measured position.

    Args:
        robot: Measured when a request is processed.
        joint_names: One column each.
        scale: Largest step, positive: one number, or one per joint, in the joint's unit.
        unit: Of the joints, ``"rad"`` or ``"m"``.
    """

    contract = "joint_position.relative@1"

    def __init__(
        self, robot: Robot, joint_names: tuple[str, ...], *, scale: float | tuple[float, ...], unit: str = "rad"
    ) -> None:
        super().__init__(robot, joint_names)
        scales = per_joint(self, "scale", scale)
        for value in scales:
            _positive(self, scale=value)
        self._scale = np.array(scales)
        self._shares(joint_names, tuple(f"{value:g} {unit}" for value in scales))
        self.settings = {"scale": scales}

    def targets(self, requests: Floats, rows: Rows) -> Floats:
        """See `ActionTerm.targets`."""
        return self.within_limits(self.robot.joint_positions(rows)[:, self.columns] + requests * self._scale)


def per_joint(term: ActionTerm, name: str, value: Any) -> tuple[float, ...]:
    """Return one finite number per joint of a term.

    Raises:
        TypeError, ValueError: If ``value`` is neither a number nor one per joint.
    """
    count = len(term.joint_names)
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * count
    if len(values) != count:
        raise ValueError(f"{term.contract}: {name} must be a number or {count}, one per joint, got {value!r}")
    return tuple(check_finite(f"{term.contract}: {name}", item, above=-math.inf) for item in values)


def _positive(term: ActionTerm, **settings: float) -> list[float]:
    return [check_finite(f"{term.contract}: {name}", value) for name, value in settings.items()]


def _inward(bound: float, towards: float) -> float:
    """The float32 nearest to a bound that is not beyond it."""
    rounded = np.float32(bound)
    beyond = float(rounded) < bound if towards > 0 else float(rounded) > bound
    return float(np.nextafter(rounded, np.float32(towards)) if beyond else rounded)
