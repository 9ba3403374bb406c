"""Refills: who starts them, what can be read meanwhile, what waits, and what the lifecycle log holds back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from odstream.cache.events import EventLog
from odstream.cache.layout import Word
from odstream.engine import OnlineDataEngine
from odstream.engine.state import State
from odstream.errors import DataBudgetExhaustedError, DataUnavailableError
from tests.fakes.breaches import JumpingClock
from tests.fakes.producers import Script
from tests.process.consumers import PATIENCE_S, Consumer, make_engine, running, sample, until


def requested(engine: OnlineDataEngine) -> int:
    return int(engine.get_stats()["requested_generation"])


def refill(engine: OnlineDataEngine) -> int:
    generation = engine.request_refill()
    engine.wait_for_generation(generation, timeout=PATIENCE_S)
    return generation


# Who starts a refill


@pytest.mark.spec("ENG-16")
def test_a_refill_starts_by_itself_after_so_many_selections_per_slot() -> None:
    with running(refill_policy="sample_threshold", refill_threshold=3, buffer_size=4) as engine:
        for _ in range(11):
            engine.sample_batch(1, 5)
        assert requested(engine) == 1
        engine.sample_batch(1, 5)
        assert requested(engine) == 2
        engine.wait_for_generation(2, timeout=PATIENCE_S)
        engine.sample_batch(11, 5)
        assert requested(engine) == 2
        engine.sample_batch(100, 5)  # however many: one request
        assert requested(engine) == 3
        engine.wait_for_generation(3, timeout=PATIENCE_S)
        assert engine.get_stats()["successful_episodes"] == 12


@pytest.mark.spec("ENG-09", "ENG-16")
def test_the_selections_of_all_processes_count_towards_a_refill() -> None:
    with running(refill_policy="sample_threshold", refill_threshold=3, buffer_size=4) as engine:
        with Consumer("fork", engine) as first, Consumer("fork", engine) as second:
            first.call(sample, 6)
            engine.sample_batch(1, 5)
            second.call(sample, 4)
            assert requested(engine) == 1
            second.call(sample, 1)
            assert requested(engine) == 2


@pytest.mark.spec("ENG-16", "QUOTA-05")
def test_used_up_budgets_start_no_refill() -> None:
    budget = {"episode_sample_budget": 2, "episode_sample_hard_limit": 2}
    with running(refill_policy="manual", **budget) as engine:
        engine.sample_batch(8, 5)
        for _ in range(3):
            with pytest.raises(DataBudgetExhaustedError, match="0 selections left, the batch needs 1"):
                engine.sample_batch(1, 5)
        assert requested(engine) == 1


@pytest.mark.spec("ENG-16")
def test_a_request_names_its_generation_and_joins_an_outstanding_one() -> None:
    with running(Script(refill_seconds_per_episode=0.2, initial=4)) as engine:
        assert [engine.request_refill() for _ in range(3)] == [2, 2, 2]
        engine.wait_for_generation(2, timeout=PATIENCE_S)
        assert engine.request_refill() == 3
        engine.wait_for_generation(1, timeout=0.001)
        engine.wait_for_generation(3, timeout=PATIENCE_S)
        assert engine.get_stats()["completed_generation"] == 3
        assert engine.get_stats()["successful_episodes"] == 12


@pytest.mark.spec("ENG-16")
def test_a_wait_is_bounded_and_for_requested_generations_only() -> None:
    with running(Script(refill_seconds_per_episode=3600.0, initial=5)) as engine:
        for generation, error in [(2, ValueError), (0, ValueError), (True, TypeError), (1.0, TypeError)]:
            with pytest.raises(error, match="generation must"):
                engine.wait_for_generation(generation)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout must"):
            engine.wait_for_generation(1, timeout=0.0)
        generation = engine.request_refill()
        with pytest.raises(TimeoutError, match=r"generation 2 was not complete within 0\.5 s; completed is 1"):
            engine.wait_for_generation(generation, timeout=0.5)
        engine.check_health()


# What can be read meanwhile


@pytest.mark.spec("ENG-10", "ENG-17", "CTX-04")
def test_rows_of_two_generations_are_readable_together_during_a_refill() -> None:
    """Field case X06: which generations are accepted is up to the reader."""
    with running(Script(refill_seconds_per_episode=0.25, initial=4), include_provenance=True) as engine:
        generation = engine.request_refill()
        mixtures = set()

        def mixture() -> frozenset[int]:
            batch = engine.sample_batch(64, 1)
            return frozenset(batch["ods_generation"].flatten().tolist())

        while engine.get_stats()["completed_generation"] < generation:
            mixtures.add(mixture())
            for wanted in (1, 2):
                try:
                    batch = engine.sample_batch_with_context(8, 1, 1, generations=(wanted,))
                except DataUnavailableError as error:
                    assert f"asked for generations ({wanted},), readable are [" in str(error)
                else:
                    assert set(batch["ods_generation"].flatten().tolist()) == {wanted}
        assert frozenset({1, 2}) in mixtures
        assert mixture() == {2}
        with pytest.raises(DataUnavailableError, match=r"readable are \[2\]"):
            engine.sample_batch_with_context(8, 1, 1, generations=(1,))


@pytest.mark.spec("ENG-10")
@pytest.mark.parametrize(("buffer_size", "num_envs"), [(1, 1), (3, 3), (5, 2)])
def test_sampling_goes_on_all_through_a_refill(buffer_size: int, num_envs: int) -> None:
    """Field case Q15: the old episodes stay until finished ones replace them."""
    script = Script(num_envs=num_envs, refill_seconds_per_episode=0.1, initial=buffer_size)
    with running(script, buffer_size=buffer_size) as engine:
        generation = engine.request_refill()
        while engine.get_stats()["completed_generation"] < generation:
            engine.sample_batch(4, 10)
            assert engine.get_stats()["valid_frames"] == 10 * buffer_size
        assert engine.get_stats()["successful_episodes"] == 2 * buffer_size


def whole_rows(engine: OnlineDataEngine, path: str) -> int:
    """Draw until the file exists; every window must hold one number in all fields. Return how many were drawn."""
    calls = 0
    while not Path(path).exists():
        batch = engine.sample_batch(16, 10)
        number = batch["obs"][:, :1, :1]
        for name in ("obs", "actions"):
            assert torch.equal(batch[name], number.expand_as(batch[name])), (name, batch[name])
        assert torch.equal(batch["rewards"], number[..., 0].expand_as(batch["rewards"])), batch["rewards"]
        assert bool(batch["valid"].all())
        calls += 1
    return calls


@pytest.mark.spec("ENG-10", "ENG-18")
def test_no_window_mixes_two_episodes_while_rows_are_replaced(tmp_path: object) -> None:
    """Field case C01: each episode is written slowly, field by field, as one number."""
    end = f"{tmp_path}/end"
    with running(Script(constant=True, seconds_per_field=0.004)) as engine:
        with Consumer("fork", engine) as first, Consumer("fork", engine) as second:
            for consumer in (first, second):
                consumer.begin(whole_rows, end)
            for _ in range(8):
                refill(engine)
            open(end, "w").close()
            assert first.result() > 0 < second.result()
        assert engine.get_stats()["successful_episodes"] == 36


@pytest.mark.spec("ENG-18")
def test_a_batch_that_is_held_never_changes_and_changes_nothing() -> None:
    """Field case C12."""
    nested = ((("obs", "arm", "q"), (2,), "f8"), (("obs", "image"), (2, 2), "u1"))
    with running(Script(extra_fields=nested)) as engine:
        held = engine.sample_batch(8, 5)
        copy = held.clone()
        refill(engine)
        refill(engine)
        assert (held == copy).all()
        for leaf in held.values(include_nested=True, leaves_only=True):
            leaf.zero_()
        later = engine.sample_batch(8, 5)
        assert float(later["obs", "arm", "q"].min()) >= 8000.0
        engine.stop()
        assert float(held["obs", "arm", "q"].abs().max()) == 0.0


# What waits


@pytest.mark.spec("ENG-16")
def test_nobody_is_held_up_by_a_wait_for_a_generation() -> None:
    """Field case Q06."""
    with running(Script(refill_seconds_per_episode=0.3, initial=4)) as engine, Consumer("fork", engine) as consumer:
        generation = engine.request_refill()
        waiter = threading.Thread(target=engine.wait_for_generation, args=(generation, PATIENCE_S))
        waiter.start()
        published = engine.get_stats()["successful_episodes"]
        for _ in range(3):
            consumer.call(sample)
        assert waiter.is_alive()
        until(lambda: engine.get_stats()["successful_episodes"] > published, "the producer publishes meanwhile")
        waiter.join()
        assert engine.get_stats()["completed_generation"] == generation


def test_a_learner_may_pause_for_longer_than_any_poll() -> None:
    """Field case C06."""
    with running() as engine:
        time.sleep(3.0)
        engine.sample_batch(4, 5)
        assert refill(engine) == 2


def test_jumps_of_the_wall_clock_change_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case T12: the wall clock of both processes jumps by an hour, back and forth, at every look."""
    clock = JumpingClock()
    monkeypatch.setattr(time, "time", clock.time)
    monkeypatch.setattr(time, "time_ns", clock.time_ns)
    script = JumpingClock(Script(refill_seconds_per_episode=0.05, initial=4))
    started = time.monotonic()
    with running(script, include_provenance=True, initialization_timeout=PATIENCE_S) as engine:
        refill(engine)
        batch = engine.sample_batch(4, 5)
        published = batch["ods_published_at_monotonic_ns"].flatten().tolist()
        assert all(started <= moment / 1e9 <= time.monotonic() for moment in published)
        assert 0.0 < engine.get_stats()["production_seconds"] < time.monotonic() - started
        with pytest.raises(ValueError):
            engine.wait_for_generation(9)
        assert engine._store is not None
        engine._store.words[Word.REQUESTED_GENERATION] = 4
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            engine.wait_for_generation(4, timeout=0.05)
        assert 0.05 <= time.monotonic() - begun < PATIENCE_S


