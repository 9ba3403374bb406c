from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from odstream.cache.layout import Word
from odstream.engine.work import (
    BLOCKED,
    BUSY,
    DOWN,
    PUBLISH,
    begin_publishing,
    begin_work,
    change_work,
    read_work,
)
from odstream.perf.engine_meter import EngineMeter
from tests.fakes.clock import FakeClock

S = 1_000_000_000


class Worker:
    """The words of a producer that is told what to do, and an engine that reads them."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.words = np.zeros(Word.COUNT, np.int64)
        self.stats: dict[str, Any] = {
            "completed_generation": 1,
            "successful_episodes": 0,
            "failed_episodes": 0,
            "production_seconds": 0.0,
            "sampled_chunks": 0,
            "remaining_chunks": 40,
            "retired_chunks": 0,
            "readable_episodes": 4,
        }

    def begin(self) -> None:
        self.commit(begin_work(self.clock()))

    def enter(self, state: int) -> None:
        self.commit(change_work(self.words, state, self.clock()))

    def commit(self, changes: Mapping[int, int]) -> None:
        self.words[[*changes]] = [*changes.values()]

    def get_stats(self) -> Mapping[str, Any]:
        work = read_work(self.words, self.clock())
        times = {
            f"{state}_seconds": getattr(work, f"{state}_ns") / 1e9 for state in ("busy", "publish", "blocked", "down")
        }
        return {**self.stats, **times, "producer_state": work.state}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def worker(clock: FakeClock) -> Worker:
    found = Worker(clock)
    found.begin()
    return found


@pytest.mark.spec("PERF-04")
def test_what_is_under_way_is_counted_and_the_states_sum_to_the_age_at_every_moment(
    clock: FakeClock, worker: Worker
) -> None:
    meter, began_ns = EngineMeter(worker), clock()
    for state, seconds in ((BUSY, 2.0), (PUBLISH, 0.25), (BLOCKED, 3.0), (PUBLISH, 0.25), (BUSY, 1.0), (BLOCKED, 9.0)):
        worker.enter(state)
        for _ in range(4):
            clock.advance(seconds / 4)
            assert meter.snapshot().wall_ns == clock() - began_ns
    found = meter.snapshot()
    assert found.states_ns == {"busy": 3 * S, "publish": S // 2, "blocked": 12 * S, "starved": 0, "down": 0}
    assert found.state == "blocked"


def test_publishing_begins_with_one_store(clock: FakeClock, worker: Worker) -> None:
    clock.advance(2.0)
    before = worker.words.copy()
    begin_publishing(worker.words, clock())
    assert (worker.words != before).sum() == 1
    clock.advance(0.5)
    assert read_work(worker.words, clock()) == ("publish", 2 * S, S // 2, 0, 0)


def test_a_producer_that_has_ended_is_down_from_then_on_and_stays_down(clock: FakeClock, worker: Worker) -> None:
    worker.enter(BLOCKED)
    clock.advance(1.0)
    worker.enter(DOWN)
    clock.advance(9.0)
    worker.enter(DOWN)
    clock.advance(1.0)
    found = EngineMeter(worker).snapshot()
    assert (found.state, found.states_ns["down"], found.states_ns["blocked"]) == ("down", 10 * S, S)
    assert EngineMeter(worker).pool().ready == 0, "nothing can be delivered any more"


def test_a_producer_that_never_began_has_no_age(clock: FakeClock) -> None:
    worker = Worker(clock)
    worker.enter(DOWN)
    assert EngineMeter(worker).snapshot().wall_ns == 0


@pytest.mark.parametrize("late_s", [0.001, 0.3])
def test_a_change_that_is_noted_late_lets_no_state_go_backwards_and_the_sum_stays_right(
    clock: FakeClock, worker: Worker, late_s: float
) -> None:
    """Field case T12."""
    meter, began_ns = EngineMeter(worker), clock()
    clock.advance(1.0)
    changed_ns = clock()
    clock.advance(late_s)
    before = meter.snapshot()
    begin_publishing(worker.words, changed_ns)
    for seconds in (0.0, 0.0005, 1.0):
        clock.advance(seconds)
        after = meter.snapshot()
        assert all(after.states_ns[state] >= before.states_ns[state] for state in before.states_ns)
        assert after.wall_ns == clock() - began_ns
        before = after
    assert after.states_ns["busy"] == pytest.approx(S * (1 + late_s), rel=1e-6)


def test_a_producer_that_is_down_does_not_begin_to_publish(clock: FakeClock, worker: Worker) -> None:
    worker.enter(DOWN)
    clock.advance(1.0)
    begin_publishing(worker.words, clock())
    assert read_work(worker.words, clock()) == ("down", 0, 0, 0, S)


def test_the_pool_is_of_the_moment_of_the_snapshot(worker: Worker) -> None:
    meter = EngineMeter(worker)
    meter.snapshot()
    worker.stats |= {"successful_episodes": 1, "remaining_chunks": 44}
    assert meter.pool().remaining == 40
    meter.snapshot()
    assert meter.pool().remaining == 44


def test_a_reading_that_is_older_than_the_change_it_sees_is_of_the_moment_of_the_change(worker: Worker) -> None:
    now_ns = worker.clock()
    begin_publishing(worker.words, now_ns + S)
    assert read_work(worker.words, now_ns) == ("publish", S, 0, 0, 0)


def test_failed_attempts_are_calls_that_cost_time(worker: Worker) -> None:
    worker.stats |= {"successful_episodes": 6, "failed_episodes": 2, "production_seconds": 14.0}
    counts = EngineMeter(worker).snapshot().counts
    assert (counts["calls"], counts["accepted"], counts["failed"]) == (8, 6, 2)
    assert counts["service_busy_ns"] == 14 * S


def test_the_pool_is_what_the_engine_counts(worker: Worker) -> None:
    worker.stats |= {"sampled_chunks": 7, "remaining_chunks": 38, "retired_chunks": 5}
    pool = EngineMeter(worker).pool()
    assert (pool.ready, pool.remaining, pool.delivered, pool.retired) == (38, 38, 7, 5)


def test_without_budgets_the_pool_counts_episodes(worker: Worker) -> None:
    worker.stats |= {"sampled_chunks": 7, "remaining_chunks": None, "retired_chunks": None}
    pool = EngineMeter(worker).pool()
    assert (pool.ready, pool.remaining, pool.delivered, pool.retired) == (4, None, 7, None)
