"""The 51 features of an observation: which slice holds what, and how it is put together.

Shapes: ``P`` scenes. Lengths in metres, angles in radians, velocities per second, all in the world frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OBSERVATION_DIM = 51

JOINT_POSITIONS = slice(0, 9)
"""Seven arm angles, two finger openings."""
JOINT_VELOCITIES = slice(9, 18)
"""Their velocities."""
TCP_POSITION = slice(18, 21)
"""Tool centre point: the spot between the finger tips."""
TCP_ROTATION = slice(21, 27)
"""First two columns of the hand's rotation matrix, one after the other."""
CUBE_POSITION = slice(27, 30)
"""Centre of the cube."""
CUBE_ROTATION = slice(30, 36)
"""First two columns of the cube's rotation matrix, one after the other."""
GOAL_POSITION = slice(36, 39)
"""Where the centre of the cube shall come to rest."""
TCP_TO_CUBE = slice(39, 42)
"""Cube minus tool centre point."""
CUBE_TO_GOAL = slice(42, 45)
"""Goal minus cube."""
CUBE_VELOCITY = slice(45, 51)
"""Linear velocity in the world frame, angular velocity in the cube's frame."""


@dataclass(frozen=True, slots=True)
class SceneState:
    """What is measured in P scenes; the arrays are reused and change with every step."""

    joint_positions: NDArray[np.float64]
    """``[P, 9]``"""
    joint_velocities: NDArray[np.float64]
    """``[P, 9]``"""
    tcp_position: NDArray[np.float64]
    """``[P, 3]``"""
    tcp_rotation: NDArray[np.float64]
    """``[P, 9]`` row-major rotation matrix"""
    cube_position: NDArray[np.float64]
    """``[P, 3]``"""
    cube_rotation: NDArray[np.float64]
    """``[P, 9]`` row-major rotation matrix"""
    cube_velocity: NDArray[np.float64]
    """``[P, 6]``"""
    goal: NDArray[np.float64]
    """``[P, 3]``"""

    @classmethod
    def zeros(cls, scenes: int) -> SceneState:
        """Return the state of ``scenes`` scenes that were never reset."""
        return cls(*(np.zeros((scenes, width)) for width in (9, 9, 3, 9, 3, 9, 6, 3)))


def observe(state: SceneState) -> NDArray[np.float32]:
    """Return a new observation ``[P, 51]``."""
    features = np.empty((len(state.goal), OBSERVATION_DIM), np.float32)
    features[:, JOINT_POSITIONS] = state.joint_positions
    features[:, JOINT_VELOCITIES] = state.joint_velocities
    features[:, TCP_POSITION] = state.tcp_position
    features[:, TCP_ROTATION] = state.tcp_rotation[:, _TWO_COLUMNS]
    features[:, CUBE_POSITION] = state.cube_position
    features[:, CUBE_ROTATION] = state.cube_rotation[:, _TWO_COLUMNS]
    features[:, GOAL_POSITION] = state.goal
    features[:, TCP_TO_CUBE] = state.cube_position - state.tcp_position
    features[:, CUBE_TO_GOAL] = state.goal - state.cube_position
    features[:, CUBE_VELOCITY] = state.cube_velocity
    return features


def rotation_columns(six: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the three axes of a rotation from its six features.

    Args:
        six: ``[P, 6]``, as in `TCP_ROTATION`.

    Returns:
        ``[P, 3, 3]``; ``[:, k]`` is the k-th axis (column of the rotation matrix), in world coordinates.
    """
    columns = np.empty((len(six), 3, 3))
    columns[:, 0] = six[:, :3]
    columns[:, 1] = six[:, 3:]
    columns[:, 2] = cross(columns[:, 0], columns[:, 1])
    return columns


def cross(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cross products of vectors ``[..., 3]``: what `numpy.cross` returns, in a quarter of the time."""
    product: NDArray[np.float64] = left[..., _NEXT] * right[..., _AFTER] - left[..., _AFTER] * right[..., _NEXT]
    return product


_NEXT, _AFTER = [1, 2, 0], [2, 0, 1]
_TWO_COLUMNS = [0, 3, 6, 1, 4, 7]
"""Where the first two columns lie in a row-major 3 by 3 matrix."""
