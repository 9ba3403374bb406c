"""A task whose times are known: an environment and a learner that sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

STEP_S = 0.005
STEPS = 10
UPDATE_S = 0.02
UPDATES_S: list[float] = []
"""How long each update of the last calibration really took."""


class SleepingEnv(gym.Env[Any, Any]):
    """Ten steps of five milliseconds each."""

    observation_space = gym.spaces.Box(-1000, 1000, (1,), np.float32)
    action_space = gym.spaces.Box(-1000, 1000, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(STEP_S)
        self.t += 1
        return np.full(1, self.t, np.float32), 0.0, self.t == STEPS, False, {}


def expert(observation: Any) -> Any:
    """Repeat the observation."""
    return observation


def sleeping_learner(engine: Any, batch_size: int) -> Callable[[], object]:
    """Sample a batch and sleep for the rest of 20 ms."""
    UPDATES_S.clear()

    def train_batch() -> None:
        started = time.monotonic()
        engine.sample_batch(batch_size, 4)
        time.sleep(max(0.0, started + UPDATE_S - time.monotonic()))
        UPDATES_S.append(time.monotonic() - started)

    return train_batch
