"""P scenes as P ``MjData`` on one ``MjModel``: put them into a state, move them on, measure them.

Shapes: ``P`` scenes (rows), ``n`` selected rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from odstream.envs.franka.observation import SceneState
from odstream.envs.franka.scenario import Scenario
from odstream.envs.franka.scene import ARM_JOINTS, FINGER_OPENING_M, scene_xml

_SERVOED = ARM_JOINTS + 2
"""Arm joints and fingers come first among the positions and velocities; the cube's free joint follows."""


@dataclass(frozen=True, slots=True)
class Pose:
    """All that a picture shows."""

    positions: NDArray[np.float64]
    """Generalised positions of the model"""
    goal: NDArray[np.float64]
    """``[3]``"""


class Simulation:
    """Physics of P independent scenes. Rows never influence one another."""

    def __init__(self, scenes: int) -> None:
        self._model = mujoco.MjModel.from_xml_string(scene_xml())
        self._tcp = self._model.site("tcp").id
        cube = self._model.body("cube").id
        self._scenes = [mujoco.MjData(self._model) for _ in range(scenes)]
        self._views = [_Views.of(data, self._tcp, cube) for data in self._scenes]
        self._jacobian = np.zeros((scenes, 6, self._model.nv))
        self.joint_limits: NDArray[np.float64] = self._model.jnt_range[:ARM_JOINTS].copy()
        """``[7, 2]`` radians"""
        self.state = SceneState.zeros(scenes)
        """Measured after the latest reset or advance of each row."""

    def reset(self, row: int, scenario: Scenario) -> None:
        """Put ``row`` at the start of a scenario, at rest."""
        data = self._scenes[row]
        mujoco.mj_resetData(self._model, data)
        half_yaw = scenario.cube_yaw / 2
        data.qpos[:ARM_JOINTS] = scenario.joints
        data.qpos[ARM_JOINTS:_SERVOED] = FINGER_OPENING_M
        data.qpos[_SERVOED:] = [*scenario.cube, np.cos(half_yaw), 0.0, 0.0, np.sin(half_yaw)]
        data.ctrl[:ARM_JOINTS] = scenario.joints
        data.ctrl[ARM_JOINTS] = FINGER_OPENING_M
        mujoco.mj_forward(self._model, data)
        self.state.goal[row] = scenario.goal
        self._measure(row)

    def jacobian(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``[n, 6, 7]``: how the arm's joints move the hand now."""
        for row in rows:
            of_row = self._jacobian[row]
            mujoco.mj_jacSite(self._model, self._scenes[row], of_row[:3], of_row[3:], self._tcp)
        return self._jacobian[rows, :, :ARM_JOINTS]

    def advance(
        self, rows: NDArray[np.int64], arm: NDArray[np.float64], fingers: NDArray[np.float64], substeps: int
    ) -> None:
        """Hold servo targets (``arm [n, 7]``, ``fingers [n]``) for some physics steps, then measure."""
        for row, arm_target, finger_target in zip(rows, arm, fingers, strict=True):
            data, control = self._scenes[row], self._views[row].control
            control[:ARM_JOINTS] = arm_target
            control[ARM_JOINTS] = finger_target
            mujoco.mj_step(self._model, data, substeps)
            mujoco.mj_kinematics(self._model, data)  # a step leaves poses one substep behind the positions
            mujoco.mj_comPos(self._model, data)
            self._measure(row)

    def pose(self, row: int) -> Pose:
        """Return an owned copy of what ``row`` looks like now."""
        return Pose(self._views[row].positions.copy(), self.state.goal[row].copy())

    def _measure(self, row: int) -> None:
        view, state = self._views[row], self.state
        state.joint_positions[row] = view.positions[:_SERVOED]
        state.joint_velocities[row] = view.velocities[:_SERVOED]
        state.cube_position[row] = view.positions[_SERVOED : _SERVOED + 3]
        state.cube_velocity[row] = view.velocities[_SERVOED:]
        state.tcp_position[row] = view.tcp_position
        state.tcp_rotation[row] = view.tcp_rotation
        state.cube_rotation[row] = view.cube_rotation


@dataclass(frozen=True, slots=True)
class _Views:
    """Arrays inside one ``MjData``, looked up once: attribute access costs more than the copy."""

    positions: NDArray[np.float64]
    velocities: NDArray[np.float64]
    control: NDArray[np.float64]
    tcp_position: NDArray[np.float64]
    tcp_rotation: NDArray[np.float64]
    cube_rotation: NDArray[np.float64]

    @classmethod
    def of(cls, data: Any, tcp: int, cube: int) -> _Views:
        return cls(data.qpos, data.qvel, data.ctrl, data.site_xpos[tcp], data.site_xmat[tcp], data.xmat[cube])
