"""Environments and experts whose every number is known in advance.

All of them live at module level, so they travel to other processes. What they have in common:

* the observation starts with ``t``, the index of the step within the episode (0 after a reset);
* ``attempt`` counts the resets of one environment, the first being 1;
* the reward of step ``t`` is ``t``;
* stepping an environment past its end, or before its first reset, raises `SteppedPastEndError`.

Use them as ``gym_config={"factory": CountingEnv, "kwargs": {"lengths": (3, 5)}, "expert": plus_hundred}``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from odstream.producers.demo import DemoSegment

RESET_REWARD = -999.0
"""Reward of a step that an autoresetting vector environment spent on a reset. No frame may carry it."""

SuccessRule = Literal["always", "never", "even"]


class SteppedPastEndError(RuntimeError):
    """Raised by a fake that is stepped although its episode is over, or before its first reset."""


class UnpicklableError(Exception):
    """An exception that cannot cross a process border."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


# ---------------------------------------------------------------- experts


def plus_hundred(observation: Any) -> np.ndarray:
    """Command ``t + 100``; works on one observation ``[D]`` and on a batch ``[P, D]``."""
    return np.asarray(observation, dtype=np.float32)[..., :1] + 100.0


def nested_plus_hundred(observation: Any) -> np.ndarray:
    """`plus_hundred` for `NestedEnv`."""
    return np.asarray(observation["arm"]["q"], dtype=np.float32)[..., :1] + 100.0


def always_zero(observation: Any) -> int:
    """Choose action 0 of a discrete action space."""
    return 0


def raising_expert(observation: Any) -> np.ndarray:
    """Raise ``ValueError("expert-42")`` at the third observation of an episode."""
    if observation[0] >= 2:
        raise ValueError("expert-42")
    return plus_hundred(observation)


def nan_expert(observation: Any) -> np.ndarray:
    """Command NaN from the third observation of an episode on."""
    return np.full(1, np.nan if observation[0] >= 2 else 0.0, dtype=np.float32)


def wide_expert(observation: Any) -> np.ndarray:
    """Return an action of three numbers where the environment takes one."""
    return np.zeros(3, dtype=np.float32)


class RememberingExpert:
    """Stateful: commands the number of its own calls since `reset`, plus 100."""

    def __init__(self) -> None:
        self.calls = 0
        self.begun_with: Any = None

    def reset(self, observation: Any) -> None:
        """Forget the previous episode."""
        self.calls = 0
        self.begun_with = np.array(observation)

    def __call__(self, observation: Any) -> np.ndarray:
        """Count the call."""
        self.calls += 1
        return np.array([99.0 + self.calls], dtype=np.float32)


# ---------------------------------------------------------------- single environments


