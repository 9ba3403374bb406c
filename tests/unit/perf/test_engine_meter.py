from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from odstream.errors import EngineStateError
from odstream.perf.engine_meter import EngineMeter
from odstream.perf.meter import Snapshot
from tests.fakes.clock import FakeClock

S = 1_000_000_000


class FakeEngine:
    """An engine whose producer needs a known time per attempt and is held back for a known time."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.state = "READY"
        self.stats: dict[str, int | float] = {
            "requested_generation": 1,
            "completed_generation": 1,
            "successful_episodes": 4,
            "failed_episodes": 1,
            "production_seconds": 5.0,
            "sampled_chunks": 0,
        }
        self.remaining: int | None = 40
        self.delivered: int | None = 0

    def get_stats(self) -> Mapping[str, int | float]:
        return dict(self.stats)

    def get_flow_status(self) -> Mapping[str, int | None]:
        if self.state != "READY":
            raise EngineStateError("stopped")
        return {"unlocked_remaining_chunks": self.remaining, "total_delivered_chunks": self.delivered}

    def get_sampling_budget_snapshot(self) -> Mapping[str, Any]:
        return {"unlocked_remaining_chunks": self.remaining, "total_delivered_chunks": self.delivered}

    def attempt(self, seconds: float, accepted: bool = True) -> None:
        """End an attempt that took so long, ``seconds`` after the last one began."""
        self.stats["production_seconds"] += seconds
        self.stats["successful_episodes" if accepted else "failed_episodes"] += 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def run(clock: FakeClock, engine: FakeEngine, pattern: str, poll_s: float, seconds: int) -> Snapshot:
    """Play one second per letter: b busy (an attempt of two), i idle (no refill asked for), h held back within one."""
    meter = EngineMeter(engine, clock_ns=clock)
    busy_s, since_poll_s = 0.0, 0.0
    found = meter.snapshot()
    for number in range(seconds * 10):
        letter = pattern[number // 10 % len(pattern)]
        engine.stats["requested_generation"] = 1 if letter == "i" else 2
        clock.advance(0.1)
        busy_s += 0.1 * (letter == "b")
        if busy_s > 1.95:
            engine.attempt(2.0)
            busy_s = 0.0
        since_poll_s += 0.1
        if since_poll_s > poll_s - 0.01:
            found, since_poll_s = meter.snapshot(), 0.0
    return found


@pytest.mark.parametrize("poll_s", [0.1, 0.5, 7.0])
@pytest.mark.parametrize(
    ("pattern", "busy"), [("bb", 1.0), ("bbii", 0.5), ("bbhhh", 0.4), ("bbhhii", 1 / 3), ("bbbbhi", 2 / 3)]
)
def test_busy_and_blocked_fractions_are_true_whatever_the_polling(
    clock: FakeClock, pattern: str, busy: float, poll_s: float
) -> None:
    found = run(clock, FakeEngine(clock), pattern, poll_s, 240)
    assert found.states_ns["busy"] / found.wall_ns == pytest.approx(busy, abs=0.05)
    assert found.wall_ns == sum(found.states_ns.values()) <= 240 * S
    assert found.wall_ns >= 220 * S


def test_snapshots_never_go_backwards(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    meter = EngineMeter(engine, clock_ns=clock)
    before = meter.snapshot()
    for number in range(200):
        engine.stats["requested_generation"] = 1 + number // 10 % 2
        clock.advance(0.3)
        if number % 7 == 0 and number // 10 % 2:
            engine.attempt(0.25, accepted=number % 2 == 0)
        after = meter.snapshot()
        assert all(after.states_ns[state] >= before.states_ns[state] for state in before.states_ns)
        before = after


def test_failed_attempts_are_calls_that_cost_time(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    meter = EngineMeter(engine, clock_ns=clock)
    engine.stats["requested_generation"] = 2
    for accepted in (True, False, True):
        clock.advance(3.0)
        engine.attempt(3.0, accepted)
    counts = meter.snapshot().counts
    assert (counts["calls"], counts["accepted"], counts["failed"]) == (8, 6, 2)
    assert counts["service_busy_ns"] == 14 * S


def test_a_failed_engine_is_down(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    meter = EngineMeter(engine, clock_ns=clock, selections_per_episode=10)
    engine.state = "FAILED"
    clock.advance(9.0)
    found = meter.snapshot()
    assert (found.state, found.states_ns["down"]) == ("down", 9 * S)
    pool = meter.pool()
    assert (pool.ready, pool.remaining) == (0, 40), "nothing can be delivered any more"


def test_selections_that_were_replaced_are_what_is_neither_delivered_nor_left(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    meter = EngineMeter(engine, clock_ns=clock, selections_per_episode=10)
    pool = meter.pool()
    assert (pool.ready, pool.remaining, pool.delivered, pool.retired) == (40, 40, 0, 0)
    engine.delivered, engine.remaining = 7, 33
    engine.attempt(1.0)
    engine.remaining = 33 - 5 + 10
    pool = meter.pool()
    assert (pool.remaining, pool.delivered, pool.retired) == (38, 7, 5)


def test_without_budgets_nothing_is_said_about_what_remains(clock: FakeClock) -> None:
    pool = EngineMeter(FakeEngine(clock), clock_ns=clock).pool()
    assert (pool.ready, pool.remaining, pool.retired) == (None, None, None)


def test_a_budget_that_the_engine_does_not_have_is_refused(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    engine.remaining = engine.delivered = None
    with pytest.raises(ValueError, match="selections_per_episode=3 was given, but the engine has no budgets"):
        EngineMeter(engine, clock_ns=clock, selections_per_episode=3).pool()
