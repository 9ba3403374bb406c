"""Binds the metrics to this pipeline: the learner's meter, the engines' reports, the run directory, the last words."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from examples.async_inference.fleet import Batch, Fleet
from examples.async_inference.settings import Settings
from odstream.perf import LearnerMeter, PerfMonitor, PipelineShape, PoolReading, ProgressBar, RunDirectory, WindowCfg
from odstream.perf.device import CudaTimer
from odstream.perf.facts import imbalances
from odstream.perf.run_directory import starting_run
from odstream.perf.sinks import check_sinks, open_sinks


class Metrics:
    """Meters one run. Use it as a context, and `attach` it to the engines once they are started.

    Args:
        cfg: Of the run.
        device: Of the learner.

    Raises:
        ValueError: If a sink or its setting is unknown.
        MissingExtraError: If one is not installed.
        FileExistsError: If the run directory is not empty.
        RuntimeError: If a sink cannot start.
    """

    def __init__(self, cfg: Settings, device: torch.device) -> None:
        self.cfg = cfg
        self.learner = LearnerMeter(timer=CudaTimer() if device.type == "cuda" else None)
        self.shape = PipelineShape(
            batch_size=cfg.batch_size,
            producer_batch=cfg.engine.sequences,
            pool_capacity=cfg.engine.count * cfg.engine.slots * cfg.engine.sequences,
        )
        debug = cfg.debug
        check_sinks(debug.sinks, debug.sink_settings)
        settings = dataclasses.asdict(
            dataclasses.replace(cfg, debug=dataclasses.replace(debug, sinks=list(debug.sinks)))
        )
        with starting_run(Path(cfg.output)):
            self.directory = RunDirectory(cfg.output, {**settings, "shape": dataclasses.asdict(self.shape)})
            self._sinks = open_sinks(debug.sinks, self.directory, debug.sink_settings)
        self._fleet: Fleet | None = None
        self._bar: ProgressBar | None = None
        self._monitor: PerfMonitor | None = None

    def attach(self, fleet: Fleet) -> None:
        """Begin to meter: from here on all time counts."""
        debug, self._fleet = self.cfg.debug, fleet
        steps = self.cfg.epochs * self.cfg.steps_per_epoch
        self._bar = ProgressBar(steps) if debug.progress and sys.stderr.isatty() else None
        sinks, self._sinks = self._sinks, []
        self._monitor = PerfMonitor(
            self.learner,
            self.shape,
            producers=fleet.meters,
            pool=lambda: PoolReading(ready=fleet.level, remaining=fleet.level, delivered=fleet.taken, retired=0),
            sinks=sinks,
            progress=self._bar,
            window=WindowCfg(min_s=debug.window_s, max_s=max(600.0, debug.window_s)),
            every_s=debug.every_s,
        )

    @property
    def monitor(self) -> PerfMonitor:
        """Of this run, once attached."""
        if self._monitor is None:
            raise RuntimeError("attach() comes first")
        return self._monitor

    def batches(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Yield ``batches``: ``fetch`` until there is one, then ``compute`` until the next is asked for."""
        return self.monitor.batches(batches)

    def ages(self, ages_s: Sequence[float]) -> None:
        """Count how old sequences were when they were taken."""
        self.learner.ages.add(ages_s)

    def tell(self, sentence: str) -> None:
        """Print a sentence, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(sentence)
        else:
            print(sentence, flush=True)

    def finish(self) -> str:
        """Write the last record, close sinks and bar, and return verdict and counts in words.

        Raises:
            RuntimeError: If the counts do not balance.
        """
        monitor, fleet = self.monitor, self._fleet
        self._monitor = None
        monitor.close()
        assert fleet is not None
        learner = self.learner.snapshot().counts
        engines = [meter.snapshot().counts for meter in fleet.meters]
        totals = {name: sum(counts[name] for counts in engines) for name in ("accepted", "published", "lost")}
        pool = PoolReading(remaining=fleet.level, delivered=fleet.taken, retired=0)
        if wrong := imbalances({**totals, **learner}, pool, 1):
            raise RuntimeError(f"counts do not balance: {'; '.join(wrong)}")
        return (
            f"verdict: {monitor.diagnosis}\n"
            f"counts: {totals['published']} published = {fleet.taken} delivered + {fleet.level} in the pool; "
            f"{learner['delivered']} delivered = {learner['completed']} completed + {self.learner.in_flight} in flight "
            f"+ {learner['failed_updates']} failed\n"
            f"run directory: {self.directory.path}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            sink.close()
        if self._monitor is not None:
            self._monitor.__exit__(kind, error, traceback)
