"""What an engine takes and gives back: memory, descriptors, threads, entries of /dev/shm."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from odstream.cache import memory
from odstream.cache.memory import SharedMemory
from odstream.engine import OnlineDataEngine
from odstream.errors import SharedMemoryError
from tests.fakes.producers import Script
from tests.process.consumers import PATIENCE_S, Consumer, make_engine, producer_pid, running

MIB = 2**20


def private_bytes(pid: int | str = "self") -> int:
    """Return the memory of a process that is neither a file nor shared."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def resident_bytes(pid: int | str = "self") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def work(engine: OnlineDataEngine, refills: int, samples: int) -> None:
    for _ in range(refills):
        generation = engine.request_refill()
        for _ in range(samples // refills):
            engine.sample_batch(16, 10)
        engine.wait_for_generation(generation, timeout=PATIENCE_S)
        engine.drain_lifecycle_events()


@pytest.mark.spec("ENG-18")
def test_memory_stays_flat_over_refills_and_samples() -> None:
    """Field case M10: 20 refills and 2,000 samples after a warm-up."""
    script = Script(lengths=(20,), width=256, instructions=("lift", "push"), num_envs=2)
    with running(script, buffer_size=8, include_provenance=True, lifecycle_event_capacity=64) as engine:
        work(engine, 4, 100)
        gc.collect()
        pids = {"owner": "self", "producer": str(producer_pid(engine))}
        before = {name: (private_bytes(pid), resident_bytes(pid)) for name, pid in pids.items()}
        work(engine, 20, 2000)
        gc.collect()
        for name, pid in pids.items():
            private, resident = before[name]
            assert private_bytes(pid) - private < 20 * MIB, name
            assert resident_bytes(pid) - resident < 20 * MIB, name


def test_memory_of_large_batches_is_reused() -> None:
    with running(Script(lengths=(20,), width=16384)) as engine:
        batch = engine.sample_batch(32, 20)
        size = sum(leaf.nbytes for leaf in batch.values())
        assert size > 64 * MIB
        for _ in range(3):
            batch = engine.sample_batch(32, 20)
        before = private_bytes()
        for _ in range(20):
            batch = engine.sample_batch(32, 20)
        assert private_bytes() - before < size / 2
        del batch


@pytest.mark.spec("ENG-18")
def test_batches_that_are_kept_hold_no_descriptors() -> None:
    """Field case M06."""
    with running() as engine:
        engine.sample_batch(2, 5)
        before = descriptors()
        kept = [engine.sample_batch(2, 5) for _ in range(500)]
        assert descriptors() - before <= 5
        assert len(kept) == 500


def keep_many(engine: OnlineDataEngine) -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    kept = [engine.sample_batch(2, 5) for _ in range(500)]
    return len(kept)


def test_batches_can_be_kept_where_descriptors_are_few() -> None:
    """Field case M06."""
    with running() as engine, Consumer("fork", engine) as consumer:
        assert consumer.call(keep_many) == 500


@pytest.mark.spec("ENG-07")
def test_engine_after_engine_leaves_no_descriptor_thread_or_memory() -> None:
    def once() -> None:
        with make_engine() as engine:
            engine.sample_batch(2, 5)

    once()
    gc.collect()
    before = descriptors(), threading.active_count()
    for _ in range(4):
        once()
    gc.collect()
    assert (descriptors(), threading.active_count()) == before
    maps = Path("/proc/self/maps").read_text()
    assert "memfd:odstream" not in maps


def test_an_engine_makes_no_entry_in_dev_shm() -> None:
    """Field case M07: there are no names, so none can be too long, and none can stay behind (field case M02)."""
    before = set(os.listdir("/dev/shm"))
    with running() as engine, Consumer("fork", engine):
        engine.sample_batch(2, 5)
        assert not [name for name in set(os.listdir("/dev/shm")) - before if not name.startswith("sem.mp-")]


@contextmanager
def spawning() -> Iterator[None]:
    """Pickle as `multiprocessing` does while it spawns a process."""
    set_spawning_popen(SimpleNamespace(duplicate_for_child=lambda fd: fd, DupFd=lambda fd: fd))
    try:
        yield
    finally:
        set_spawning_popen(None)


@pytest.mark.spec("DATA-04")
def test_what_is_sent_to_a_consumer_is_small_whatever_the_cache_holds(spawned: Consumer) -> None:
    """Field case S12."""
    with running(Script(lengths=(20,), width=32768), buffer_size=20) as engine:
        assert engine._store is not None
        assert engine._store.memory.nbytes > 50 * MIB
        engine.sample_batch(8, 20)
        with spawning():
            assert len(ForkingPickler.dumps(engine)) < 64 * 1024
        spawned.hold(engine)
        assert spawned.call(seeded_sum) == seeded_sum(engine)


def seeded_sum(engine: OnlineDataEngine) -> float:
    batch = engine.sample_batch(4, 10, generator=torch.Generator().manual_seed(7))
    return float(batch["obs"].double().sum())


# Too little memory


def test_memory_that_is_not_there_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case M01: half of what is needed is free."""
    before = descriptors()
    monkeypatch.setattr(memory, "available_bytes", lambda: (32 * MIB, "/proc/meminfo"))
    with pytest.raises(SharedMemoryError, match=rf"{64 * MIB} bytes .* but {32 * MIB} bytes .*/proc/meminfo"):
        SharedMemory.create(64 * MIB)
    assert descriptors() == before


def test_memory_that_the_kernel_refuses_is_an_error_in_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case M01."""

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = descriptors()
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(SharedMemoryError, match=r"1048576 bytes .*No space left"):
        SharedMemory.create(MIB)
    assert descriptors() == before


@pytest.mark.parametrize("step", ["os.posix_fallocate", "mmap.mmap"])
def test_an_interrupt_while_memory_is_taken_leaves_none_behind(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = descriptors()
    monkeypatch.setattr(step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        SharedMemory.create(MIB)
    assert descriptors() == before
