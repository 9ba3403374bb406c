"""Arms made of arrays, and environments around them whose every number is known in advance.

An `ArmEnv` has three joints ``a, b`` (rad, limits +-3) and ``g`` (m, 0 to 0.08) that go where they are told at once.
Requests have three columns: relative positions of ``a, b`` (scale 0.5 rad), then the gripper (-1: 0.08, 1: 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from odstream.producers.action_manager import ActionManager
from odstream.producers.action_terms import ParallelGripper, RelativeJointPosition
from odstream.producers.actions import ActionDescriptor, ControllerAction, ExpertActionSpec
from odstream.producers.demo import DemoSegment

JOINTS = ("a", "b", "g")
LIMITS = np.array([[-3.0, 3.0], [-3.0, 3.0], [0.0, 0.08]])
CONTRACTS = ("joint_position.relative@1", "gripper.parallel@1")
CONFIG = {"action_dim": 3, "action_semantics": "policy_request", "action_contracts": CONTRACTS}
STEPS = 4
"""Frames of every episode."""


class ArrayRobot:
    """P robots whose joints are where ``positions`` says."""

    def __init__(
        self,
        num_envs: int = 1,
        joint_names: tuple[str, ...] = JOINTS,
        limits: Any = LIMITS,
        jacobian: np.ndarray | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.joint_names = joint_names
        self.joint_limits = np.asarray(limits, np.float64)
        self.positions = np.zeros((num_envs, len(joint_names)))
        self._jacobian = jacobian

    def joint_positions(self, rows: np.ndarray) -> np.ndarray:
        return self.positions[rows]

    def jacobian(self, rows: np.ndarray, joint_names: tuple[str, ...]) -> np.ndarray:
        assert self._jacobian is not None
        return self._jacobian[rows]


def arm_manager(robot: ArrayRobot, scale: float = 0.5) -> ActionManager:
    terms = {
        "arm": RelativeJointPosition(robot, ("a", "b"), scale=scale),
        "hand": ParallelGripper(robot, ("g",), at_minus_one=0.08, at_plus_one=0.0),
    }
    return ActionManager(terms, robot)


class Arm:
    """What `ArmEnv` and `ArmVectorEnv` share. ``log`` is a file that gets a character per step."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        log: str | None = None,
        action_config: Mapping[str, Any] | None = None,
        flaw: str | None = None,
        mode: str = "position",
        joint_names: Sequence[str] = JOINTS,
    ) -> None:
        self.robot = ArrayRobot(num_envs)
        self.action_manager: Any = arm_manager(self.robot, **(action_config or {}))
        self.expert_action_spec: Any = ExpertActionSpec(joint_names=JOINTS, mode=mode)  # type: ignore[arg-type]
        self.joint_names: Any = tuple(joint_names)
        self.rollout_action_semantics = "expert_controller_command"
        self._log = log
        self.actions: list[Any] = []
        self.t = np.zeros(num_envs, np.int64)
        self.attempt = np.zeros(num_envs, np.int64)
        if flaw is not None:
            FLAWS[flaw](self)

    def command(self, action: Any) -> np.ndarray:
        """``[P, J]`` what the joints are told."""
        if self._log is not None:
            with open(self._log, "a", encoding="utf-8") as log:
                log.write(".")
        self.actions.append(action)
        if isinstance(action, ControllerAction):
            return np.atleast_2d(action.positions)
        return np.atleast_2d(arm_manager(self.robot).process(action).positions)

    def begin(self, rows: Any, seeds: Sequence[int | None]) -> None:
        for row, seed in zip(rows, seeds, strict=True):
            self.robot.positions[row] = [*np.random.default_rng(seed).uniform(-1, 1, 2), 0.08]
        self.t[rows] = 0
        self.attempt[rows] += 1

    def move(self, action: Any) -> None:
        self.robot.positions = self.command(action).copy()
        self.t += 1

    def observe(self) -> np.ndarray:
        """``[P, 5]`` float64: time, attempt, then the joints."""
        return np.column_stack([self.t, self.attempt, self.robot.positions])

    @property
    def over(self) -> np.ndarray:
        return self.t >= STEPS


