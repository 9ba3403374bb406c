"""A task whose times are known: an environment and a learner that sleep, calibrated or trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from odstream.calibration import LearnerWork, PlannedRun
from odstream.datasets import OnlineDataSource, SequenceSpecCfg
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg

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


SCHEMA = {
    "observation": {"names": ["step"]},
    "action": {"names": ["step"], "semantics": "expert_controller_command", "step_dt": STEP_S},
}


def trainer(
    training: Mapping[str, Any],
    *,
    engine: OnlineDataEngineCfg,
    batch_size: int,
    output: Path,
    planned: PlannedRun | None,
) -> Callable[[], bool]:
    """Train for some updates, and leave the engine's settings in the output."""
    updates = int(training["updates"])

    def run() -> bool:
        (output / "engine.txt").write_text(f"{engine.buffer_size} {engine.episode_sample_budget} {batch_size}")
        if planned is not None:
            follow(planned, engine, batch_size, updates)
        return bool(training.get("good", True))

    return run


def follow(planned: PlannedRun, cfg: OnlineDataEngineCfg, batch_size: int, updates: int) -> None:
    """Train on a planned stream."""
    with OnlineDataEngine(cfg) as engine:
        done: list[float] = []
        source = OnlineDataSource(engine, schema=SCHEMA)
        flow, recorder = planned.control(
            engine, lambda: LearnerWork(completed_chunks=len(done) * batch_size, active_s=sum(done))
        )
        for _ in range(updates):
            assert flow.prepare_batch(batch_size)
            started = time.monotonic()
            batch = flow.sample_context(source, batch_size, SequenceSpecCfg(1, 2))
            recorder.delivered(batch["ods_episode_id"][:, 0].tolist())
            time.sleep(max(0.0, started + UPDATE_S - time.monotonic()))
            done.append(time.monotonic() - started)
