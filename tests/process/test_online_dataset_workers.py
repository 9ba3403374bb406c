"""`OnlineDataset` in the worker processes of a ``DataLoader``, on a real engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch.utils.data import DataLoader, get_worker_info

from odstream.datasets import OnlineDataset, UniformChunkSampler
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg, OnlineDataWorkerError
from odstream.errors import DataUnavailableError
from tests.fakes.environments import CountingEnv, plus_hundred

pytestmark = [pytest.mark.timeout(120), pytest.mark.spec("DATA-04")]

FRAMES = 250
CFG = OnlineDataEngineCfg(
    buffer_size=8,
    max_episode_steps=300,
    refill_policy="manual",
    gym_config={"factory": CountingEnv, "kwargs": {"lengths": (FRAMES,)}, "expert": plus_hundred, "num_envs": 4},
)
METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


@pytest.fixture
def engine() -> Iterator[OnlineDataEngine]:
    """Eight episodes of 250 frames, in rows of 300."""
    with OnlineDataEngine(CFG) as running:
        yield running


def loader(dataset: OnlineDataset, method: str, **changed: Any) -> DataLoader[Any]:
    settings: dict[str, Any] = {"batch_size": None, "collate_fn": OnlineDataset.passthrough_collate_fn}
    return DataLoader(dataset, num_workers=2, multiprocessing_context=method, **(settings | changed))


@contextmanager
def iterating(dataset: OnlineDataset, method: str) -> Iterator[Any]:
    """Iterate in two workers and end them at once; left to the garbage collector after an error they take 5 s each."""
    batches = iter(loader(dataset, method))
    try:
        yield batches
    finally:
        batches._shutdown_workers()


def with_worker(batch: TensorDictBase) -> TensorDictBase:
    """Note who drew the batch."""
    worker = get_worker_info()
    return batch.set("worker", torch.full(batch.batch_size, -1 if worker is None else worker.id))


def starts(batch: TensorDictBase) -> tuple[float, ...]:
    return tuple(batch["obs"][:, 0, 0].tolist())


@METHODS
@pytest.mark.spec("DATA-02")
def test_each_worker_draws_chunks_of_its_own(engine: OnlineDataEngine, method: str) -> None:
    """Field case S02: 2 workers and the owner, 50 draws each among about 2,000 candidates."""
    dataset = OnlineDataset(engine, chunk_size=8, batch_size=50, transform=with_worker)
    next(iter(dataset))  # so that the copies are taken of an engine whose random stream is in use
    batches = list(islice(loader(dataset, method), 8))
    assert {int(batch["worker"][0, 0]) for batch in batches} == {0, 1}
    assert len({starts(batch) for batch in [*batches, next(iter(dataset))]}) == 9


@METHODS
def test_batches_from_workers_hold_whole_consistent_chunks(engine: OnlineDataEngine, method: str) -> None:
    dataset = OnlineDataset(engine, UniformChunkSampler(4, 40), batch_size=16, transform=with_worker)
    batches = list(islice(loader(dataset, method), 8))
    assert len({batch.batch_size[1] for batch in batches}) > 1
    for batch in batches:
        frames = batch["obs"][..., 0]
        assert torch.equal(frames, frames[:, :1] + torch.arange(frames.shape[1]))
        assert torch.equal(batch["actions"][..., 0], frames + 100)
        assert bool(batch["valid"].all())


@METHODS
@pytest.mark.spec("DATA-02")
def test_items_from_workers_are_stacked(engine: OnlineDataEngine, method: str) -> None:
    dataset = OnlineDataset(engine, chunk_size=8)
    batches = list(islice(loader(dataset, method, batch_size=4, collate_fn=OnlineDataset.collate_fn), 4))
    assert [tuple(batch.batch_size) for batch in batches] == [(4, 8)] * 4


def message_of(kind: type[Exception], batches: Iterator[Any]) -> str:
    """Draw until that error comes; what was prefetched before something broke was delivered, and still arrives."""
    try:
        for _ in range(100):
            next(batches)
    except kind as error:
        return str(error)
    raise AssertionError(f"100 batches and no {kind.__name__}")


@METHODS
def test_a_request_that_cannot_be_met_raises_the_same_error_in_a_worker(engine: OnlineDataEngine, method: str) -> None:
    dataset = OnlineDataset(engine, chunk_size=FRAMES + 1, batch_size=4)
    here = message_of(DataUnavailableError, iter(dataset))
    with iterating(dataset, method) as batches:
        assert here in message_of(DataUnavailableError, batches)


@METHODS
def test_a_killed_producer_ends_iteration_in_every_worker_with_one_error(method: str) -> None:
    """Field case C04, seen through a ``DataLoader``."""
    engine = OnlineDataEngine(CFG)
    engine.start()
    dataset = OnlineDataset(engine, chunk_size=8, batch_size=4)
    with iterating(dataset, method) as batches:
        next(batches)
        assert engine._worker is not None
        os.kill(engine._worker.pid, signal.SIGKILL)
        there = message_of(OnlineDataWorkerError, batches)
    here = message_of(OnlineDataWorkerError, iter(dataset))
    with pytest.raises(OnlineDataWorkerError) as at_stop:
        engine.stop()
    assert "signal 9" in here
    assert here in there
    assert here in str(at_stop.value)