class FixedManager:
    """A manager of another make, which describes itself wrongly."""

    def __init__(self, manager: ActionManager, descriptors: Sequence[ActionDescriptor]) -> None:
        self.descriptors = tuple(descriptors)
        self.action_space = manager.action_space
        self.process = manager.process


def _described(**changes: Any) -> Callable[[Arm], None]:
    def spoil(arm: Arm) -> None:
        first, second = arm.action_manager.descriptors
        arm.action_manager = FixedManager(arm.action_manager, [first, replace(second, **changes)])

    return spoil


def _set(name: str, value: Any) -> Callable[[Arm], None]:
    return lambda arm: setattr(arm, name, value)


def _stubborn(arm: Arm) -> None:
    arm.__class__ = type("Stubborn", (type(arm),), {"rollout_action_semantics": property(lambda self: "raw_torque")})  # type: ignore[assignment]


def _order(arm: Arm) -> None:
    first, second = arm.action_manager.descriptors
    values = {name: getattr(first, name) for name in ActionDescriptor.__dataclass_fields__} | {
        "joint_names": ("b", "a")
    }
    arm.action_manager = FixedManager(arm.action_manager, [ActionDescriptor(**values), second])


FLAWS: dict[str, Callable[[Arm], None]] = {
    "no manager": _set("action_manager", None),
    "foreign manager": _set("action_manager", object()),
    "no spec": _set("expert_action_spec", None),
    "float64 spec": _set("expert_action_spec", ExpertActionSpec(joint_names=JOINTS, dtype="float64")),
    "stubborn": _stubborn,
    "gap": _described(start=3, stop=4),
    "overlap": _described(start=1, stop=2),
    "short": lambda arm: setattr(
        arm, "action_manager", FixedManager(arm.action_manager, arm.action_manager.descriptors[:1])
    ),
    "other contract": _described(contract="gripper.parallel@2"),
    "term order": _order,
    "unknown joint": _described(joint_names=("x",)),
    "joint twice": _described(joint_names=("a",)),
    "no joint names": _set("joint_names", None),
    "spec order": _set("expert_action_spec", ExpertActionSpec(joint_names=("b", "a", "g"))),
    "other bounds": _described(high=(0.5,)),
}

OBSERVATION = gym.spaces.Box(-np.inf, np.inf, (5,), np.float64)
ACTION = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)