class CountingEnv(gym.Env[Any, Any]):
    """Observation ``[t, attempt]`` float32, action ``[1]`` float32 within ``+-1000``, reward ``t``.

    Args:
        lengths: Frames per episode; attempt ``n`` (from 1) takes the entry ``(n - 1) % len(lengths)``.
        success: On which attempts ``info["success"]`` turns true. It is false before, and always present.
        success_step: Step at which it turns true; None is the last of the episode.
        ends: How the environment ends an episode.
    """

    metadata: dict[str, Any] = {"render_fps": 20}

    def __init__(
        self,
        *,
        lengths: Sequence[int] = (6,),
        success: SuccessRule = "always",
        success_step: int | None = None,
        ends: Literal["terminated", "truncated", "never"] = "terminated",
    ) -> None:
        self.observation_space: gym.Space[Any] = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space: gym.Space[Any] = gym.spaces.Box(-1000.0, 1000.0, (1,), np.float32)
        self.lengths = tuple(lengths)
        self.success = success
        self.success_step = success_step
        self.ends = ends
        self.attempt = 0
        self.t = 0
        self.over = True
        self.actions: list[Any] = []
        self.seeds: list[int | None] = []

    @property
    def length(self) -> int:
        """Frames of the current episode."""
        return self.lengths[(self.attempt - 1) % len(self.lengths)]

    def observe(self) -> Any:
        """Build the observation of the current state."""
        return np.array([self.t, self.attempt], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next attempt."""
        super().reset(seed=seed)
        self.attempt += 1
        self.t = 0
        self.over = False
        self.seeds.append(seed)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        if self.over:
            raise SteppedPastEndError(f"step {self.t} of attempt {self.attempt}, which is over")
        self.actions.append(action)
        reward = float(self.t)
        self.t += 1
        self.over = self.t >= self.length and self.ends != "never"
        may_succeed = self.success == "always" or (self.success == "even" and self.attempt % 2 == 0)
        reached = self.t >= self.length if self.success_step is None else self.t > self.success_step
        info = {"success": may_succeed and reached}
        terminated, truncated = self.over and self.ends == "terminated", self.over and self.ends == "truncated"
        return self.observe(), reward, terminated, truncated, info


class SeededEnv(CountingEnv):
    """Observation ``[t, noise]`` float64 and an episode length of 3 to 9, both drawn from the seeded generator."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the length from the seed."""
        super().reset(seed=seed)
        self.lengths = (int(self.np_random.integers(3, 10)),)
        return self.observe(), {}

    def observe(self) -> Any:
        """Draw noise for every observation."""
        return np.array([self.t, self.np_random.standard_normal() if self.attempt else 0.0])


class DiscreteEnv(CountingEnv):
    """Observation ``t`` as ``Discrete(1000)``, action ``Discrete(3)``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = gym.spaces.Discrete(1000)
        self.action_space = gym.spaces.Discrete(3)

    def observe(self) -> Any:
        """Return a plain Python integer."""
        return self.t


class NestedEnv(CountingEnv):
    """Nested observation of many dtypes; every leaf is a view of memory that the next step overwrites.

    ``{"arm": {"q": [2] float64 = [t, attempt], "on": [2] int8}, "camera": [4, 4, 3] uint8 = t,
    "pair": (scalar float32 = t, Discrete = t)}``; ``width`` replaces the extent of ``arm.q``.
    """

    def __init__(self, *, width: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        spaces = gym.spaces
        self.observation_space = spaces.Dict(
            {
                "arm": spaces.Dict(
                    {"q": spaces.Box(-np.inf, np.inf, (width,), np.float64), "on": spaces.MultiBinary(2)}
                ),
                "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
                "pair": spaces.Tuple((spaces.Box(-np.inf, np.inf, (), np.float32), spaces.Discrete(1000))),
            }
        )
        self._q = np.zeros(width)
        self._on = np.zeros(2, np.int8)
        self._image = np.zeros((4, 4, 3), np.uint8)

    def observe(self) -> Any:
        """Overwrite the same memory each time."""
        self._q[:] = np.resize([self.t, self.attempt], self._q.shape)
        self._on[:] = [self.t % 2, 1]
        self._image[:] = self.t
        return {"arm": {"q": self._q, "on": self._on}, "camera": self._image, "pair": (np.float32(self.t), self.t)}


class ReusingEnv(CountingEnv):
    """`CountingEnv` that returns the same array each time and overwrites it in `step`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffer = np.zeros(2, np.float32)

    def observe(self) -> Any:
        """Overwrite the same memory each time."""
        self._buffer[:] = [self.t, self.attempt]
        return self._buffer


Fault = Literal["raise", "unpicklable", "nan", "inf_reward", "exit", "hang", "shape", "dtype"]


class FaultyEnv(CountingEnv):
    """`CountingEnv` with one fault.

    Args:
        fault: What goes wrong: ``raise`` (``ValueError("boom-42")``), ``unpicklable`` (`UnpicklableError`), ``nan`` (in
            observation[1]), ``inf_reward``, ``exit`` (the process ends with status 3), ``hang`` (blocks for ever),
            ``shape`` and ``dtype`` (an observation unlike the declared one).
        where: In which call.
        at: For ``step``: index of the step of the first attempt that goes wrong.
        signal_path: A file that ``hang`` creates when it begins to block.
    """

    def __init__(
        self,
        *,
        fault: Fault,
        where: Literal["init", "reset", "step", "close"] = "step",
        at: int = 2,
        signal_path: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fault = fault
        self.where = where
        self.at = at
        self.signal_path = signal_path
        if where == "init":
            self.go_wrong()

    def go_wrong(self) -> None:
        """Do what ``fault`` says, if it is not about returned values."""
        if self.fault == "raise":
            raise ValueError("boom-42")
        if self.fault == "unpicklable":
            raise UnpicklableError("boom-43")
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "hang":
            if self.signal_path:
                Path(self.signal_path).touch()
            threading.Event().wait()

    def spoil(self, observation: Any) -> Any:
        """Return the observation with the fault in it."""
        if self.fault == "nan":
            observation[1] = np.nan
        if self.fault == "shape":
            return np.zeros(3, np.float32)
        if self.fault == "dtype":
            return np.array(["a", "b"])
        return observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Go wrong here if ``where`` says so."""
        observation, info = super().reset(seed=seed)
        if self.where != "reset":
            return observation, info
        self.go_wrong()
        return self.spoil(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go wrong here if ``where`` says so."""
        faulty = self.where == "step" and self.t == self.at
        if faulty:
            self.go_wrong()
        observation, reward, terminated, truncated, info = super().step(action)
        if faulty:
            observation = self.spoil(observation)
            reward = np.inf if self.fault == "inf_reward" else reward
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Go wrong here if ``where`` says so."""
        if self.where == "close":
            self.go_wrong()


class ChildProcessEnv(CountingEnv):
    """`CountingEnv` that owns a child process, writes its pid into ``pid_path``, and ends it in `close`."""

    def __init__(self, *, pid_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        Path(pid_path).write_text(str(self.child.pid), encoding="utf-8")

    def close(self) -> None:
        """End the child."""
        self.child.kill()
        self.child.communicate()


# ---------------------------------------------------------------- demonstrations planned by the environment


class SegmentEnv(CountingEnv):
    """`CountingEnv` that plans its own segments, lazily.

    Args:
        plan: Per segment its name and its number of actions. The action of global step ``t`` is ``t + 100``.
        rejects: Names of the segments whose validator says no on odd attempts.
        lengths: As in `CountingEnv`; the default never ends before the plan does.

    ``log`` lists what happened in order: ``"plan a"``, ``"step 0"``, ``"validate a"``, ``"cleanup"``, ...
    """

    def __init__(
        self,
        *,
        plan: Sequence[tuple[str, int]] = (("reach", 2), ("grasp", 3)),
        rejects: Sequence[str] = (),
        lengths: Sequence[int] = (10_000,),
        **kwargs: Any,
    ) -> None:
        super().__init__(lengths=lengths, **kwargs)
        self.plan = tuple(plan)
        self.rejects = tuple(rejects)
        self.log: list[str] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Log and count."""
        self.log.append(f"step {self.t}")
        return super().step(action)

    def create_demo_segments(self) -> Iterator[DemoSegment]:
        """Plan one segment when it is asked for."""
        try:
            for name, count in self.plan:
                self.log.append(f"plan {name}")
                yield DemoSegment(
                    actions=self._actions(count),
                    name=name,
                    instruction=f"do {name}",
                    validator=self._validator(name),
                )
        finally:
            self.log.append("cleanup")

    def _actions(self, count: int) -> Iterator[np.ndarray]:
        for _ in range(count):
            yield np.array([self.t + 100.0], np.float32)

    def _validator(self, name: str) -> Callable[[], bool]:
        def validate() -> bool:
            self.log.append(f"validate {name}")
            return not (name in self.rejects and self.attempt % 2 == 1)

        return validate


class ActionListEnv(CountingEnv):
    """`CountingEnv` with the one-segment protocol: a list of ``count`` actions, None on attempts in ``unplannable``."""

    def __init__(self, *, count: int = 4, unplannable: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init__(**{"lengths": (10_000,), **kwargs})
        self.count = count
        self.unplannable = tuple(unplannable)

    def create_demo_action_list(self) -> list[np.ndarray] | None:
        """Plan the whole episode."""
        if self.attempt in self.unplannable:
            return None
        return [np.array([t + 100.0], np.float32) for t in range(self.count)]


# ---------------------------------------------------------------- natively batched environments


class CountingVectorEnv(VectorEnv[Any, Any, Any]):
    """P counting environments in one object: observation ``[P, 3]`` float32 = ``[t, attempt, row]``, reward ``t``.

    The same arrays are overwritten at every step. ``info["success"]`` is true at the last step of each episode.

    Args:
        num_envs: P.
        lengths: Frames per episode of each row, cycled over the rows.
        autoreset: Gymnasium's three modes. In ``Disabled``, stepping a row that has ended raises.
        ends: How episodes end, cycled over the rows: ``terminated``, ``truncated`` or ``never``.
        success: As in `CountingEnv`, per row.
        success_step: As in `CountingEnv`.
    """

    def __init__(
        self,
        num_envs: int = 2,
        *,
        lengths: Sequence[int] = (3, 5),
        autoreset: str = "Disabled",
        ends: Sequence[str] = ("terminated",),
        success: SuccessRule = "always",
        success_step: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.mode = AutoresetMode(autoreset)
        self.metadata = {"autoreset_mode": self.mode, "render_fps": 20}
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_action_space = gym.spaces.Box(-1000.0, 1000.0, (1,), np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.lengths = np.resize(np.asarray(lengths), num_envs)
        self.ends = np.resize(np.asarray(ends), num_envs)
        self.success = success
        self.success_step = success_step
        self.t = np.zeros(num_envs, np.int64)
        self.attempt = np.zeros(num_envs, np.int64)
        self.over = np.ones(num_envs, np.bool_)
        self.actions: list[np.ndarray] = []
        self.seeds: list[Any] = []
        self._buffer = np.zeros((num_envs, 3), np.float32)

    def _observe(self) -> Any:
        self._buffer[:] = np.stack([self.t, self.attempt, np.arange(self.num_envs)], axis=1)
        return self._buffer

    def _begin(self, rows: np.ndarray) -> None:
        self.attempt[rows] += 1
        self.t[rows] = 0
        self.over[rows] = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an attempt in all rows, or in those of ``options["reset_mask"]``."""
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self.seeds.append(seed)
        self._begin(mask)
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Count one step in every row; a row that is over does what the autoreset mode says."""
        resetting = self.over.copy()
        if self.mode != AutoresetMode.NEXT_STEP and resetting.any():
            raise SteppedPastEndError(f"rows {np.flatnonzero(resetting)} are over")
        self.actions.append(np.array(actions))
        reward = np.where(resetting, RESET_REWARD, self.t.astype(np.float64))
        self.t += 1
        ended = (self.t >= self.lengths) & (self.ends != "never") & ~resetting
        allowed = {"always": True, "never": False, "even": self.attempt % 2 == 0}[self.success]
        reached = self.t >= self.lengths if self.success_step is None else self.t > self.success_step
        info: dict[str, Any] = {"success": reached & ~resetting & allowed}
        terminated, truncated = ended & (self.ends == "terminated"), ended & (self.ends == "truncated")
        self.over = ended
        self._begin(resetting)
        if self.mode == AutoresetMode.SAME_STEP and ended.any():
            final = {"final_info": info, "_final_info": ended, "final_obs": self._observe().copy()}
            info = {"success": info["success"] & ~ended, **final}
            self._begin(ended)
        return self._observe(), reward, terminated, truncated, info


class SegmentVectorEnv(CountingVectorEnv):
    """P rows that follow one shared, lazy plan.

    Args:
        plan: Per segment its name and number of actions.
        rejects: Per segment name the rows whose validator says no on odd attempts.
        failure_policy: Of every segment.
    """

    def __init__(
        self,
        num_envs: int = 2,
        *,
        plan: Sequence[tuple[str, int]] = (("reach", 2), ("grasp", 3)),
        rejects: dict[str, Sequence[int]] | None = None,
        failure_policy: Literal["batch_abort", "row_independent"] = "row_independent",
        lengths: Sequence[int] = (10_000,),
        **kwargs: Any,
    ) -> None:
        super().__init__(num_envs, lengths=lengths, **kwargs)
        self.plan = tuple(plan)
        self.rejects = rejects or {}
        self.failure_policy = failure_policy
        self.log: list[str] = []

    def create_demo_segments(self) -> Iterator[DemoSegment]:
        """Plan one segment for all rows when it is asked for."""
        step = 0
        for name, count in self.plan:
            self.log.append(f"plan {name}")
            yield DemoSegment(
                actions=[np.full((self.num_envs, 1), 100.0 + step + k, np.float32) for k in range(count)],
                name=name,
                validator=self._validator(name),
                failure_policy=self.failure_policy,
            )
            step += count

    def _validator(self, name: str) -> Callable[[], np.ndarray]:
        def validate() -> np.ndarray:
            self.log.append(f"validate {name}")
            verdict = np.ones(self.num_envs, np.bool_)
            for row in self.rejects.get(name, ()):
                verdict[row] = self.attempt[row] % 2 == 0
            return verdict

        return validate
