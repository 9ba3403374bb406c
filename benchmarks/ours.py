"""Drives this project's engine the way a user does: configuration, producer, ``start``, sampling calls."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from synthetic import ENVIRONMENTS, SyntheticFactory, SyntheticProducer
from timing import seconds_per_call
from workload import EPISODE_BUDGET, Case, Shape, schema_of

from odstream.cache.publish import FrameSegment, Publisher, RowRecord
from odstream.cache.store import CacheStore
from odstream.datasets.sequence import SequenceSpecCfg
from odstream.datasets.sources import OnlineDataSource
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg, OnlineDataWorkerError
from odstream.engine.contract import layout_for
from odstream.producers.base import Staging

COVERAGE = 6
"""How often an engine hands out its cache's worth of frames before it is timed: most pages are mapped then."""


def configuration(shape: Shape, *, quota: bool) -> OnlineDataEngineCfg:
    """An engine that records provenance and never refills by itself, with or without budgets."""
    budget = EPISODE_BUDGET if quota else None
    return OnlineDataEngineCfg(
        buffer_size=shape.rows,
        max_episode_steps=shape.steps,
        state_dim=shape.obs_dim,
        action_dim=shape.action_dim,
        refill_policy="manual",
        include_provenance=True,
        episode_sample_budget=budget,
        episode_sample_hard_limit=budget,
    )


@contextlib.contextmanager
def running_engine(shape: Shape, *, quota: bool) -> Iterator[OnlineDataEngine]:
    """A READY engine whose cache holds the workload."""
    with OnlineDataEngine(configuration(shape, quota=quota), producer=SyntheticFactory(shape)) as engine:
        yield engine


def prepare(engine: OnlineDataEngine, case: Case) -> Callable[[], object]:
    """Return the call that a user makes for ``case``, once it has touched most of the cache's memory."""
    if case.work == "sample_batch":
        call: Callable[[], Any] = lambda: engine.sample_batch(case.batch_size, case.horizon, case.mode)  # noqa: E731
    else:
        call = _context_call(engine, case)
    frames = case.shape.rows * case.shape.steps
    for _ in range(max(20, COVERAGE * frames // (case.batch_size * case.chunk_length))):
        batch = call()
    assert tuple(batch.batch_size) == (case.batch_size, case.chunk_length), batch.batch_size
    return call


def _context_call(engine: OnlineDataEngine, case: Case) -> Callable[[], Any]:
    assert case.mode != "boundary"
    source = OnlineDataSource(engine, schema=schema_of(case.shape))
    spec = SequenceSpecCfg(history_length=case.history, prediction_horizon=case.horizon, sampling_mode=case.mode)
    return lambda: source.sample_context(case.batch_size, spec)


def killed_worker() -> dict[str, Any]:
    """Kill the idle worker and sample until the engine reports it.

    Returns:
        ``seconds`` until the error, batches ``served`` meanwhile, and whether ``stop()`` ``returned``.
    """
    shape = Shape(rows=16, steps=300)
    engine = OnlineDataEngine(configuration(shape, quota=False), producer=SyntheticFactory(shape))
    engine.start()
    store = engine._store
    assert store is not None and engine._worker is not None
    started_s, served = time.perf_counter(), 0
    os.kill(engine._worker.pid, signal.SIGKILL)
    try:
        while True:
            engine.sample_batch(4, 64)
            served += 1
    except OnlineDataWorkerError:
        detected_s = time.perf_counter() - started_s
    with contextlib.suppress(OnlineDataWorkerError):
        engine.stop()
    return {"seconds": detected_s, "served": served, "returned": True}


class _TimedTransactions:
    """Takes the place of a store's ``transaction`` and notes for how long the lock was held in all."""

    def __init__(self, store: CacheStore) -> None:
        self._transaction = store.transaction
        self.held_s = 0.0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._transaction():
            since_s = time.perf_counter()
            yield
            self.held_s += time.perf_counter() - since_s


def publication(rows: int, steps: int, repeats: int) -> dict[str, list[float]]:
    """Publish ``rows`` episodes of ``steps`` frames, ``repeats`` times.

    Returns:
        Per repeat the seconds that the lock was ``held``, and those that publication took in ``all``.
    """
    store, publisher, _ = _private_store(Shape(rows=2 * rows, steps=steps))
    store.transaction = timed = _TimedTransactions(store)  # type: ignore[assignment, method-assign]
    thirds = [(steps * index // 3, steps * (index + 1) // 3) for index in range(3)]
    segments = tuple(FrameSegment(start=start, end=end, subtask_index=0) for start, end in thirds)
    result: dict[str, list[float]] = {"held": [], "all": []}
    for repeat in range(repeats):
        timed.held_s, started_s = 0.0, time.perf_counter()
        for index in range(rows):
            record = RowRecord(row=publisher.claim(), length=steps, segments=segments, terminated=True, task_index=0)
            publisher.publish(record, slot=(repeat * rows + index) % (2 * rows), generation=1)
        result["all"].append(time.perf_counter() - started_s)
        result["held"].append(timed.held_s)
    return result


def recording(steps: int) -> list[float]:
    """Record ``steps`` steps of 8 environments into claimed rows; return the seconds per step."""
    shape = Shape(rows=16, steps=steps)
    _, publisher, staging = _private_store(shape)
    rng = np.random.default_rng(3)
    obs = rng.standard_normal((ENVIRONMENTS, shape.obs_dim), dtype=np.float32)
    actions = rng.standard_normal((ENVIRONMENTS, shape.action_dim), dtype=np.float32)
    rewards = rng.standard_normal(ENVIRONMENTS, dtype=np.float32)
    rows = np.array([publisher.claim() for _ in range(ENVIRONMENTS)])
    times = np.zeros(ENVIRONMENTS, np.int64)
    fields = [
        (staging.arrays["obs",], obs),
        (staging.arrays["actions",], actions),
        (staging.arrays["rewards",], rewards),
    ]

    def record_step() -> None:
        for array, value in fields:
            array[rows, times] = value
        times[:] += 1

    return seconds_per_call(record_step, steps - 1)


def _private_store(shape: Shape) -> tuple[CacheStore, Publisher, Staging]:
    """A cache of this process alone, with budgets, as the worker would use it."""
    spec = SyntheticProducer(shape).spec
    store = CacheStore.create(layout_for(configuration(shape, quota=True), spec))
    publisher = Publisher(store, run_id=1, budget=EPISODE_BUDGET, unix_ns=time.time_ns, monotonic_ns=time.monotonic_ns)
    arrays = store.rows_of_fields()
    return store, publisher, Staging(arrays={key: arrays[key] for key in spec.fields}, claim=publisher.claim)


def first_import(module: str, python: str = sys.executable) -> dict[str, Any]:
    """Import ``module`` in a fresh interpreter: ``seconds``, and whether ``torch`` came with it."""
    code = (
        "import sys, time; started = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - started, 'torch' in sys.modules)"
    )
    printed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return {"seconds": float(printed[0]), "torch": printed[1] == "True"}
