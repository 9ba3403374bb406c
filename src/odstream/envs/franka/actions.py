"""Requests and controller commands of the Franka task.

A request ``[7]`` is six shares of the hand's largest step, then the gripper; see `odstream.envs.franka.control`. A
command ``[8]`` is a target per servo: seven joints, then the opening of both fingers, which one servo moves.

Shapes: ``P`` scenes, ``n`` selected rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.envs.franka.control import ROTATION_SCALE_RAD, TRANSLATION_SCALE_M
from odstream.envs.franka.scene import ARM_JOINTS, FINGER_OPENING_M, HOME_POSTURE
from odstream.envs.franka.simulation import Simulation
from odstream.producers.action_manager import ActionManager
from odstream.producers.action_terms import ParallelGripper, RelativeEndEffectorPose
from odstream.producers.actions import ExpertActionSpec

__all__ = ["ACTION_CONTRACTS", "EXPERT_ACTION_SPEC", "JOINT_NAMES", "FrankaRobot", "franka_action_manager"]

ACTION_CONTRACTS = (RelativeEndEffectorPose.contract, ParallelGripper.contract)
"""Of a request, in order: what an engine that records requests is configured with."""
_ARM = tuple(f"joint{number}" for number in range(1, ARM_JOINTS + 1))
_GRIPPER = ("fingers",)
JOINT_NAMES = (*_ARM, *_GRIPPER)
"""The controlled joints in the order of a command; ``fingers`` is the travel of each finger in metres."""
EXPERT_ACTION_SPEC = ExpertActionSpec(joint_names=JOINT_NAMES)
"""Layout of a recorded command."""
_SETTINGS: Mapping[str, float] = {
    "translation_scale_m": TRANSLATION_SCALE_M,
    "rotation_scale_rad": ROTATION_SCALE_RAD,
    "damping": 1e-4,
    "posture_gain": 0.05,
}


class FrankaRobot:
    """A simulation, as action terms see it."""

    joint_names = JOINT_NAMES

    def __init__(self, simulation: Simulation, num_envs: int) -> None:
        self.num_envs = num_envs
        self.joint_limits = np.concatenate([simulation.joint_limits, [[0.0, FINGER_OPENING_M]]])
        self._simulation = simulation

    def joint_positions(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``[n, 8]``: angles of the arm, and the travel of the left finger, which the right one follows."""
        return self._simulation.state.joint_positions[rows, : ARM_JOINTS + 1]

    def jacobian(self, rows: NDArray[np.int64], joint_names: tuple[str, ...]) -> NDArray[np.float64]:
        """Return ``[n, 6, 7]`` for the arm; the fingers do not move the tool centre point."""
        if joint_names != _ARM:
            raise ValueError(f"joint_names must be {_ARM}, got {joint_names}")
        return self._simulation.jacobian(rows)


def franka_action_manager(simulation: Simulation, num_envs: int, settings: Mapping[str, Any]) -> ActionManager:
    """Return what turns requests into commands.

    Args:
        simulation: P scenes.
        num_envs: P.
        settings: Of `RelativeEndEffectorPose`: ``translation_scale_m``, ``rotation_scale_rad``, ``damping``,
            ``posture_gain``; those left out have the task's values. The expert is written for the task's scales.

    Raises:
        TypeError, ValueError: If a setting is unknown or out of range.
    """
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise ValueError(f"action_config may hold {', '.join(_SETTINGS)}, got {', '.join(map(repr, unknown))}")
    robot = FrankaRobot(simulation, num_envs)
    arm = RelativeEndEffectorPose(robot, _ARM, posture=HOME_POSTURE, **{**_SETTINGS, **settings})
    hand = ParallelGripper(robot, _GRIPPER, at_minus_one=FINGER_OPENING_M, at_plus_one=0.0)
    return ActionManager({"arm": arm, "hand": hand}, robot)
