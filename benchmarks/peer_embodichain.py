"""Drives EmbodiChain's ``OnlineDataEngine``. Runs in its own interpreter; see ``peers.py``.

The simulator alone is left out: the shared buffer is filled with the workload's frames before ``start()``, and the
worker process, started and supervised by the engine as usual, declares the rows published and waits. Every measured
call is the one a user makes, with all of the engine's checks, its lock and its quota.

``obs`` is one flat tensor here instead of EmbodiChain's three nested ones: the same 22 fields that all contestants
have, and two gathers less.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import embodichain.data_pipeline.engine.data as engine_module
import torch
from embodichain.data_pipeline.datasets.sequence import SequenceSpecCfg
from embodichain.data_pipeline.datasets.sources import OnlineDataSource
from embodichain.data_pipeline.engine.data import OnlineDataEngine, OnlineDataEngineCfg
from peers import serve
from tensordict import TensorDict
from timing import seconds_per_call
from workload import EPISODE_BUDGET, Case, Shape, all_fields, schema_of


def stand_in_worker(*worker_arguments: Any) -> None:
    """Take the place of the simulation worker: publish all rows, signal readiness, then wait as the original does."""
    shared_buffer, lock_index, fill_signal, init_signal, close_signal = worker_arguments[1:6]
    progress, quota = worker_arguments[11], worker_arguments[14] if len(worker_arguments) > 14 else None
    with lock_index.get_lock():
        if quota is not None:
            quota.publish(0, shared_buffer.batch_size[0], 0, 1)
        lock_index[0] = lock_index[1] = -1
    with progress.values.get_lock():
        progress.values[1] = 1
    fill_signal.wait()
    fill_signal.clear()
    init_signal.set()
    while not close_signal.is_set():
        fill_signal.wait()
        fill_signal.clear()


class FilledEngine(OnlineDataEngine):
    """The engine with a shared buffer of the workload's fields and frames."""

    def __init__(self, shape: Shape, cfg: OnlineDataEngineCfg) -> None:
        self._shape = shape
        super().__init__(cfg)

    def _create_buffer(self) -> TensorDict:
        fields = {name: torch.from_numpy(value) for name, value in all_fields(self._shape).items()}
        return TensorDict(fields, batch_size=[self._shape.rows, self._shape.steps], device="cpu").share_memory_()


def start_engine(shape: Shape, *, quota: bool) -> OnlineDataEngine:
    """Return a READY engine that never refills by itself."""
    budgets = {"episode_sample_budget": EPISODE_BUDGET, "episode_sample_hard_limit": EPISODE_BUDGET} if quota else {}
    cfg = OnlineDataEngineCfg(
        buffer_size=shape.rows,
        max_episode_steps=shape.steps,
        state_dim=shape.obs_dim,
        action_dim=shape.action_dim,
        refill_policy="manual",
        include_provenance=True,
        gym_config={"num_envs": 8},
        **budgets,
    )
    engine = FilledEngine(shape, cfg)
    engine.start()
    return engine


class Contestant:
    """Keeps one engine for as long as the cases agree on it."""

    def __init__(self) -> None:
        self._engine: OnlineDataEngine | None = None
        self._key: tuple[Shape, bool] | None = None

    def engine(self, shape: Shape, quota: bool) -> OnlineDataEngine:
        """The engine for a shape, started if another one was held."""
        if self._engine is None or self._key != (shape, quota):
            self.close()
            self._engine, self._key = start_engine(shape, quota=quota), (shape, quota)
        return self._engine

    def close(self) -> None:
        """Stop the engine that is held."""
        if self._engine is not None:
            self._engine.stop()
        self._engine = self._key = None

    def prepare(self, case: Case) -> Callable[[], object]:
        """Return the call that a user makes for ``case``."""
        engine = self.engine(case.shape, case.quota)
        if case.work == "sample_batch":
            return lambda: engine.sample_batch(case.batch_size, case.horizon, case.mode)
        source = OnlineDataSource(engine, schema=schema_of(case.shape))
        spec = SequenceSpecCfg(history_length=case.history, prediction_horizon=case.horizon, sampling_mode=case.mode)
        return lambda: source.sample_context(case.batch_size, spec)

    def flow_status(self, rows: int, calls: int) -> list[float]:
        """Seconds of each of ``calls`` calls of ``get_flow_status``."""
        return seconds_per_call(self.engine(Shape(rows=rows, steps=300), True).get_flow_status, calls)

    def publication(self, rows: int, steps: int, repeats: int) -> list[float]:
        """Seconds per repeat that the worker holds the lock while it publishes ``rows`` episodes."""
        engine = self.engine(Shape(rows=2 * rows, steps=steps), True)
        window = engine.shared_buffer[:rows, :]
        times_s = []
        for repeat in range(1, repeats + 1):
            with engine._lock_index.get_lock():
                started_s = time.perf_counter()
                engine_module._populate_provenance(
                    window,
                    run_id=engine.run_id,
                    generation=1,
                    episode_start=2 * rows * repeat,
                    accepted_at_ns=time.time_ns(),
                    published_monotonic_ns=time.monotonic_ns(),
                )
                engine._sampling_budget.publish(0, rows, 2 * rows * repeat, 1)
                times_s.append(time.perf_counter() - started_s)
        return times_s

    def killed_worker(self, stop_timeout_s: float) -> dict[str, Any]:
        """Kill the idle worker, then sample until the engine reports it; then stop the engine.

        Returns:
            ``seconds`` until the error, batches ``served`` meanwhile, and whether ``stop()`` ``returned`` in time. The
            process may be unable to end by itself afterwards.
        """
        engine = self.engine(Shape(rows=16, steps=300), False)
        started_s, served = time.perf_counter(), 0
        os.kill(engine._sim_process.pid, signal.SIGKILL)
        try:
            while True:
                engine.sample_batch(4, 64)
                served += 1
        except RuntimeError:
            detected_s = time.perf_counter() - started_s
        stopping = threading.Thread(target=stop_failed_engine, args=(engine,), daemon=True)
        stopping.start()
        stopping.join(stop_timeout_s)
        return {"seconds": detected_s, "served": served, "returned": not stopping.is_alive()}


def stop_failed_engine(engine: OnlineDataEngine) -> None:
    """Stop an engine whose worker was killed; that it raises is expected."""
    with contextlib.suppress(RuntimeError):
        engine.stop()


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine_module._sim_worker_fn = stand_in_worker
    contestant = Contestant()
    try:
        serve(
            contestant.prepare,
            {
                "publication": contestant.publication,
                "flow_status": contestant.flow_status,
                "killed_worker": contestant.killed_worker,
            },
        )
    finally:
        contestant.close()
