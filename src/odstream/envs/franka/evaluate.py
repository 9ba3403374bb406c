"""How good a policy is in scenes that were never used to train it.

Shapes: ``N`` scenes, evaluated as one batch; ``H`` observations of history, ``O`` features.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from odstream.envs.franka.environment import FrankaPickPlace
from odstream.envs.franka.policy import ChunkPolicy
from odstream.envs.franka.simulation import Pose

EVALUATION_SEED = 2**32 + 900_000
"""Evaluation scene ``i`` has this seed plus ``i``. Producers draw seeds below ``2**32``, so no scene is in both."""
EXECUTED_ACTIONS = 8
"""Actions of a predicted chunk that are carried out before the policy looks again."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Outcome of N scenes."""

    success: NDArray[np.bool_]
    """``[N]`` solved by the task's own rule (within 3 cm)."""
    distance_m: NDArray[np.float64]
    """``[N]`` cube to goal at the end."""
    lifted: NDArray[np.bool_]
    """``[N]`` the cube was carried at some time."""

    @property
    def rate(self) -> float:
        """Share of scenes that were solved."""
        return float(self.success.mean())

    def rate_within(self, distance_m: float) -> float:
        """Share of scenes that were solved with the cube at most this far from the goal."""
        return float((self.success & (self.distance_m <= distance_m)).mean())


class Rollout:
    """A policy at work in the scenes of an environment; one `step` is one control step.

    The policy sees the last H observations and decides every `EXECUTED_ACTIONS` steps.
    """

    def __init__(self, policy: ChunkPolicy, environment: FrankaPickPlace, first_seed: int) -> None:
        self._policy = policy
        self._environment = environment
        observations, self.info = environment.reset(seed=first_seed)
        self._history = deque([observations] * policy.cfg.history, maxlen=policy.cfg.history)
        self._planned: deque[NDArray[np.float32]] = deque()

    @property
    def running(self) -> bool:
        """Whether any scene has not ended yet."""
        return bool(self._environment.active.any())

    def step(self) -> None:
        """Carry out one action in every scene that has not ended."""
        if not self._planned:
            self._planned.extend(self._chunks()[:, :EXECUTED_ACTIONS].swapaxes(0, 1))
        observations, _, _, _, self.info = self._environment.step(self._planned.popleft())
        self._history.append(observations)

    def _chunks(self) -> NDArray[np.float32]:
        """What the policy wants in each scene ``[N, F, A]``.

        Asked scene by scene: in one matrix product the last bits of a scene's answer depend on how many there are,
        and contact physics makes millimetres of them.
        """
        histories = torch.from_numpy(np.stack(self._history, axis=1))
        shape = self._policy.cfg
        chunks = np.zeros((len(histories), shape.chunk, shape.action_dim), np.float32)
        for row in np.flatnonzero(self._environment.active):
            chunks[row] = self._policy.act(histories[row : row + 1])[0].numpy()
        return chunks


def evaluate(policy: ChunkPolicy, environment: FrankaPickPlace, *, first_seed: int = EVALUATION_SEED) -> Evaluation:
    """Run a policy once in every scene of an environment; deterministic.

    Args:
        policy: Left in the mode it is in.
        environment: N scenes; scene ``i`` is reset with ``first_seed + i``.
        first_seed: Of scenes that the policy was not trained on.
    """
    rollout = Rollout(policy, environment, first_seed)
    while rollout.running:
        rollout.step()
    info = rollout.info
    return Evaluation(success=info["success"], distance_m=info["distance"], lifted=info["lifted"])


def film(policy: ChunkPolicy, seed: int, *, reset: str = "randomised") -> tuple[list[Pose], bool]:
    """Run a policy in one scene. Return what it looked like at every step, and whether it was solved."""
    environment = FrankaPickPlace(1, reset=reset)
    rollout = Rollout(policy, environment, seed)
    poses = [environment.pose(0)]
    while rollout.running:
        rollout.step()
        poses.append(environment.pose(0))
    solved = bool(rollout.info["success"][0])
    environment.close()
    return poses, solved
