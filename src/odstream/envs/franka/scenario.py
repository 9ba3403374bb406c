"""What one seed means: where cube and goal lie, and whether something goes wrong in this scene.

A scenario depends on its seed and nothing else, so a scene is the same in every row, process and batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from odstream.envs.franka.scene import ARM_JOINTS, CUBE_HALF_SIZE_M, HOME_POSTURE

ResetKind = Literal["randomised", "reference"]
"""``randomised``: cube +-10 cm and +-40 degrees, goal +-8 by +-5 cm. ``reference``: cube +-4 cm, all else fixed."""

CUBE_CENTRE_M = (0.5, -0.1)
GOAL_CENTRE_M = (0.5, 0.2)
_JOINT_NOISE_RAD = 0.02
_FAULT_STREAM = 1
"""Faults are drawn from a stream of their own: the scene's geometry is the same at every failure rate."""


@dataclass(frozen=True, slots=True)
class _Spread:
    cube_m: float
    yaw_rad: float
    goal_m: tuple[float, float]


_SPREADS: dict[ResetKind, _Spread] = {
    "randomised": _Spread(cube_m=0.10, yaw_rad=np.deg2rad(40.0).item(), goal_m=(0.08, 0.05)),
    "reference": _Spread(cube_m=0.04, yaw_rad=0.0, goal_m=(0.0, 0.0)),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Start of one episode."""

    joints: NDArray[np.float64]
    """``[7]`` arm angles, radians"""
    cube: NDArray[np.float64]
    """``[3]`` centre of the cube, metres"""
    cube_yaw: float
    """Rotation of the cube about the vertical, radians"""
    goal: NDArray[np.float64]
    """``[3]`` where the centre of the cube shall come to rest, metres"""
    grip_fails_at: float | None
    """Share of the way to the goal after which the gripper lets go; None: it works."""


def check_reset_kind(reset: object) -> ResetKind:
    """Return ``reset`` if it is one of the known kinds.

    Raises:
        ValueError: If not.
    """
    for kind in _SPREADS:
        if reset == kind:
            return kind
    raise ValueError(f"reset must be one of {', '.join(_SPREADS)}, got {reset!r}")


def draw_scenario(seed: int, *, reset: ResetKind = "randomised", failure_rate: float = 0.0) -> Scenario:
    """Draw the scene that belongs to ``seed``.

    Args:
        seed: At least 0.
        reset: How far scenes differ.
        failure_rate: Share of scenes, 0 to 1, in which the gripper loses the cube on the way.
    """
    spread = _SPREADS[reset]
    rng = np.random.default_rng(seed)
    joints = np.array(HOME_POSTURE) + rng.uniform(-_JOINT_NOISE_RAD, _JOINT_NOISE_RAD, ARM_JOINTS)
    cube = np.array(CUBE_CENTRE_M) + rng.uniform(-1.0, 1.0, 2) * spread.cube_m
    yaw = rng.uniform(-1.0, 1.0) * spread.yaw_rad
    goal = np.array(GOAL_CENTRE_M) + rng.uniform(-1.0, 1.0, 2) * np.array(spread.goal_m)
    fault = np.random.default_rng([seed, _FAULT_STREAM])
    fails, fails_at = fault.random() < failure_rate, fault.uniform(0.2, 0.6)
    return Scenario(
        joints=joints,
        cube=np.append(cube, CUBE_HALF_SIZE_M),
        cube_yaw=float(yaw),
        goal=np.append(goal, CUBE_HALF_SIZE_M),
        grip_fails_at=float(fails_at) if fails else None,
    )
