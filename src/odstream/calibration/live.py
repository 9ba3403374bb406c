"""Run a producer and a learner together at saturation and measure both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from odstream.calibration.throughput import (
    CalibrationRecords,
    Throughput,
    WorkInterval,
    measure_throughput,
    production_records,
)
from odstream.configuration.checks import checked_count, checked_quantity, checked_text
from odstream.runtime import FlowEngine, FlowEngineCfg, ODSFlowController


class CalibratedEngineCfg(FlowEngineCfg, Protocol):
    """The settings that calibration reads beside those of flow control."""

    @property
    def lifecycle_event_capacity(self) -> int:
        """Records in the lifecycle log."""


class CalibratedEngine(FlowEngine, Protocol):
    """An engine that is running."""

    @property
    def cfg(self) -> CalibratedEngineCfg:
        """Its settings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationCfg:
    """How much to measure, and what it will hold for.

    Raises:
        ValueError: If a field is out of its range.
    """

    batch_size: int
    """B: chunks that one call of the learner completes."""
    measurement_scope: str
    """Machine, placement, task, model."""
    refills: int = 20
    """Complete refills to measure; 20 make the 95th percentile of their latencies more than a maximum."""
    warmup_refills: int = 1
    """Refills before that, while both sides warm up; at least 1."""
    refill_timeout_s: float = 1800.0
    """Seconds that one refill may take."""

    def __post_init__(self) -> None:
        checked_text("measurement_scope", self.measurement_scope)
        for field in ("batch_size", "refills", "warmup_refills"):
            checked_count(field, getattr(self, field))
        checked_quantity("refill_timeout_s", self.refill_timeout_s)


def run_calibration(
    engine: CalibratedEngine,
    train_batch: Callable[[], object],
    cfg: CalibrationCfg,
    *,
    bytes_per_episode: int,
    progress: Callable[[int, int], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Throughput:
    """Refill without a break while training without a break, and measure the complete refills.

    Blocks until ``warmup_refills + refills`` refills are complete. A refill is requested between two calls of
    ``train_batch``, as soon as the one before it is complete.

    Args:
        engine: READY, with manual refill, without budgets (they would make the learner wait), and with a lifecycle
            log that holds a whole refill (so that it never holds the producer back).
        train_batch: Samples one batch of ``batch_size`` chunks and completes the update on it. It must return only
            when the update is complete; on a GPU that takes a synchronisation.
        cfg: How much to measure.
        bytes_per_episode: Storage that one episode takes.
        progress: Called with complete and wanted refills when one completes; raise in it to cancel.
        clock: Monotonic seconds; the engine's clock.

    Raises:
        ValueError: If the engine's settings do not allow a measurement, or no learner interval fits into the window.
        TimeoutError: If a refill takes longer than ``refill_timeout_s``.
        Exception: What the engine or ``train_batch`` raises.
    """
    producers = _check_engine(engine.cfg)
    events: list[dict[str, Any]] = []
    requested_at_s: dict[int, float] = {}
    flow = ODSFlowController(engine, on_events=events.extend, on_refill=requested_at_s.__setitem__, clock=clock)
    training = _run_side_by_side(flow, requested_at_s, train_batch, cfg, progress, clock)
    flow.drain_events()
    production, latencies_s = production_records(requested_at_s, events, episodes_per_fill=engine.cfg.buffer_size)
    measured = slice(cfg.warmup_refills, None)
    window = (production[measured][0].started_s, production[measured][-1].ended_s)
    return measure_throughput(
        CalibrationRecords(
            window_started_s=window[0],
            window_ended_s=window[1],
            production=production[measured],
            training=[work for work in training if window[0] <= work.started_s and work.ended_s <= window[1]],
            first_publication_s=latencies_s[measured],
            batch_size=cfg.batch_size,
            producer_envs=producers,
            bytes_per_episode=bytes_per_episode,
            measurement_scope=cfg.measurement_scope,
        )
    )


def _run_side_by_side(
    flow: ODSFlowController,
    requested_at_s: Mapping[int, float],
    train_batch: Callable[[], object],
    cfg: CalibrationCfg,
    progress: Callable[[int, int], object] | None,
    clock: Callable[[], float],
) -> list[WorkInterval]:
    """Train without a break until the wanted refills, those in ``requested_at_s``, are complete."""
    training: list[WorkInterval] = []
    wanted, complete = cfg.warmup_refills + cfg.refills, 0
    while complete < wanted:
        generation, began_s = flow.request_refill(), clock()
        while not _is_complete(flow.engine, generation):
            if clock() - began_s > cfg.refill_timeout_s:
                raise TimeoutError(
                    f"refill {complete + 1} of {wanted} took longer than refill_timeout_s={cfg.refill_timeout_s}"
                )
            started_s = clock()
            train_batch()
            training.append(WorkInterval(started_s=started_s, ended_s=clock(), count=cfg.batch_size))
            flow.poll()
        if generation in requested_at_s:  # one that was pending before has no known beginning
            complete += 1
            if progress is not None:
                progress(complete, wanted)
    return training


def _is_complete(engine: FlowEngine, generation: int | None) -> bool:
    completed = engine.get_flow_status()["completed_generation"]
    return completed is not None and generation is not None and completed >= generation


def _check_engine(cfg: CalibratedEngineCfg) -> int:
    """Return the declared number of environments, or say why the engine cannot be measured."""
    if cfg.episode_sample_budget is not None:
        raise ValueError(
            f"episode_sample_budget must be None while calibrating, got {cfg.episode_sample_budget}: a learner that "
            "waits for budget shows no capacity"
        )
    if cfg.lifecycle_event_capacity < 2 * cfg.buffer_size:
        raise ValueError(
            f"lifecycle_event_capacity must be at least 2 * buffer_size = {2 * cfg.buffer_size}, got "
            f"{cfg.lifecycle_event_capacity}: a full log would hold the producer back"
        )
    return checked_count('gym_config["num_envs"]', (cfg.gym_config or {}).get("num_envs"))
