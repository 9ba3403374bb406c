"""Who may do what: the owner everything, forked and spawned copies sampling and reading."""

from __future__ import annotations

import copy
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from odstream.engine import OnlineDataEngine
from odstream.engine.state import State
from odstream.errors import EngineOwnershipError, EngineStateError
from tests.fakes.producers import Script
from tests.process.consumers import Consumer, RemoteError, is_running, make_engine, producer_pid, running, sample

METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


@pytest.fixture(scope="module")
def engine() -> Iterator[OnlineDataEngine]:
    budget = {"episode_sample_budget": 100_000, "episode_sample_hard_limit": 100_000}
    with running(
        Script(lengths=(20,), instructions=("lift",)), buffer_size=64, lifecycle_event_capacity=64, **budget
    ) as e:
        yield e


@pytest.fixture
def consumer(method: str, engine: OnlineDataEngine, spawned: Consumer) -> Iterator[Consumer]:
    if method == "spawn":
        spawned.hold(engine)
        yield spawned
    else:
        with Consumer("fork", engine) as forked:
            yield forked


def call(engine: OnlineDataEngine, method: str) -> object:
    result = getattr(engine, method)()
    return result if isinstance(result, dict | int | str) else None


@METHODS
@pytest.mark.spec("ENG-09")
@pytest.mark.parametrize("operation", ["start", "stop", "request_refill", "drain_lifecycle_events"])
def test_a_copy_may_not_start_stop_or_refill(consumer: Consumer, engine: OnlineDataEngine, operation: str) -> None:
    with pytest.raises(
        RemoteError, match=rf"EngineOwnershipError: {operation}\(\).* process {os.getpid()}, which"
    ) as no:
        consumer.call(call, operation)
    assert no.value.text.endswith(f"process {consumer.pid}")
    assert engine.state is State.READY
    assert engine.get_stats()["requested_generation"] == 1


def counts(stats: Mapping[str, Any]) -> dict[str, Any]:
    """What stands still while nothing happens: all but the times."""
    return {name: value for name, value in stats.items() if not name.endswith("_seconds")}


@METHODS
@pytest.mark.spec("ENG-09", "ENG-22", "ENG-24")
def test_a_copy_may_sample_and_read(consumer: Consumer, engine: OnlineDataEngine) -> None:
    before = engine.get_stats()["sampled_chunks"]
    assert len(consumer.call(sample)) == 20
    assert consumer.call(call, "check_health") is None
    assert counts(consumer.call(call, "get_stats")) == counts(engine.get_stats())
    assert consumer.call(call, "get_flow_status") == engine.get_flow_status()
    assert consumer.call(call, "get_sampling_budget_snapshot") == engine.get_sampling_budget_snapshot()
    assert consumer.call(texts) == "lift"
    assert engine.get_stats()["sampled_chunks"] == before + 8


def texts(engine: OnlineDataEngine) -> str:
    text: str = engine.resolve_language(engine.sample_batch(4, 5))["task"][0][0]
    return text


def seeded(engine: OnlineDataEngine) -> list[float]:
    generator = torch.Generator().manual_seed(7)
    values: list[float] = engine.sample_batch(32, 3, generator=generator)["obs"][..., 0].flatten().tolist()
    return values


@METHODS
@pytest.mark.spec("ENG-09", "DATA-04")
def test_a_copy_sees_the_same_data(consumer: Consumer, engine: OnlineDataEngine) -> None:
    """Field case S12."""
    assert consumer.call(seeded) == seeded(engine)


@pytest.mark.spec("DATA-04")
def test_every_process_and_every_copy_of_a_copy_draws_differently(engine: OnlineDataEngine, spawned: Consumer) -> None:
    """Field case S02."""
    spawned.hold(engine)
    sample(engine)  # so that copies are taken of an engine whose random stream is in use
    with Consumer("fork", engine) as first, Consumer("fork", engine) as second:
        streams = [tuple(consumer.call(sample, 50, 1)) for consumer in (first, second, spawned)]
    assert len({*streams, tuple(sample(engine, 50, 1))}) == 4


