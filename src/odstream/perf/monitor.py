"""Binds meters, windows, the diagnosis and sinks together: what a training loop talks to when metrics are on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from odstream.perf.diagnosis import Diagnosis, Steady, diagnose
from odstream.perf.facts import FactFinder, Facts, PoolReading
from odstream.perf.meter import LearnerMeter, MeteredBatches, Snapshot
from odstream.perf.metrics import Readings
from odstream.perf.progress import ProgressBar
from odstream.perf.records import Record
from odstream.perf.shape import PipelineShape
from odstream.perf.sinks import MetricSink
from odstream.perf.window import Window, WindowCfg, Windows
from odstream.validation import check_finite

__all__ = ["PerfMonitor", "SnapshotSource"]

_T = TypeVar("_T")


class _Moment(NamedTuple):
    """What was read at one moment."""

    at_ns: int
    snapshots: list[Snapshot]
    """This rank's first."""
    pool: PoolReading | None
    memory: Mapping[str, int] | None


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

    Its own work counts as ``other``.

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
        self._sinks = tuple(sinks)
        self.progress = progress
        """The bar that steps advance; closed with the monitor."""
        self._every_ns = round(check_finite("every_s", every_s) * 1e9)
        self._clock_ns, self._unix_ns = clock_ns, unix_ns
        self._windows = Windows(window, clock_ns=clock_ns)
        self._finder, self._readings, self._steady = FactFinder(shape), Readings(), Steady()
        self._notes: dict[str, float] = {}
        self._new_notes: set[str] = set()
        self._frozen: _Moment | None = None
        self._closed = False
        self._epoch = ""
        self._started = False
        self._origin_ns = self._recorded_ns = self._diagnosed_ns = clock_ns()
        self._recorded_counts: Mapping[str, int] = {}
        learner.on_step = self._after_step

    @property
    def diagnosis(self) -> Diagnosis:
        """The verdict that holds."""
        return self._steady.current

    def batches(
        self,
        loader: Iterable[_T],
        *,
        size: int | Callable[[_T], int] | None = None,
        accumulate: int = 1,
        steps: int | None = None,
    ) -> MeteredBatches[_T]:
        """Return what yields what ``loader`` yields, metered as in `LearnerMeter.batches`; a record follows when due.

        What comes after the loop is in no record.

        Args:
            loader: Any iterable.
            size: Selections in a batch of this rank. None: the shape's batch size.
            accumulate: Batches per optimizer step.
            steps: As in `LearnerMeter.batches`.
        """
        selections = self.shape.batch_size if size is None else size
        batches = self.learner.batches(loader, size=selections, accumulate=accumulate, steps=steps)
        return MeteredBatches(lambda: self._until_left(batches))

    def _until_left(self, batches: Iterable[_T]) -> Iterator[_T]:
        try:
            yield from batches
        finally:
            self.freeze()

    def note(self, *, loss: float | None = None, epoch: str | None = None, **values: float) -> None:
        """Remember numbers for the next record and for the bar. Records after that one repeat them, as stale.

        Args:
            loss: Recorded as ``train/loss``.
            epoch: For the bar, such as ``1/10``.
            values: Recorded as ``train/<name>``. ``acc``, an accuracy, is in the bar, too.
        """
        if loss is not None:
            self._notes["train/loss"] = float(loss)
            self._new_notes.add("train/loss")
        if epoch is not None:
            self._epoch = epoch
        for name, value in values.items():
            self._notes[f"train/{name}"] = float(value)
            self._new_notes.add(f"train/{name}")

    def _after_step(self) -> None:
        """Follow a completed step; the learner is in ``other``."""
        record, self._frozen = None, None
        if not self.learner.warming_up:
            if not self._started:
                self._begin()
            elif self._windows.due(self.learner.since_ns):  # just now; a reading of the clock is saved in every step
                record_due = self.learner.since_ns - self._recorded_ns >= self._every_ns
                record = self._add_edge(self._read(record_due), record_due)
        if self.progress is not None:
            self.progress.step(
                record, loss=self._notes.get("train/loss"), acc=self._notes.get("train/acc"), epoch=self._epoch
            )

    def _begin(self) -> None:
        """Put the first edge at the end of the warm-up."""
        self._started = True
        moment = self._read(record_due=False)
        self._windows.restart(moment.snapshots, moment.at_ns)
        self._recorded_ns = self._diagnosed_ns = moment.at_ns
        self._recorded_counts = moment.snapshots[0].counts

    def _read(self, record_due: bool) -> _Moment:
        at_ns = self._clock_ns()
        snapshots = [source.snapshot() for source in self._sources]
        if not record_due:
            return _Moment(at_ns, snapshots, None, None)
        return _Moment(
            at_ns,
            snapshots,
            None if self._pool is None else self._pool(),
            None if self._memory is None else self._memory(),
        )

    def _add_edge(self, moment: _Moment, record_due: bool) -> Record | None:
        window = self._windows.add(moment.snapshots, moment.at_ns)
        if window is None or not record_due:
            return None
        self.record = record = self._record_of(window, moment)
        self._recorded_ns, self._recorded_counts = moment.at_ns, moment.snapshots[0].counts
        for sink in self._sinks:
            sink.write(record)
        return record

    def _record_of(self, window: Window, moment: _Moment) -> Record:
        facts = self._finder.facts(window, moment.pool, moment.memory)
        values, stale = self._readings.read(facts)
        found = self._diagnosed(window, facts, moment.at_ns)
        stale |= self._notes.keys() - self._new_notes
        self._new_notes.clear()
        return Record(
            step=moment.snapshots[0].counts["steps"],
            unix_ns=self._unix_ns(),
            elapsed_s=(moment.at_ns - self._origin_ns) / 1e9,
            values={**values, **self._notes},
            stale=stale,
            verdict=str(found),
            details={
                "verdict": found.verdict,
                "cause": found.cause,
                "window_complete": window.complete,
                "reuse_known": facts.reuse_known,
            },
        )

    def _diagnosed(self, window: Window, facts: Facts, now_ns: int) -> Diagnosis:
        """Return the verdict that holds. Windows that decide are complete and share no time."""
        found = diagnose(facts)
        if found.verdict == "insufficient":
            return self._steady.update(found)
        if window.complete and now_ns - window.duration_ns >= self._diagnosed_ns:
            self._diagnosed_ns = now_ns
            return self._steady.update(found)
        return self._steady.pending()

    def freeze(self) -> None:
        """Take what `close` will record, while producers still run. Lifted by the next step; nothing once closed.

        Time that passes afterwards is in no record. Of the learner's counts, those of `close` are recorded, so that an
        update that is found to have failed is counted as such.
        """
        if self._started and not self._closed:
            self._frozen = self._read(record_due=True)

    def close(self) -> None:
        """Record what came after the last record; close sinks and bar, all of them also if one fails. Idempotent."""
        if self._closed:
            return
        if self._frozen is None:
            self.freeze()
        self._closed = True
        self.learner.on_step = None
        with ExitStack() as stack:
            for closes in (*self._sinks, *(() if self.progress is None else (self.progress,))):
                stack.callback(closes.close)
            if self._frozen is not None:
                counts = self.learner.snapshot().counts
                learner, *others = self._frozen.snapshots
                if counts != self._recorded_counts:
                    last = self._frozen._replace(snapshots=[replace(learner, counts=counts), *others])
                    self._add_edge(last, record_due=True)

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