# The lifecycle log


@pytest.fixture
def logged() -> Iterator[OnlineDataEngine]:
    """A log that the initial fill has filled."""
    with running(lifecycle_event_capacity=4) as engine:
        yield engine


@pytest.mark.spec("ENG-02", "ENG-23", "FLOW-13")
@pytest.mark.parametrize(("capacity", "buffer_size"), [(3, 4), (1, 1)])
def test_a_log_too_small_for_the_initial_fill_or_one_replacement_is_refused(capacity: int, buffer_size: int) -> None:
    """Field case Q01."""
    with pytest.raises(ValueError, match="lifecycle_event_capacity must be 0 or at least"):
        make_engine(lifecycle_event_capacity=capacity, buffer_size=buffer_size)


@pytest.mark.spec("ENG-16", "ENG-23")
def test_a_full_log_holds_the_producer_back_and_the_wait_says_so(logged: OnlineDataEngine) -> None:
    """Field cases Q01 and Q11."""
    generation = logged.request_refill()
    with pytest.raises(TimeoutError, match=r"log is full and holds production back: call drain_lifecycle_events\(\)"):
        logged.wait_for_generation(generation, timeout=0.3)
    logged.sample_batch(4, 5)
    logged.check_health()
    assert logged.get_stats()["successful_episodes"] == 4