@pytest.mark.spec("ENG-09")
def test_threads_of_one_process_may_sample_at_once(engine: OnlineDataEngine) -> None:
    before = engine.get_stats()["sampled_chunks"]
    problems: list[object] = []

    def draw() -> None:
        for _ in range(50):
            batch = engine.sample_batch(8, 5)
            if not torch.equal(batch["actions"], batch["obs"] + 0.5):
                problems.append(batch)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert engine.get_stats()["sampled_chunks"] == before + 4 * 50 * 8


# Ends of consumers


def leave_through_exit(engine: OnlineDataEngine) -> None:
    engine.sample_batch(2, 3)
    sys.exit(0)


def drop(engine: OnlineDataEngine) -> None:
    """Run every destructor of the copy."""
    engine.sample_batch(2, 3)
    if engine._guard is not None:
        engine._guard()
    engine.__dict__.clear()


def destroy_sampled_copy(engine: OnlineDataEngine) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.spec("ENG-09")
@pytest.mark.parametrize("end", [sample, leave_through_exit, drop, destroy_sampled_copy])
def test_the_end_of_a_consumer_does_not_touch_the_producer(
    engine: OnlineDataEngine, end: Callable[[OnlineDataEngine], object]
) -> None:
    """Field case M03."""
    pid = producer_pid(engine)
    with Consumer("fork", engine) as consumer:
        consumer.begin(end)
        if end is destroy_sampled_copy:
            consumer.process.join()
        elif end is leave_through_exit:
            with pytest.raises(RemoteError, match="SystemExit"):
                consumer.result()
        else:
            consumer.result()
    assert is_running(pid)
    engine.sample_batch(2, 3)
    assert engine.state is State.READY


def test_a_spawned_consumer_may_be_killed_while_it_holds_a_copy() -> None:
    """Field case M03."""
    with running() as engine:
        consumer = Consumer("forkserver", engine)
        consumer.call(sample)
        os.kill(consumer.pid, signal.SIGKILL)
        consumer.close()
        engine.sample_batch(2, 3)


# Copies that cannot be made, or must not pass for the owner


def test_an_engine_that_was_not_started_cannot_be_sent() -> None:
    engine = make_engine()
    with pytest.raises(EngineStateError, match="start the engine before it is sent"):
        copy.deepcopy(engine)


def test_a_copy_in_the_same_process_is_not_the_owner(engine: OnlineDataEngine) -> None:
    """As made by a framework that copies its data sets."""
    for other in (copy.deepcopy(engine), copy.copy(engine)):
        other.sample_batch(2, 3)
        for operation in (other.stop, other.request_refill, other.start):
            with pytest.raises((EngineOwnershipError, EngineStateError)):
                operation()
        del other
        engine.check_health()


@pytest.mark.spec("DATA-04")
def test_a_copy_taken_before_start_says_what_is_missing() -> None:
    engine = make_engine()
    with Consumer("fork", engine) as consumer:
        with engine:
            with pytest.raises(RemoteError, match="EngineStateError: .*CREATED"):
                consumer.call(sample)


@METHODS
@pytest.mark.spec("ENG-04", "ENG-06")
def test_copies_of_a_stopped_engine_say_so(method: str, spawned: Consumer) -> None:
    engine = make_engine()
    with engine:
        consumer = Consumer("fork", engine) if method == "fork" else spawned
        if method == "spawn":
            spawned.hold(engine)
    with pytest.raises(RemoteError, match="EngineStateError: .*this one is STOPPED"):
        consumer.call(sample)
    assert counts(consumer.call(call, "get_stats")) == counts(engine.get_stats())
    if method == "fork":
        consumer.close()


@pytest.mark.spec("ENG-06")
def test_nobody_samples_from_an_engine_that_was_dropped() -> None:
    engine = make_engine()
    engine.start()
    with Consumer("fork", engine) as consumer:
        consumer.call(sample)
        del engine
        with pytest.raises(RemoteError, match="EngineStateError: .*being stopped"):
            consumer.call(sample)
