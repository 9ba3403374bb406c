"""P Franka scenes in one process, as one natively batched Gymnasium environment.

Shapes: ``P`` scenes (rows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from odstream.envs.franka.actions import EXPERT_ACTION_SPEC, JOINT_NAMES, franka_action_manager
from odstream.envs.franka.camera import Camera
from odstream.envs.franka.control import ACTION_DIM
from odstream.envs.franka.observation import OBSERVATION_DIM, observe
from odstream.envs.franka.scenario import check_reset_kind, draw_scenario
from odstream.envs.franka.scene import ARM_JOINTS, FINGER_OPENING_M, PHYSICS_TIMESTEP_S
from odstream.envs.franka.simulation import Pose, Simulation
from odstream.envs.franka.success import SuccessJudge, goal_distance_m
from odstream.producers.actions import ActionSemantics, ControllerAction

CONTROL_PERIOD_S = 0.05
INSTRUCTION = "pick up the red cube and place it on the green goal"
_SUBSTEPS = round(CONTROL_PERIOD_S / PHYSICS_TIMESTEP_S)

Info = dict[str, Any]
Batch = NDArray[np.float32]


class FrankaPickPlace(VectorEnv[Batch, Batch, NDArray[Any]]):
    """Pick up a cube and place it on a goal, in P scenes at once.

    Observation ``[P, 51] float32``: see `odstream.envs.franka.observation`. Action ``[P, 7] float32`` in [-1, 1], a
    request that ``action_manager`` turns into servo targets, or those themselves as a `ControllerAction` ``[P, 8]``:
    see `odstream.envs.franka.actions`; it is held for 50 ms. A row terminates when it is solved
    (`odstream.envs.franka.success`) and is truncated after ``max_episode_steps``. Reward: 1 when solved, else 0.

    Rows are never reset by themselves. A row that has ended, or was never reset, is idle: its action is
    ignored, its observation stays, it costs no physics and reports no second end.

    Info, arrays over rows: ``success``, ``distance`` (metres from cube to goal), ``lifted`` (ever), ``grip_failed``.

    Determinism: a scene is a function of its seed and its actions, to the bit, in any row and at any P, on one
    version of MuJoCo. Across versions it is not.

    Args:
        num_envs: P.
        reset: ``"randomised"`` or ``"reference"``: how far scenes differ.
        failure_rate: Share of scenes, 0 to 1, in which the gripper loses the cube on the way. Seeds choose which.
        max_episode_steps: Control steps until truncation.
        action_config: Settings of the action manager; see `odstream.envs.franka.actions.franka_action_manager`.
        render_mode: None or ``"rgb_array"`` (then `render` draws every row).

    Raises:
        ValueError: If a setting is out of range; the message names it.
    """

    metadata: Info = {  # noqa: RUF012 (the base class declares it this way)
        "render_modes": ["rgb_array"],
        "render_fps": round(1 / CONTROL_PERIOD_S),
        "autoreset_mode": AutoresetMode.DISABLED,
    }
    _camera: Camera | None = None
    expert_action_spec = EXPERT_ACTION_SPEC
    """Layout of a recorded command."""
    joint_names = JOINT_NAMES
    """The controlled joints in order."""
    rollout_action_semantics: ActionSemantics = "expert_controller_command"
    """What a producer records; the environment takes requests and commands in either case."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        reset: str = "randomised",
        failure_rate: float = 0.0,
        max_episode_steps: int = 200,
        action_config: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.num_envs = _positive_integer("num_envs", num_envs)
        self.max_episode_steps = _positive_integer("max_episode_steps", max_episode_steps)
        self.failure_rate = _share("failure_rate", failure_rate)
        self.reset_kind = check_reset_kind(reset)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.render_mode = render_mode
        self.step_dt = CONTROL_PERIOD_S
        self.instruction = INSTRUCTION
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION_DIM,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (num_envs, OBSERVATION_DIM), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (num_envs, ACTION_DIM), np.float32)
        self._simulation = Simulation(num_envs)
        self.action_manager = franka_action_manager(self._simulation, num_envs, action_config or {})
        self._judge = SuccessJudge(num_envs, CONTROL_PERIOD_S)
        self._active = np.zeros(num_envs, np.bool_)
        self._success = np.zeros(num_envs, np.bool_)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._grip_fails_at = np.full(num_envs, np.inf)
        self._grip_failed = np.zeros(num_envs, np.bool_)
        self._way_m = np.ones(num_envs)

    @property
    def active(self) -> NDArray[np.bool_]:
        """``[P]`` rows whose episode is under way."""
        return self._active.copy()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Batch, Info]:
        """Start new episodes, in all rows or in those of ``options["reset_mask"]``.

        Args:
            seed: One seed per row (None: drawn from ``np_random``), or one number: row ``i`` gets ``seed + i``.
            options: ``reset_mask``: ``[P] bool``, at least one of them true.

        Returns:
            Observations ``[P, 51]`` and info of all rows.

        Raises:
            ValueError: If ``seed`` or ``options`` do not fit. Nothing was reset.
        """
        mask = self._reset_mask(options)
        seeds = self._row_seeds(seed, mask)
        for row in np.flatnonzero(mask).tolist():
            scenario = draw_scenario(seeds[row], reset=self.reset_kind, failure_rate=self.failure_rate)
            self._simulation.reset(row, scenario)
            self._judge.reset(row)
            self._grip_fails_at[row] = np.inf if scenario.grip_fails_at is None else scenario.grip_fails_at
            self._way_m[row] = np.hypot(*(scenario.goal - scenario.cube)[:2])
        self._active |= mask
        for flags in (self._success, self._grip_failed):
            flags[mask] = False
        self._elapsed[mask] = 0
        return observe(self._simulation.state), self._info()

    def step(
        self, actions: Batch | ControllerAction
    ) -> tuple[Batch, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Apply requests ``[P, 7]`` or a command ``[P, 8]`` to the active rows for one control period.

        Raises:
            ValueError: If the shape or the joints are wrong, or an active row's request is not finite or leaves
                [-1, 1]. No row was stepped.
        """
        stepped = self._active.copy()
        rows = np.flatnonzero(stepped)
        if isinstance(actions, ControllerAction):
            targets = self._checked_command(actions)[rows]
        else:
            targets = self.action_manager.process(self._of_rows(actions, rows), rows).positions
        fingers = np.where(self._grip_failed[rows], FINGER_OPENING_M, targets[:, ARM_JOINTS])
        self._simulation.advance(rows, targets[:, :ARM_JOINTS], fingers, _SUBSTEPS)
        return self._outcome(stepped)

    def _outcome(
        self, stepped: NDArray[np.bool_]
    ) -> tuple[Batch, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        state = self._simulation.state
        self._elapsed += stepped
        self._success = self._judge.judge(state, stepped)
        left = np.hypot(*(state.goal - state.cube_position)[:, :2].T)
        self._grip_failed |= stepped & self._judge.lifted & (1.0 - left / self._way_m > self._grip_fails_at)
        terminated = stepped & self._success
        truncated = stepped & ~terminated & (self._elapsed >= self.max_episode_steps)
        self._active = stepped & ~terminated & ~truncated
        return observe(state), terminated.astype(np.float64), terminated, truncated, self._info()

    def pose(self, row: int) -> Pose:
        """Return what a picture of ``row`` would show now, for a `Camera` to draw later."""
        return self._simulation.pose(row)

    def picture(self, row: int) -> NDArray[np.uint8]:
        """Return ``[256, 256, 3]`` RGB of one row.

        Raises:
            MissingExtraError: If no renderer is available; the message says what to install.
        """
        if self._camera is None:
            self._camera = Camera()
        return self._camera.picture(self.pose(row))

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Return a `picture` of every row, or None without a render mode."""
        return None if self.render_mode is None else tuple(self.picture(row) for row in range(self.num_envs))

    def close_extras(self, **_: Any) -> None:
        """Free the renderer, if there is one."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None

    def _info(self) -> Info:
        return {
            "success": self._success.copy(),
            "distance": goal_distance_m(self._simulation.state),
            "lifted": self._judge.lifted.copy(),
            "grip_failed": self._grip_failed.copy(),
        }

    def _of_rows(self, actions: Batch, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        requests = np.asarray(actions, np.float64)
        if requests.shape != (self.num_envs, ACTION_DIM):
            raise ValueError(f"actions must have shape {(self.num_envs, ACTION_DIM)}, got {requests.shape}")
        return requests[rows]

    def _checked_command(self, command: ControllerAction) -> NDArray[np.float64]:
        wanted = (self.num_envs, len(JOINT_NAMES))
        fits = command.positions.shape == wanted and command.joint_names == JOINT_NAMES
        if not fits or command.velocities is not None:
            raise ValueError(
                f"a command must be positions {wanted} of the joints {list(JOINT_NAMES)}, got "
                f"{command.positions.shape} of {list(command.joint_names)}"
                + ("" if command.velocities is None else ", with velocities")
            )
        return command.positions

    def _reset_mask(self, options: Mapping[str, Any] | None) -> NDArray[np.bool_]:
        unknown = set(options or {}) - {"reset_mask"}
        if unknown:
            raise ValueError(f"options may hold 'reset_mask' only, got {sorted(unknown)}")
        if not options:
            return np.ones(self.num_envs, np.bool_)
        mask = np.asarray(options["reset_mask"])
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"options['reset_mask'] must be [{self.num_envs}] bool with a true entry, got {mask!r}")
        return mask

    def _row_seeds(self, seed: int | Sequence[int | None] | None, mask: NDArray[np.bool_]) -> list[int]:
        seeds: list[int | None]
        if seed is None:
            seeds = [None] * self.num_envs
        elif isinstance(seed, (int, np.integer)):
            seeds = [int(seed) + row for row in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed must hold one entry per row ({self.num_envs}), got {len(seeds)}")
        return [self._row_seed(row, value) if mask[row] else 0 for row, value in enumerate(seeds)]

    def _row_seed(self, row: int, seed: int | None) -> int:
        if seed is None:
            return int(self.np_random.integers(2**63))
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed} for row {row}")
        return int(seed)


def _positive_integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return value


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)
