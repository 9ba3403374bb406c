"""Metrics of one training run on an engine: what ``odstream train`` hands to a trainer when they are on.

Shapes: ``B`` contexts of ``L`` frames.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from odstream.perf.device import device_timer
from odstream.perf.engine_meter import EngineMeter, MeteredEngine
from odstream.perf.exposure import ExposureRecorder, on_cpu
from odstream.perf.facts import PoolReading
from odstream.perf.meter import LearnerMeter, MeteredBatches
from odstream.perf.monitor import PerfMonitor
from odstream.perf.progress import ProgressBar
from odstream.perf.records import Record
from odstream.perf.resources import device_memory_bytes, memory_bytes, tree_memory_bytes
from odstream.perf.run_directory import RunDirectory, write_whole
from odstream.perf.shape import PipelineShape
from odstream.perf.sinks import MetricSink, check_sinks, open_sinks
from odstream.perf.window import WindowCfg
from odstream.validation import check_finite

__all__ = ["MeteredTrainingEngine", "TrainingMetrics", "TrainingMetricsCfg"]

_AGES_EVERY_NS = 500_000_000
_EVENTS_EVERY_NS = 200_000_000
_MEMORY_EVERY_NS = 5_000_000_000
_PUBLISHED = "ods_published_at_monotonic_ns"
_T = TypeVar("_T")


class MeteredTrainingEngine(MeteredEngine, Protocol):
    """What is used of an engine; `odstream.engine.OnlineDataEngine` has it."""

    def drain_lifecycle_events(self) -> list[dict[str, Any]]:
        """Take the pending lifecycle events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingMetricsCfg:
    """What to record, how often, and where to.

    Raises:
        TypeError, ValueError: If a field is out of range, or a sink or its setting unknown.
        MissingExtraError: If a sink is not installed.
    """

    sinks: Sequence[str] = ("jsonl",)
    """Names of `odstream.perf.sinks.SINKS`."""
    sink_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further arguments of sinks, by name."""
    every_s: float = 1.0
    """Seconds between two records at least."""
    window_s: float = 10.0
    """Seconds that a window covers at least; slow steps widen it."""
    progress: bool = True
    """Whether to show a bar, where there is a terminal."""
    assigned_chunks: int | None = None
    """K, the engine's budget per episode, where it has one."""
    trajectories: bool = True
    """Whether to count what becomes of every trajectory, for ``trajectories.json``. It is what costs most."""
    drains_events: bool = False
    """Whether the engine's lifecycle log is drained here. With a flow controller it is not: that one drains it, and
    tells `TrainingMetrics.on_events`."""

    def __post_init__(self) -> None:
        check_sinks(self.sinks, self.sink_settings)
        for name in ("every_s", "window_s"):
            check_finite(name, getattr(self, name))


