"""Where contexts come from: one class per kind of data behind one contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict

from examples.ods.simple_bc_demo.journal import Journal
from examples.ods.simple_bc_demo.resources import ProcessUse
from examples.ods.simple_bc_demo.settings import RunCfg
from odstream.datasets import BatchSource
from odstream.engine import OnlineDataEngineCfg
from odstream.envs.franka.actions import ACTION_CONTRACTS
from odstream.envs.franka.control import ACTION_DIM
from odstream.envs.franka.environment import INSTRUCTION
from odstream.envs.franka.observation import OBSERVATION_DIM
from odstream.perf import ExposureRecorder, LearnerMeter, PipelineShape, PoolReading
from odstream.perf.monitor import SnapshotSource
from odstream.perf.resources import memory_bytes, tree_memory_bytes

UNLIMITED = 10**12
"""Selections granted to each episode of fixed data: never used up, but counted."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What metrics of an arm are computed from, beside the learner's meter."""

    shape: PipelineShape
    producers: tuple[SnapshotSource, ...] = ()
    pool: Callable[[], PoolReading] | None = None
    producer_pid: int | None = None
    """The process whose memory is the producer's."""

    def memory(self) -> dict[str, int]:
        """Return the bytes that learner and producer hold, as far as they are known."""
        found = {
            "learner": memory_bytes(),
            "producer": None if self.producer_pid is None else tree_memory_bytes(self.producer_pid),
        }
        return {whose: size for whose, size in found.items() if size is not None}


@dataclass(frozen=True, slots=True)
class Run:
    """What an arm needs to know and to tell."""

    cfg: RunCfg
    folder: Path
    journal: Journal
    meter: LearnerMeter
    generator: torch.Generator
    """Draws come from it, in every arm."""
    resumed_at: int = 0
    """Updates that an earlier run took; 0 if this is the first one."""

    @property
    def stream_seed(self) -> int:
        """Of the scenes of a live stream: others after a resume, since each may be used K times only."""
        if not self.resumed_at:
            return self.cfg.seed
        return int(np.random.SeedSequence(self.cfg.seed, spawn_key=(self.resumed_at,)).generate_state(1)[0])


class Arm(Protocol):
    """An open arm."""

    @property
    def source(self) -> BatchSource:
        """What is sampled."""

    @property
    def exposure(self) -> ExposureRecorder:
        """Counts what becomes of each trajectory."""

    @property
    def pipeline(self) -> Pipeline:
        """For metrics."""

    def draw(self) -> TensorDict:
        """Return the next batch; see `loop.Draw`."""

    def facts(self) -> dict[str, Any]:
        """Return what is known of the data once the arm is closed: JSON values, see `records`."""


OpenArm = Callable[[Run], AbstractContextManager[Arm]]


class FixedArm:
    """Data that does not change.

    Args:
        run: Of which settings and generator are used.
        source: With budgets of `UNLIMITED`.
        ledger: Returns the source's own count of deliveries.
        producer: What the process that made the data has used, if it was made here.
    """

    def __init__(
        self,
        run: Run,
        source: BatchSource,
        ledger: Callable[[], Mapping[str, Any]],
        producer: ProcessUse | None,
    ) -> None:
        self.source = source
        self.exposure = ExposureRecorder()
        self.pipeline = Pipeline(PipelineShape(batch_size=run.cfg.loop.batch_size))
        self._run, self._ledger, self._producer = run, ledger, producer

    def draw(self) -> TensorDict:
        """Return the next batch."""
        cfg = self._run.cfg
        return self.source.sample_context(cfg.loop.batch_size, cfg.sequence, generator=self._run.generator)

    def facts(self) -> dict[str, Any]:
        """Return the source's account."""
        ledger = self._ledger()
        return {
            "source_id": self.source.source_id,
            "published_episodes": len(ledger["rows"]),
            "cached_episodes": len(ledger["rows"]),
            "accounting": {
                "assigned": None,
                "delivered": ledger["total_delivered_chunks"],
                "remaining": None,
                "retired": 0,
            },
            "producer": self._producer,
        }


def engine_cfg(cfg: RunCfg, *, seed: int | None = None, **settings: Any) -> OnlineDataEngineCfg:
    """Return an engine that produces this task's demonstrations, with manual refill and provenance.

    Args:
        cfg: Of the run.
        seed: Of the scenes; None: the run's.
        settings: Of the engine, further ones.
    """
    stream = cfg.stream
    return OnlineDataEngineCfg(
        **{
            "gym_config": {
                "factory": "odstream.envs.franka.environment:FrankaPickPlace",
                "kwargs": {"reset": stream.reset, "failure_rate": stream.failure_rate},
                "expert": "odstream.envs.franka.expert:FrankaExpert",
                "success": "success",
                "instruction": INSTRUCTION,
                "num_envs": stream.num_envs,
                "seed": cfg.seed if seed is None else seed,
            },
            "buffer_size": stream.cache_episodes,
            "max_episode_steps": stream.max_episode_steps,
            "state_dim": OBSERVATION_DIM,
            "action_dim": ACTION_DIM,
            "action_semantics": "policy_request",
            "action_contracts": ACTION_CONTRACTS,
            "max_generation_attempts": 20,
            "refill_policy": "manual",
            "include_provenance": True,
            "shutdown_timeout": 30.0,
            **settings,
        }
    )


def open_arm(run: Run) -> AbstractContextManager[Arm]:
    """Return the arm that the settings ask for, to be entered."""
    from examples.ods.simple_bc_demo.live import frozen, live
    from examples.ods.simple_bc_demo.offline import offline

    opens: OpenArm = offline if run.cfg.is_offline else live if run.cfg.mode == "live" else frozen
    return opens(run)
