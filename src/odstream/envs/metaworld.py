"""Meta-World's manipulation tasks with its own scripted experts, as a ``gym_config``.

A task does not take the seed of its scene through ``reset(seed=...)``: by default every environment draws from numpy's
global generator, so that two environments with the same seed differ. `SeededTask` makes scene and seed one to one.

Needs the extra ``metaworld``, which pins one version of MuJoCo: keep it in an environment of its own.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from odstream.errors import MissingExtraError

__all__ = ["ScriptedExpert", "SeededTask", "metaworld_config"]

if find_spec("metaworld") is None:
    raise MissingExtraError("Meta-World is not installed: pip install 'odstream[metaworld]'")

Observation = NDArray[np.float64]


def metaworld_config(task: str, *, num_envs: int = 1, seed: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a ``gym_config`` that streams a task's scripted demonstrations.

    Observation ``[39] float64``, action ``[4] float32``: a displacement of the hand and the effort of the gripper.
    An episode ends, accepted, when the task's ``success`` turns true.

    Args:
        task: Meta-World's name, such as ``"door-open-v3"``.
        num_envs: P.
        seed: Seed of all scenes; None for another one in each run.
        more: Further keys of the ``gym_config``, such as ``vectorization``.

    Raises:
        ValueError: If there is no such task.
    """
    policy_class(task)
    return {
        "factory": SeededTask,
        "kwargs": {"task": task},
        "num_envs": num_envs,
        "expert": ScriptedExpert(task),
        "success": "success",
        "instruction": task.removesuffix("-v3").replace("-", " "),
        "seed": seed,
        **more,
    }


class SeededTask(gym.Wrapper[Observation, NDArray[Any], Observation, NDArray[Any]]):
    """One task whose scene is a function of the seed given to `reset`, to the bit, in any process.

    Truncates after 500 steps, as Meta-World does. Without a seed, `reset` draws the next scene of the sequence.

    Args:
        task: Meta-World's name.
        render_mode: As in Meta-World.
    """

    def __init__(self, task: str, render_mode: str | None = None) -> None:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE

        policy_class(task)
        environment = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task}-goal-observable"](seed=0, render_mode=render_mode)
        environment._freeze_rand_vec = False  # a new scene at every reset ...
        environment.seeded_rand_vec = True  # ... drawn from the environment's own generator
        super().__init__(environment)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the scene of ``seed``."""
        if seed is not None:
            self.unwrapped.seed(seed)  # type: ignore[attr-defined]
        return self.env.reset(options=options)


class ScriptedExpert:
    """Meta-World's scripted policy of a task.

    ``expert(observation)`` returns ``[4] float32`` within the bounds ``+-1``, to which the scripts' commands are cut:
    the environment would cut them as well.

    Args:
        task: Meta-World's name.
    """

    def __init__(self, task: str) -> None:
        self.task = task
        self._policy: Any = None

    def __call__(self, observation: Observation) -> NDArray[np.float32]:
        """Choose the action."""
        if self._policy is None:
            warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")  # said of commands to be cut
            self._policy = policy_class(self.task)()
        # The scripts write into the observation that they are given.
        command = np.asarray(self._policy.get_action(observation.copy()), dtype=np.float32)
        return np.clip(command, np.float32(-1), np.float32(1))


def policy_class(task: str) -> type[Any]:
    """Look up the scripted policy of a task.

    Raises:
        ValueError: If there is no such task; the message lists those there are.
    """
    from metaworld.policies import ENV_POLICY_MAP

    if task not in ENV_POLICY_MAP:
        raise ValueError(f"Meta-World has no task {task!r}; it has {', '.join(sorted(ENV_POLICY_MAP))}")
    return ENV_POLICY_MAP[task]  # type: ignore[no-any-return]