@pytest.mark.spec("ENG-23")
def test_no_event_is_lost_however_late_the_log_is_drained(logged: OnlineDataEngine) -> None:
    """Field case Q11: three refills of four rows through a log of four records."""
    events = []
    for _ in range(3):
        generation = logged.request_refill()
        while logged.get_stats()["completed_generation"] < generation:
            until(lambda: log_is_held_up(logged), "the log is full, or the refill complete")
            events += logged.drain_lifecycle_events()
    events += logged.drain_lifecycle_events()
    assert [event["sequence"] for event in events] == list(range(4 + 3 * 8))
    readable: dict[int, int] = {}
    for event in events:
        assert event["run_id"] == logged.run_id
        if event["kind"] == "evicted":
            assert readable.pop(event["slot"]) == event["episode_id"]
        else:
            assert event["slot"] not in readable
            readable[event["slot"]] = event["episode_id"]
        assert event["valid_frames"] == 10
    assert [event["episode_id"] for event in events if event["kind"] == "published"] == list(range(16))
    times = [event["monotonic_ns"] for event in events]
    assert times == sorted(times)
    assert logged.drain_lifecycle_events() == []


def log_is_held_up(engine: OnlineDataEngine) -> bool:
    stats = engine.get_stats()
    assert engine._store is not None
    return EventLog(engine._store).free() < 2 or stats["completed_generation"] == stats["requested_generation"]


@pytest.mark.spec("ENG-07", "ENG-23", "FLOW-13")
def test_a_producer_held_back_by_the_log_stops_at_once_and_the_log_can_still_be_read(logged: OnlineDataEngine) -> None:
    logged.request_refill()
    logged.stop()
    assert logged.state is State.STOPPED
    assert [event["kind"] for event in logged.drain_lifecycle_events()] == ["published"] * 4


def test_without_a_log_nothing_is_held_back() -> None:
    with running() as engine:
        refill(engine)
        assert engine.drain_lifecycle_events() == []