class ArmEnv(Arm, gym.Env[Any, Any]):
    """One arm; observation ``[5]``, reward the joint ``a``."""

    observation_space = OBSERVATION
    action_space = ACTION

    def __init__(self, **settings: Any) -> None:
        super().__init__(1, **settings)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.begin([0], [seed])
        return self.observe()[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.move(action)
        return self.observe()[0], float(self.robot.positions[0, 0]), bool(self.over[0]), False, {}


class ArmVectorEnv(Arm, VectorEnv[Any, Any, Any]):
    """P arms. Rows that are over stay where they are until they are reset, by the caller or, next step, by itself."""

    single_observation_space = OBSERVATION
    single_action_space = ACTION

    def __init__(self, num_envs: int = 2, *, autoreset: str = "Disabled", **settings: Any) -> None:
        Arm.__init__(self, num_envs, **settings)
        self.num_envs = num_envs
        self.mode = AutoresetMode(autoreset)
        self.metadata = {"autoreset_mode": self.mode}
        self.observation_space = gym.vector.utils.batch_space(OBSERVATION, num_envs)
        self.action_space = gym.vector.utils.batch_space(ACTION, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        seeds = [seed + row for row in range(self.num_envs)] if isinstance(seed, int) else seed
        rows = np.flatnonzero(mask)
        self.begin(rows, [None if seeds is None else seeds[row] for row in rows])
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        resetting = self.over
        self.move(action)
        if resetting.any():
            assert self.mode == AutoresetMode.NEXT_STEP
            self.begin(np.flatnonzero(resetting), [None] * int(resetting.sum()))
        rewards, over, never = self.robot.positions[:, 0].copy(), self.over, np.zeros(self.num_envs, np.bool_)
        if self.mode == AutoresetMode.SAME_STEP and over.any():
            self.begin(np.flatnonzero(over), [None] * int(over.sum()))
            return self.observe(), rewards, over, never, {"final_info": {}, "_final_info": over}
        return self.observe(), rewards, over, never, {}


# ---------------------------------------------------------------- who drives them


class Requests:
    """An expert. Requests ``[0.1, -0.2, 1]``, except that ``bad`` is put at ``element`` where ``at`` says.

    Args:
        bad: The number.
        element: Of the request.
        at: Frame.
        row: Row of a batch; None: all.
        attempts: On how many attempts of an environment.
        dtype: Of the request.
    """

    def __init__(
        self,
        bad: float = 0.0,
        *,
        element: int = 1,
        at: int | None = None,
        row: int | None = None,
        attempts: int = 1,
        dtype: str = "float32",
    ) -> None:
        self.bad, self.element, self.at, self.row, self.attempts, self.dtype = bad, element, at, row, attempts, dtype

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        batch = np.atleast_2d(observation)
        requests = np.tile(np.array([0.1, -0.2, 1.0], self.dtype), (len(batch), 1))
        if self.at is not None:
            hit = (batch[:, 0] == self.at) & (batch[:, 1] <= self.attempts)
            if self.row is not None:
                hit &= np.arange(len(batch)) == self.row
            requests[hit, self.element] = self.bad
        return requests if observation.ndim == 2 else requests[0]


class Commands:
    """An expert that commands the joints directly: ``a`` and ``g`` where they are, ``b`` at ``target``."""

    def __init__(self, target: float = 1.7949, *, velocities: bool = False, names: tuple[str, ...] = JOINTS) -> None:
        self.target, self.velocities, self.names = target, velocities, names

    def __call__(self, observation: np.ndarray) -> ControllerAction:
        positions = np.array(observation[..., 2:])
        positions[..., 1] = self.target
        return ControllerAction(positions, self.names, np.full_like(positions, 0.25) if self.velocities else None)


def flat_commands(observation: np.ndarray) -> np.ndarray:
    """Command the joints as one flat vector."""
    return np.asarray(Commands()(observation).positions)


def flat_commands_of_the_first_row(observation: np.ndarray) -> np.ndarray:
    """As `flat_commands`, and no numbers for the other rows."""
    commands = np.array(flat_commands(observation))
    commands[1:] = np.nan
    return commands


class Planned:
    """Makes an environment plan what an expert would do, in two segments; or in one list."""

    driver: Any
    policy: Any = "row_independent"

    def create_demo_segments(self) -> Iterator[DemoSegment]:
        for name in ("first", "second"):
            yield DemoSegment(actions=self._actions(), name=name, failure_policy=self.policy)

    def _actions(self) -> Iterator[Any]:
        for _ in range(STEPS // 2):
            observation = self.observe()  # type: ignore[attr-defined]
            yield self.driver(observation if isinstance(self, VectorEnv) else observation[0])


class PlannedArmEnv(Planned, ArmEnv):
    """`ArmEnv` with a plan."""

    def __init__(self, *, driver: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.driver = driver


class PlannedArmVectorEnv(Planned, ArmVectorEnv):
    """`ArmVectorEnv` with a plan."""

    def __init__(self, num_envs: int = 2, *, driver: Any, policy: str = "row_independent", **settings: Any) -> None:
        super().__init__(num_envs, **settings)
        self.driver, self.policy = driver, policy


class ListedArmEnv(ArmEnv):
    """`ArmEnv` with the one-segment protocol."""

    def __init__(self, *, driver: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.driver = driver

    def create_demo_action_list(self) -> Iterator[Any]:
        return (self.driver(self.observe()[0]) for _ in range(STEPS))
