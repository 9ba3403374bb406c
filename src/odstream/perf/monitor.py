"""Binds meters, windows, the diagnosis and sinks together: what a training loop talks to when metrics are on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self, TypeVar

from odstream.perf.diagnosis import Diagnosis, Steady, diagnose
from odstream.perf.facts import FactFinder, Facts, PoolReading
from odstream.perf.meter import LearnerMeter, Snapshot
from odstream.perf.metrics import Readings
from odstream.perf.progress import ProgressBar
from odstream.perf.records import Record
from odstream.perf.shape import PipelineShape
from odstream.perf.sinks import MetricSink
from odstream.perf.window import Window, WindowCfg, Windows
from odstream.validation import check_finite

__all__ = ["PerfMonitor", "SnapshotSource"]

_T = TypeVar("_T")


class SnapshotSource(Protocol):
    """A meter, here or of another process."""

    def snapshot(self) -> Snapshot:
        """Return what it has added up so far."""


class PerfMonitor:
    """Turns meters into records while a loop runs.

    ::

        with PerfMonitor(meter, shape, producers=[EngineMeter(engine)], sinks=sinks) as monitor:
            for batch in monitor.batches(loader):
                monitor.note(loss=update(batch))

    Its own work counts as ``other``. Between two records a step costs about a microsecond.

    Args:
        learner: This rank's meter.
        shape: The pipeline's sizes.
        producers: Meters of all slots.
        ranks: Meters of other ranks.
        pool: Reads what lies between. None: not known.
        memory: Reads how many bytes are held, by whom: ``learner``, ``producer``, ``device``. None: not known.
        sinks: Where records go; closed with the monitor.
        progress: A bar; closed with the monitor.
        window: How long a window is.
        every_s: Seconds between two records at least.
        clock_ns: Monotonic nanoseconds, those of the meters.
        unix_ns: Unix time, for stamps only.

    Raises:
        TypeError, ValueError: If ``every_s`` is no positive number.
    """

    def __init__(
        self,
        learner: LearnerMeter,
        shape: PipelineShape,
        *,
        producers: Sequence[SnapshotSource] = (),
        ranks: Sequence[SnapshotSource] = (),
        pool: Callable[[], PoolReading] | None = None,
        memory: Callable[[], Mapping[str, int]] | None = None,
        sinks: Sequence[MetricSink] = (),
        progress: ProgressBar | None = None,
        window: WindowCfg | None = None,
        every_s: float = 1.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.learner = learner
        self.shape = shape
        self.record: Record | None = None
        """The newest one."""
        self._sources = (learner, *ranks, *producers)
        self._pool, self._memory = pool, memory
        self._sinks, self._progress = tuple(sinks), progress
        self._every_ns = round(check_finite("every_s", every_s) * 1e9)
        self._clock_ns, self._unix_ns = clock_ns, unix_ns
        self._windows = Windows(window, clock_ns=clock_ns)
        self._finder, self._readings, self._steady = FactFinder(shape), Readings(), Steady()
        self._notes: dict[str, float] = {}
        self._epoch = ""
        self._started = False
        self._origin_ns = self._recorded_ns = self._diagnosed_ns = clock_ns()
        self._recorded_step = 0
        learner.on_step = self._after_step

    @property
    def diagnosis(self) -> Diagnosis:
        """The verdict that holds."""
        return self._steady.current

    def batches(
        self, loader: Iterable[_T], *, size: int | Callable[[_T], int] | None = None, accumulate: int = 1
    ) -> Iterator[_T]:
        """Yield what ``loader`` yields, metered as in `LearnerMeter.batches`; a record follows the steps that are due.

        Args:
            loader: Any iterable.
            size: Selections in a batch of this rank. None: the shape's batch size.
            accumulate: Batches per optimizer step.
        """
        return self.learner.batches(loader, size=self.shape.batch_size if size is None else size, accumulate=accumulate)

    def note(self, *, loss: float | None = None, epoch: str | None = None, **values: float) -> None:
        """Remember numbers for the next record and for the bar.

        Args:
            loss: Recorded as ``train/loss``.
            epoch: For the bar, such as ``1/10``.
            values: Recorded as ``train/<name>``. ``acc``, an accuracy, is in the bar, too.
        """
        if loss is not None:
            self._notes["train/loss"] = float(loss)
        if epoch is not None:
            self._epoch = epoch
        self._notes.update({f"train/{name}": float(value) for name, value in values.items()})

    def _after_step(self) -> None:
        """Follow a completed step; the learner is in ``other``."""
        record = None
        if not self.learner.warming_up:
            if not self._started:
                self._begin()
            elif self._windows.due():
                record = self._add_edge(self._clock_ns() - self._recorded_ns >= self._every_ns)
        if self._progress is not None:
            self._progress.step(
                record, loss=self._notes.get("train/loss"), acc=self._notes.get("train/acc"), epoch=self._epoch
            )

    def _begin(self) -> None:
        """Put the first edge at the end of the warm-up."""
        self._started = True
        self._windows.restart(self._snapshots())
        self._recorded_ns = self._diagnosed_ns = self._clock_ns()
        self._recorded_step = self.learner.steps

    def _snapshots(self) -> list[Snapshot]:
        return [source.snapshot() for source in self._sources]

    def _add_edge(self, record_due: bool) -> Record | None:
        window = self._windows.add(self._snapshots())
        if window is None or not record_due:
            return None
        self.record = record = self._record_of(window)
        self._recorded_ns, self._recorded_step = self._clock_ns(), record.step
        for sink in self._sinks:
            sink.write(record)
        return record

    def _record_of(self, window: Window) -> Record:
        facts = self._finder.facts(
            window,
            None if self._pool is None else self._pool(),
            None if self._memory is None else self._memory(),
        )
        values, stale = self._readings.read(facts)
        found = self._diagnosed(window, facts)
        return Record(
            step=self.learner.steps,
            unix_ns=self._unix_ns(),
            elapsed_s=(self._clock_ns() - self._origin_ns) / 1e9,
            values={**values, **self._notes},
            stale=stale,
            verdict=str(found),
            details={"verdict": found.verdict, "cause": found.cause, "window_complete": window.complete},
        )

    def _diagnosed(self, window: Window, facts: Facts) -> Diagnosis:
        """Return the verdict that holds. Windows that decide are complete and share no time."""
        found, now_ns = diagnose(facts), self._clock_ns()
        if found.verdict == "insufficient":
            return self._steady.update(found)
        if window.complete and now_ns - window.duration_ns >= self._diagnosed_ns:
            self._diagnosed_ns = now_ns
            return self._steady.update(found)
        return self._steady.pending()

    def close(self) -> None:
        """Record what came after the last record, and close sinks and bar, all of them also if one fails."""
        self.learner.on_step = None
        with ExitStack() as stack:
            for closes in (*self._sinks, *(() if self._progress is None else (self._progress,))):
                stack.callback(closes.close)
            if self._started and self.learner.steps > self._recorded_step:
                self._add_edge(record_due=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the metrics failed as well: {type(failure).__name__}: {failure}")
