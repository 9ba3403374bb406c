"""When the task is solved: the cube was carried, lies on the goal, and the hand has let go and gone.

Shapes: ``P`` scenes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from odstream.envs.franka.observation import SceneState
from odstream.envs.franka.scene import CUBE_HALF_SIZE_M

LIFT_HEIGHT_M = 0.05
"""The cube must once have been this far above the table: pushing it there does not count."""
GOAL_TOLERANCE_M = 0.03
TABLE_TOLERANCE_M = 0.012
OPEN_FINGER_M = 0.035
WITHDRAWN_M = 0.10
STILL_LINEAR_M_PER_S = 0.05
STILL_ANGULAR_RAD_PER_S = 0.2
HOLD_S = 0.3
"""How long all of it must hold."""


def goal_distance_m(state: SceneState) -> NDArray[np.float64]:
    """Return the distance ``[P]`` of each cube's centre to where it shall rest."""
    return _length(state.cube_position - state.goal)


def is_placed(state: SceneState) -> NDArray[np.bool_]:
    """Return ``[P]``: the cube rests at the goal, the fingers are open and away from it."""
    placed: NDArray[np.bool_] = (
        (goal_distance_m(state) <= GOAL_TOLERANCE_M)
        & (np.abs(state.cube_position[:, 2] - CUBE_HALF_SIZE_M) <= TABLE_TOLERANCE_M)
        & (state.joint_positions[:, 7:].min(axis=1) >= OPEN_FINGER_M)
        & (_length(state.tcp_position - state.cube_position) >= WITHDRAWN_M)
        & (_length(state.cube_velocity[:, :3]) < STILL_LINEAR_M_PER_S)
        & (_length(state.cube_velocity[:, 3:]) < STILL_ANGULAR_RAD_PER_S)
    )
    return placed


class SuccessJudge:
    """Remembers per scene whether the cube was lifted and for how many steps it has been in place."""

    def __init__(self, scenes: int, control_period_s: float) -> None:
        self.lifted = np.zeros(scenes, np.bool_)
        """``[P]`` whether the cube was ever carried."""
        self._steps_in_place = np.zeros(scenes, np.int64)
        self._steps_to_hold = int(np.ceil(HOLD_S / control_period_s - 1e-9))

    def reset(self, row: int) -> None:
        """Forget what was seen in ``row``."""
        self.lifted[row] = False
        self._steps_in_place[row] = 0

    def judge(self, state: SceneState, stepped: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Take one more step of the scenes ``stepped`` into account; return ``[P]`` whether each is solved."""
        self.lifted |= stepped & (state.cube_position[:, 2] >= CUBE_HALF_SIZE_M + LIFT_HEIGHT_M)
        in_place = np.where(self.lifted & is_placed(state), self._steps_in_place + 1, 0)
        self._steps_in_place = np.where(stepped, in_place, self._steps_in_place)
        return self._steps_in_place >= self._steps_to_hold


def _length(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.sqrt((vectors * vectors).sum(axis=1))
    return lengths
