"""Measure, plan, apply, compare: all four steps on a toy environment.

    python examples/apply_plan.py [--seconds-per-step 0.004]

A point walks to a goal, in a producer process; a linear policy learns to walk from it. First both run side by side as
fast as they can and are measured. From the two rates a plan follows: how many episodes to cache, how often to use each,
when to ask for more, how fast to train. Then a run follows the plan, and is put beside it. Takes about ten seconds;
with more seconds per step the producer is slower, and the plan another one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from odstream.calibration import (
    CalibrationCfg,
    LearnerWork,
    PlanInputs,
    RunRecorder,
    Throughput,
    compare_run,
    render_comparison,
    run_calibration,
)
from odstream.configuration import ODSReuseProfileCfg
from odstream.datasets import OnlineDataSource, SequenceSpecCfg
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.runtime import ODSFlowController, ODSFlowControllerCfg

Array = NDArray[np.float32]

BATCH_SIZE = 64
SEQUENCE = SequenceSpecCfg(history_length=2, prediction_horizon=4)
STEP_M, STEP_S = 0.05, 0.1
SCHEMA = {
    "observation": {"names": ["x_m", "y_m", "goal_x_m", "goal_y_m"], "dtype": "float32"},
    "action": {
        "names": ["dx_m", "dy_m"],
        "dtype": "float32",
        "semantics": "expert_controller_command",
        "step_dt": STEP_S,
    },
}
PROFILE = ODSReuseProfileCfg(
    profile_id="apply-plan-example",
    scope="numbers for this example; nothing depends on them",
    qualified=False,
    min_chunks_per_episode=20,
    max_chunks_per_episode=100,
    hard_max_chunks_per_episode=100,
)


class PointWalk(gym.Env[Array, Array]):
    """A point in the unit square, and where it shall go. Ends when it is there."""

    observation_space = gym.spaces.Box(-2.0, 2.0, (4,), np.float32)
    action_space = gym.spaces.Box(-STEP_M, STEP_M, (2,), np.float32)

    def __init__(self, seconds_per_step: float) -> None:
        self.seconds_per_step = seconds_per_step
        self.state = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Draw start and goal."""
        super().reset(seed=seed)
        self.state = self.np_random.random(4, np.float32)
        return self.state.copy(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Move, slowly."""
        sleep(self.seconds_per_step)
        self.state[:2] += action
        arrived = bool(np.abs(self.state[2:] - self.state[:2]).max() < STEP_M)
        return self.state.copy(), float(arrived), arrived, False, {}


def walk(observation: Array) -> Array:
    """Return the step ``[2]`` towards the goal."""
    action: Array = np.clip(observation[2:] - observation[:2], -STEP_M, STEP_M)
    return action


def new_learner() -> Callable[[TensorDict], None]:
    """Return what completes one update on a batch."""
    policy = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    def train_step(batch: TensorDict) -> None:
        error = (policy(batch["obs"]) - batch["actions"]).square().mean(-1)
        loss = (error * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return train_step


def measure(cfg: OnlineDataEngineCfg) -> Throughput:
    """Run producer and learner side by side, as fast as they can, over a few refills."""
    with OnlineDataEngine(replace(cfg, lifecycle_event_capacity=2 * cfg.buffer_size)) as engine:
        source, train_step = OnlineDataSource(engine, schema=SCHEMA), new_learner()
        return run_calibration(
            engine,
            lambda: train_step(source.sample_context(BATCH_SIZE, SEQUENCE)),
            CalibrationCfg(batch_size=BATCH_SIZE, measurement_scope="this example, on this machine", refills=5),
            bytes_per_episode=engine.bytes_per_episode,
        )


def apply(inputs: PlanInputs, cfg: OnlineDataEngineCfg) -> str:
    """Train by the plan until eight caches were produced and used; return how that went."""
    plan, train_step, done = inputs.plan(), new_learner(), {"chunks": 0, "active_s": 0.0}
    planned_cfg = replace(
        cfg,
        buffer_size=plan.buffer_size,
        episode_sample_budget=plan.episode_sample_budget,
        episode_sample_hard_limit=plan.episode_sample_hard_limit,
        lifecycle_event_capacity=4 * plan.buffer_size,
    )
    recorder = RunRecorder(lambda: LearnerWork(completed_chunks=int(done["chunks"]), active_s=done["active_s"]))
    with OnlineDataEngine(planned_cfg) as engine:
        source = OnlineDataSource(engine, schema=SCHEMA)
        flow = ODSFlowController(
            engine,
            ODSFlowControllerCfg(max_generated_episodes=8 * plan.buffer_size),
            plan=plan,
            on_events=recorder.on_events,
            on_refill=recorder.on_refill,
            on_interval=recorder.on_interval,
        )
        while flow.prepare_batch(plan.batch_size):
            started, waited_s = monotonic(), recorder.waited_s
            batch = flow.sample_context(source, plan.batch_size, SEQUENCE)
            train_step(batch)
            done["active_s"] += monotonic() - started - (recorder.waited_s - waited_s)
            done["chunks"] += plan.batch_size
            recorder.delivered(batch["ods_episode_id"][:, SEQUENCE.history_length - 1].tolist())
    flow.drain_events()
    planned_p95_s = inputs.runtime.first_publication_p95_seconds
    return render_comparison(compare_run(plan, recorder.records(engine), planned_first_publication_s=planned_p95_s))


def main() -> None:
    """Measure, plan, apply, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds-per-step", type=float, default=0.002)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cfg = OnlineDataEngineCfg(
        gym_config={
            "factory": PointWalk,
            "kwargs": {"seconds_per_step": arguments.seconds_per_step},
            "expert": walk,
            "num_envs": 4,
            "seed": 0,
            "step_dt": STEP_S,
        },
        buffer_size=32,
        max_episode_steps=30,
        refill_policy="manual",
        include_provenance=True,
        shutdown_timeout=30.0,
    )
    throughput = measure(cfg)
    inputs = PlanInputs(
        accepted_episodes_per_second=throughput.accepted_episodes_per_second,
        training_chunks_per_second=throughput.training_chunks_per_second,
        profile=PROFILE,
        runtime=throughput.runtime(
            min_cache_episodes=cfg.buffer_size, cache_memory_bytes=cfg.buffer_size * throughput.bytes_per_episode
        ),
    )
    plan = inputs.plan()
    print(
        f"measured: {throughput.accepted_episodes_per_second:.1f} episodes/s, "
        f"{throughput.training_chunks_per_second:,.0f} chunks/s"
    )
    print(f"plan: {plan.buffer_size} episodes, {plan.episode_sample_budget} uses each; {plan.reasons[1]}")
    print(apply(inputs, cfg))


if __name__ == "__main__":  # the producer process imports this file
    main()
