"""A trainer of somebody else's, that offers metrics by one line in its loop. It sleeps instead of learning."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from odstream.calibration import LearnerWork, PlannedRun
from odstream.datasets import OnlineDataSource, SequenceSpecCfg
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.errors import DataUnavailableError
from tests.fakes.calibration import SCHEMA

UPDATE_S = 0.02


def trainer(
    training: Mapping[str, Any],
    *,
    engine: OnlineDataEngineCfg,
    batch_size: int,
    output: Path,
    planned: PlannedRun | None,
    metrics: Any = None,
) -> Callable[[], bool]:
    """Train for some updates; the one numbered ``failing`` raises."""
    updates, failing = int(training["updates"]), training.get("failing")

    def run() -> bool:
        with OnlineDataEngine(engine) as running:
            loader = _planned(running, planned, batch_size, metrics) if planned else _unplanned(running, batch_size)
            batches = (batch for _, batch in zip(range(updates), loader, strict=False))
            for number, _ in enumerate(batches if metrics is None else metrics.batches(batches, running, current=0)):
                time.sleep(UPDATE_S)
                if number == failing:
                    raise FloatingPointError("loss is NaN")
        return bool(training.get("good", True))

    return run


def _unplanned(engine: OnlineDataEngine, batch_size: int) -> Iterator[Any]:
    while True:
        engine.request_refill()
        try:
            yield engine.sample_batch_with_context(batch_size, 1, 2)
        except DataUnavailableError:
            time.sleep(0.001)


def _planned(engine: OnlineDataEngine, planned: PlannedRun, batch_size: int, metrics: Any) -> Iterator[Any]:
    source, began_s, chunks = OnlineDataSource(engine, schema=SCHEMA), time.monotonic(), 0
    flow, recorder = planned.control(
        engine,
        lambda: LearnerWork(completed_chunks=chunks, active_s=time.monotonic() - began_s - recorder.waited_s),
        metrics,
    )
    while flow.prepare_batch(batch_size):
        batch = flow.sample_context(source, batch_size, SequenceSpecCfg(1, 2))
        recorder.delivered(batch["ods_episode_id"][:, 0].tolist())
        yield batch
        chunks += batch_size


def without_metrics(
    training: Mapping[str, Any],
    *,
    engine: OnlineDataEngineCfg,
    batch_size: int,
    output: Path,
    planned: PlannedRun | None,
) -> Callable[[], bool]:
    """Offer no metrics."""
    return lambda: True