class TrainingMetrics:
    """Meters a training loop and its engine, and counts what becomes of every trajectory.

    An ordinary loop needs one line::

        for batch in metrics.batches(loader, engine, current=history_length - 1):
            ...

    A loop that wants more calls `attach` when the engine runs, puts its time into states (``metrics.meter.during``),
    tells of each batch (`delivered`) and of each step (`completed`), and calls `detach` before the engine stops.
    Either may be done again, for another epoch on the same engine; what lies between counts as ``other``.
    It belongs to one thread.

    Args:
        shape: The pipeline's sizes.
        cfg: What to record.
        clock_ns: Monotonic nanoseconds of this host.
    """

    def __init__(
        self,
        shape: PipelineShape,
        cfg: TrainingMetricsCfg | None = None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.shape = shape
        self.cfg = TrainingMetricsCfg() if cfg is None else cfg
        self.verdict = ""
        """The last record's diagnosis, in words; empty if there was none."""
        self._clock_ns = clock_ns
        self._run: RunDirectory | None = None
        self._sinks: list[MetricSink] = []
        self._exposure: ExposureRecorder | None = None
        self._engine: MeteredTrainingEngine | None = None
        self._producer: EngineMeter | None = None
        self._meter: LearnerMeter | None = None
        self._monitor: PerfMonitor | None = None
        self._bar: ProgressBar | None = None
        self._record: Callable[[], object] | None = None
        self._attached = False
        self._ages_due_ns = self._events_due_ns = self._memory_due_ns = 0

    # ------------------------------------------------------------ life

    def open(self, run: RunDirectory) -> None:
        """Start the sinks. Before anything is produced, so that times of publication count from here.

        Raises:
            RuntimeError: If a sink cannot start; none is left open.
        """
        self._sinks = open_sinks(self.cfg.sinks, run, self.cfg.sink_settings)
        self._run = run
        if self.cfg.trajectories:
            self._exposure = ExposureRecorder(self.cfg.assigned_chunks, clock_ns=self._clock_ns)

    def attach(
        self, engine: MeteredTrainingEngine, *, steps: int | None = None, meter: LearnerMeter | None = None
    ) -> LearnerMeter:
        """Begin to meter: from here on, all time counts.

        Args:
            engine: READY.
            steps: Optimizer steps to come, for the bar. None: not known.
            meter: The learner's. None: a new one, which times a CUDA device if torch is using one; later the same.

        Raises:
            RuntimeError: Before `open`, after `close`, while attached, or with another engine or meter than before.
        """
        if self._run is None or self._attached:
            raise RuntimeError("attach() needs metrics that are open and not attached; call open(), or detach()")
        if self._engine is None:
            self._begin(engine, LearnerMeter(timer=device_timer()) if meter is None else meter)
        elif engine is not self._engine or meter not in (None, self._meter):
            raise RuntimeError("attach() needs the engine and the meter that were attached before, got another one")
        assert self._monitor is not None and self._meter is not None
        if self.cfg.progress and sys.stderr.isatty():
            self._bar = self._monitor.progress = ProgressBar(steps)
        self._attached = True
        return self._meter

    def _begin(self, engine: MeteredTrainingEngine, meter: LearnerMeter) -> None:
        self._engine, self._meter, self._producer = engine, meter, EngineMeter(engine)
        sinks, self._sinks = [*self._sinks, _Announcer(self)], []
        self._monitor = PerfMonitor(
            meter,
            self.shape,
            producers=[self._producer],
            pool=self._pool,
            memory=self._memory,
            sinks=sinks,
            window=WindowCfg(min_s=self.cfg.window_s, max_s=max(600.0, self.cfg.window_s)),
            every_s=self.cfg.every_s,
            clock_ns=self._clock_ns,
        )
        self._record, meter.on_step = meter.on_step, self._after_step

    def detach(self) -> None:
        """Stop metering for now: time that passes until the next `attach`, or until `close`, is in no last record.

        Call it before the engine stops: afterwards its producer is down. Idempotent.
        """
        if not self._attached:
            return
        self._attached, bar, self._bar = False, self._bar, None
        assert self._monitor is not None
        self._monitor.progress = None
        try:
            if bar is not None:
                bar.close()
        finally:
            self._monitor.freeze()

    def close(self) -> None:
        """Detach, write the last record and ``trajectories.json``, close sinks. Idempotent.

        Leaving the context does it, after an error too. The engine may have stopped by now: events that it logged
        until then are taken.
        """
        with ExitStack() as stack:
            stack.callback(self._write_trajectories)
            for sink in self._sinks:
                stack.callback(sink.close)
            self._sinks = []
            if self._monitor is not None:
                stack.callback(self._monitor.close)
            self.detach()

    def _write_trajectories(self) -> None:
        self._drain()
        exposure, self._exposure = self._exposure, None
        run, self._run = self._run, None
        if run is not None and exposure is not None:
            write_whole(run.trajectories_path, exposure.to_json() + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None and self._meter is not None:
                self.failed()
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the metrics failed as well: {type(failure).__name__}: {failure}")

    # ------------------------------------------------------------ what a loop tells

    def batches(
        self,
        loader: Iterable[_T],
        engine: MeteredTrainingEngine,
        *,
        current: int,
        steps: int | None = None,
        accumulate: int = 1,
        meter: LearnerMeter | None = None,
    ) -> MeteredBatches[_T]:
        """Return what yields what ``loader`` yields, metered as in `LearnerMeter.batches`; detached when it is left.

        Call it anew for each epoch. An update that fails within the loop is counted as such if its error ends the
        run; else call `failed`.

        Args:
            loader: Any iterable of batches ``[B, L]`` from ``engine``. What says where frames come from (``ods_*`` or
                ``frame_ids``, and ``loss_mask``) must be in the CPU's memory, or `TrainingMetricsCfg.trajectories` off.
            engine: READY.
            current: Index of the current frame, ``history_length - 1``; 0 for plain chunks.
            steps: Optimizer steps until the iteration ends; also for the bar. None: it ends with ``loader``. A loop
                that is left by ``break`` leaves its last batch in flight.
            accumulate: Batches per optimizer step.
            meter: As in `attach`.

        Raises:
            RuntimeError: As `attach`, when the iteration begins.
            TypeError: If a batch says on another device where its frames come from.
        """
        return MeteredBatches(lambda: self._batches(loader, engine, current, steps, accumulate, meter))

    def _batches(
        self,
        loader: Iterable[_T],
        engine: MeteredTrainingEngine,
        current: int,
        steps: int | None,
        accumulate: int,
        meter: LearnerMeter | None,
    ) -> Iterator[_T]:
        learner = self.attach(engine, steps=steps, meter=meter)
        try:
            yield from learner.batches(
                loader, size=lambda batch: self._received(batch, current), accumulate=accumulate, steps=steps
            )
        finally:
            self.detach()

    def delivered(self, batch: Any, current: int) -> None:
        """Count a batch that was received: it is in flight until a step on it is `completed` or `failed`.

        Args:
            batch: A mapping with ``ods_*`` fields ``[B, L]``, or with ``frame_ids [B, L, 3]``.
            current: Index of the current frame.
        """
        self.meter.deliver(self._received(batch, current))

    def completed(self, loss: float | None = None) -> None:
        """Count an optimizer step on everything that is in flight; a record may follow."""
        self.note(loss=loss)
        self.meter.complete()

    def failed(self) -> None:
        """Count everything that is in flight as lost to a failed update."""
        self.meter.fail()
        if self._exposure is not None:
            self._exposure.failed()

    def note(self, *, loss: float | None = None) -> None:
        """Remember the loss for the next record, as ``train/loss``, and for the bar."""
        if self._monitor is not None:
            self._monitor.note(loss=loss)

    def on_interval(self, kind: str, started_s: float, ended_s: float) -> None:
        """Take a wait that has ended: for `odstream.runtime.ODSFlowController`. One before `attach` is left out."""
        if self._monitor is not None:
            self.meter.on_interval(kind, started_s, ended_s)

    def on_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Take lifecycle events: for `odstream.runtime.ODSFlowController`."""
        if self._exposure is not None:
            self._exposure.on_events(events)

    def write(self, text: str) -> None:
        """Print a text, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text)
        else:
            print(text, flush=True)

    @property
    def meter(self) -> LearnerMeter:
        """The learner's, once attached."""
        if self._meter is None:
            raise RuntimeError("the metrics are not attached to an engine; call attach() when it runs")
        return self._meter

    # ------------------------------------------------------------ inside

    def _received(self, batch: Any, current: int) -> int:
        """Count a batch for exposure and, now and then, its ages; return B."""
        meter = self._meter
        assert meter is not None
        meter.enter("other")
        now_ns = meter.since_ns
        if now_ns >= self._ages_due_ns and _PUBLISHED in batch.keys():
            self._ages_due_ns = now_ns + _AGES_EVERY_NS
            published = batch[_PUBLISHED]
            if on_cpu(published):
                meter.ages.add(np.maximum(now_ns - np.asarray(published)[:, current], 0) / 1e9)
        if self._exposure is None:
            return _selections(batch)
        return self._exposure.delivered(batch, current)

    def _after_step(self) -> None:
        assert self._meter is not None
        if self._exposure is not None:
            self._exposure.completed()
        if self._meter.since_ns >= self._events_due_ns:
            self._drain()
        if self._record is not None:
            self._record()

    def _drain(self) -> None:
        """Take the lifecycle events, so that the log does not fill up and hold the producer back."""
        self._events_due_ns = self._clock_ns() + _EVENTS_EVERY_NS
        if self.cfg.drains_events and self._engine is not None:
            self.on_events(self._engine.drain_lifecycle_events())

    def _pool(self) -> PoolReading:
        assert self._producer is not None and self._monitor is not None
        self._monitor.note(epoch=str(self._producer.generation))
        return self._producer.pool()

    def _memory(self) -> Mapping[str, int]:
        """Read it, not in every record: the kernel takes a tenth of a millisecond per process, or more."""
        assert self._engine is not None
        now_ns = self._clock_ns()
        if now_ns < self._memory_due_ns:
            return {}
        self._memory_due_ns = now_ns + _MEMORY_EVERY_NS
        found = {
            "learner": memory_bytes(),
            "producer": tree_memory_bytes(self._engine.get_stats()["producer_pid"]),
            "device": device_memory_bytes(),
        }
        return {whose: size for whose, size in found.items() if size is not None}


class _Announcer:
    """A sink that says a verdict when it is another one."""

    def __init__(self, metrics: TrainingMetrics) -> None:
        self._metrics = metrics
        self._said: tuple[str, str] = ("insufficient", "")

    def write(self, record: Record) -> None:
        self._metrics.verdict = record.verdict
        found = (record.details["verdict"], record.details["cause"])
        if found != self._said:
            self._said = found
            self._metrics.write(f"  step {record.step}: {record.verdict}")

    def close(self) -> None:
        pass


def _selections(batch: Any) -> int:
    """Return B, of a TensorDict or of a mapping of fields."""
    shape = getattr(batch, "batch_size", None)
    if shape:
        return int(shape[0])
    return len(batch["frame_ids"] if "frame_ids" in batch.keys() else batch["ods_episode_id"])
