"""Section ``debug`` of a task file: whether to record performance metrics, which, and where to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from odstream.configuration import ODSConfiguration
from odstream.engine import OnlineDataEngineCfg
from odstream.validation import check_finite, check_int

if TYPE_CHECKING:
    from odstream.perf.shape import PipelineShape
    from odstream.perf.training import TrainingMetrics

_EVENTS_PER_EPISODE = 64
"""Records of the lifecycle log per cached episode: it is drained between updates, and must not fill up while the
learner evaluates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugCfg:
    """What is recorded of a training beside its results.

    Raises:
        TypeError, ValueError: If a field is out of range.
    """

    enable_perf_metrics: bool = False
    """Whether to meter the training. Off, its loop makes no call for metrics."""
    sinks: Sequence[str] = ("jsonl",)
    """Where records go: jsonl, tensorboard, wandb, trackio, prometheus. `odstream report` reads jsonl."""
    sink_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of sinks, by name: ``{prometheus: {port: 9108}, wandb: {project: grasp}}``."""
    every_s: float = 1.0
    """Seconds between two records at least."""
    window_s: float = 10.0
    """Seconds that a record describes at least; slow steps widen it."""
    progress: bool = True
    """Whether to show a bar, where there is a terminal."""
    trajectories: bool = True
    """Whether to count what becomes of every trajectory: deliveries, frames, supervised frames."""
    selections_per_episode: int | None = None
    """K where neither a plan nor a budget says it: how many selections an episode is worth. None: not known; then no
    verdict compares what producers could make with what training consumes."""

    def __post_init__(self) -> None:
        for name in ("enable_perf_metrics", "progress", "trajectories"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"debug.{name} must be true or false, got {getattr(self, name)!r}")
        if isinstance(self.sinks, str) or not isinstance(self.sinks, Sequence):
            raise TypeError(f"debug.sinks must be a list of names, got {self.sinks!r}")
        if not isinstance(self.sink_settings, Mapping):
            raise TypeError(f"debug.sink_settings must be a mapping by sink, got {self.sink_settings!r}")
        for name in ("every_s", "window_s"):
            check_finite(f"debug.{name}", getattr(self, name))
        if self.selections_per_episode is not None:
            check_int("debug.selections_per_episode", self.selections_per_episode, 1)


def metered_engine(engine: OnlineDataEngineCfg) -> OnlineDataEngineCfg:
    """Return an engine's settings with provenance and a lifecycle log, which tell what becomes of each episode."""
    wanted = _EVENTS_PER_EPISODE * engine.buffer_size
    return dataclasses.replace(
        engine, include_provenance=True, lifecycle_event_capacity=max(wanted, engine.lifecycle_event_capacity)
    )


def metrics_for(
    cfg: DebugCfg, engine: OnlineDataEngineCfg, batch_size: int, plan: ODSConfiguration | None
) -> TrainingMetrics | None:
    """Return the metrics of a training, or None if they are off. Starts nothing.

    Args:
        cfg: Of the task.
        engine: As it will run.
        batch_size: B.
        plan: That the training follows.

    Raises:
        ValueError, TypeError: If a sink or its setting is unknown.
        MissingExtraError: If a sink is not installed.
    """
    if not cfg.enable_perf_metrics:
        return None
    from odstream.perf.training import TrainingMetrics, TrainingMetricsCfg

    return TrainingMetrics(
        shape_of(cfg, engine, batch_size),
        TrainingMetricsCfg(
            sinks=tuple(map(str, cfg.sinks)),
            sink_settings=cfg.sink_settings,
            every_s=cfg.every_s,
            window_s=cfg.window_s,
            progress=cfg.progress,
            trajectories=cfg.trajectories,
            assigned_chunks=engine.episode_sample_budget,
            drains_events=plan is None,
        ),
    )


def shape_of(cfg: DebugCfg, engine: OnlineDataEngineCfg, batch_size: int) -> PipelineShape:
    """Return the sizes of a training's pipeline. Its cache makes room by itself, so none can hang."""
    from odstream.perf.shape import PipelineShape

    budget = engine.episode_sample_budget
    reuse = cfg.selections_per_episode if budget is None else budget
    return PipelineShape(
        batch_size=batch_size, selections_per_episode=1 if reuse is None else reuse, reuse_known=reuse is not None
    )
