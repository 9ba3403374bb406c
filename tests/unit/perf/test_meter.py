from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odstream.perf.meter import LEARNER_STATES, LearnerMeter, ProducerMeter, StateMeter, metered
from tests.fakes.clock import FakeClock

S = 1_000_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def learner(clock: FakeClock) -> LearnerMeter:
    return LearnerMeter(warmup_steps=0, clock_ns=clock)


@pytest.mark.spec("PERF-02")
@given(moves=st.lists(st.tuples(st.sampled_from(LEARNER_STATES), st.integers(0, 10 * S), st.integers(0, 20 * S))))
def test_whatever_happens_states_sum_to_the_wall_time(moves: list[tuple[str, int, int]]) -> None:
    clock = FakeClock()
    meter = StateMeter(LEARNER_STATES, initial="other", clock_ns=clock)
    for state, duration_ns, moved_ns in moves:
        meter.enter(state)
        clock.now_ns += duration_ns
        meter.move("wait", moved_ns)
    totals = meter.totals_ns()
    assert sum(totals.values()) == sum(duration_ns for _, duration_ns, _ in moves)
    assert min(totals.values()) >= 0


def test_a_nested_state_gives_the_time_back_to_the_outer_one_also_after_an_error(clock: FakeClock) -> None:
    meter = learner(clock)
    with meter.during("fetch"):
        clock.advance(1)
        with pytest.raises(KeyError), meter.during("wait"):
            clock.advance(2)
            raise KeyError
        clock.advance(4)
    assert meter.state == "other"
    assert {"fetch": 5 * S, "wait": 2 * S}.items() <= meter.totals_ns().items()


def test_an_unknown_state_is_refused_and_named(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="state must be one of 'wait', .*, got 'idle'"):
        learner(clock).enter("idle")


@pytest.mark.spec("PERF-02", "PERF-04")
def test_waiting_is_charged_to_no_step(clock: FakeClock) -> None:
    """Field case T06."""
    meter = learner(clock)
    times = []
    for wait_s in (0, 10):
        with meter.during("wait"):
            clock.advance(wait_s)
        meter.deliver(8)
        with meter.update():
            clock.advance(1)
        times.append(meter.last_step)
    assert [one and one.step_ns for one in times] == [S, S]
    assert [one and one.wait_ns for one in times] == [0, 10 * S]


def test_durations_add_up_once(clock: FakeClock) -> None:
    """Field case T03."""
    meter = learner(clock)
    steps = []
    for _ in range(5):
        meter.deliver(1)
        with meter.update():
            clock.advance(1)
        assert meter.last_step is not None
        steps.append(meter.last_step.step_ns)
    assert steps == [S] * 5
    assert meter.totals_ns()["compute"] == 5 * S


def test_the_first_step_counts_as_warm_up_and_its_wait_as_wait(clock: FakeClock) -> None:
    meter = LearnerMeter(clock_ns=clock)
    for seconds in (30, 1):
        with meter.during("wait"):
            clock.advance(2)
        with meter.during("fetch"):
            clock.advance(3)
        meter.deliver(1)
        with meter.update():
            clock.advance(seconds)
    assert {"warmup": 33 * S, "wait": 4 * S, "fetch": 3 * S, "compute": S}.items() <= meter.totals_ns().items()
    assert (meter.steps, meter.snapshot().counts["warmup_steps"]) == (2, 1)
    assert meter.last_step is not None and meter.last_step.step_ns == 4 * S


def test_two_lines_meter_an_ordinary_loop(clock: FakeClock) -> None:
    def loader() -> Iterator[list[int]]:
        for _ in range(3):
            clock.advance(0.5)
            yield [1, 2, 3, 4]

    meter = learner(clock)
    for batch in meter.batches(loader(), size=len):
        assert len(batch) == 4
        clock.advance(2)
    counts = meter.snapshot().counts
    assert (counts["steps"], counts["delivered"], counts["completed"]) == (3, 12, 12)
    assert {"fetch": 1.5 * S, "compute": 6 * S}.items() <= meter.totals_ns().items()
    assert meter.state == "other"


def test_a_loader_that_waits_can_say_so(clock: FakeClock) -> None:
    meter = learner(clock)

    def loader() -> Iterator[int]:
        with meter.during("wait"):
            clock.advance(3)
        clock.advance(1)
        yield 0

    for _ in meter.batches(loader(), size=1):
        clock.advance(5)
    assert {"wait": 3 * S, "fetch": S, "compute": 5 * S}.items() <= meter.totals_ns().items()


def test_counters_equal_what_the_loop_received_not_what_was_prefetched(clock: FakeClock) -> None:
    """Field case Q02."""
    drawn = []

    def prefetching() -> Iterator[int]:
        ahead: list[int] = []
        while True:
            while len(ahead) < 4:
                drawn.append(len(drawn))
                ahead.append(drawn[-1])
            yield ahead.pop(0)

    meter = learner(clock)
    for number in meter.batches(prefetching(), size=5):
        if number == 2:
            meter.complete()
            break
    assert (len(drawn), meter.snapshot().counts["delivered"], meter.in_flight) == (6, 15, 0)


def test_a_batch_that_is_left_by_break_stays_in_flight(clock: FakeClock) -> None:
    meter = learner(clock)
    for number in meter.batches(range(9), size=5):
        if number == 1:
            break
    counts = meter.snapshot().counts
    assert (counts["delivered"], counts["completed"], meter.in_flight) == (10, 5, 5)


def test_delivered_is_completed_and_in_flight_and_failed(clock: FakeClock) -> None:
    meter = learner(clock)
    for fails in (False, True, False):
        meter.deliver(5)
        try:
            with meter.update():
                if fails:
                    raise ArithmeticError
        except ArithmeticError:
            pass
    meter.deliver(5)
    counts = meter.snapshot().counts
    assert (counts["delivered"], counts["completed"], counts["failed_updates"], meter.in_flight) == (20, 10, 5, 5)
    assert counts["steps"] == 2


def test_accumulated_batches_make_one_step(clock: FakeClock) -> None:
    meter = learner(clock)
    for _ in meter.batches(range(6), size=4, accumulate=3):
        clock.advance(1)
    counts = meter.snapshot().counts
    assert (counts["steps"], counts["completed"]) == (2, 24)
    assert meter.last_step is not None and meter.last_step.compute_ns == 3 * S


def test_waits_of_flow_control_are_taken_out_of_fetching(clock: FakeClock) -> None:
    meter = learner(clock)
    meter.enter("fetch")
    clock.advance(10)
    for kind, seconds in (("data_wait", 3.0), ("quota_wait", 2.0), ("usage_throttle", 1.0)):
        meter.on_interval(kind, 100.0, 100.0 + seconds)
    assert {"fetch": 4 * S, "wait": 5 * S, "pace": S}.items() <= meter.totals_ns().items()
    with pytest.raises(ValueError, match="kind must be one of"):
        meter.on_interval("nap", 0.0, 1.0)


@pytest.mark.spec("PERF-01")
def test_off_means_that_the_loader_itself_is_iterated() -> None:
    loader = [1, 2, 3]
    assert metered(loader, None) is loader


def test_on_the_length_of_a_batch_is_its_size(clock: FakeClock) -> None:
    meter = learner(clock)
    assert [len(batch) for batch in metered([[1, 2], [3]], meter)] == [2, 1]
    assert meter.snapshot().counts["completed"] == 3
    with pytest.raises(TypeError, match="size must be given: a batch of type int has no length"):
        list(metered([1], meter))


def test_sizes_that_are_no_positive_integers_are_refused(clock: FakeClock) -> None:
    for wrong in (0, -1, True, 1.5):
        with pytest.raises((TypeError, ValueError), match="size"):
            learner(clock).batches([], size=wrong)  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError), match="accumulate"):
            learner(clock).batches([], size=1, accumulate=wrong)  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError), match="steps"):
            learner(clock).batches([], size=1, steps=wrong)  # type: ignore[arg-type]


def test_jumps_of_the_wall_clock_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case T12."""
    jumps = iter([-3600.0, 3600.0] * 100)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    meter = LearnerMeter(warmup_steps=0)
    began_ns = time.monotonic_ns()
    for _ in meter.batches(range(20), size=1):
        pass
    totals = meter.totals_ns()
    assert min(totals.values()) >= 0
    assert sum(totals.values()) <= time.monotonic_ns() - began_ns + S


def test_failed_tries_cost_busy_time_and_open_calls_are_in_no_rate(clock: FakeClock) -> None:
    meter = ProducerMeter(clock_ns=clock)
    for accepted in (0, 8):
        meter.enter("busy")
        clock.advance(2)
        meter.enter("blocked")
        clock.advance(1)
        meter.enter("publish")
        clock.advance(0.25)
        meter.finish(accepted=accepted, failed=8 - accepted)
    meter.enter("busy")
    clock.advance(100)
    found = meter.snapshot()
    assert found.counts == {
        "calls": 2,
        "accepted": 8,
        "failed": 8,
        "published": 8,
        "lost": 0,
        "service_busy_ns": 4 * S,
        "service_publish_ns": S // 2,
    }
    assert found.states_ns == {"busy": 104 * S, "publish": S // 2, "blocked": 2 * S, "starved": 0, "down": 0}
    assert found.wall_ns == sum(found.states_ns.values())


def test_more_lost_than_accepted_is_refused(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="lost must be at least 0 and at most 1, got 2"):
        ProducerMeter(clock_ns=clock).finish(accepted=1, lost=2)


@pytest.mark.spec("PERF-02", "PERF-03")
def test_on_a_cpu_sleeping_for_data_and_in_the_update_is_told_apart() -> None:
    """Field case T01."""
    meter = LearnerMeter(warmup_steps=0)

    def loader() -> Iterator[int]:
        while True:
            time.sleep(0.05)
            yield 0

    for _ in meter.batches(loader(), size=1):
        time.sleep(0.02)
        if meter.steps == 2:
            break
    assert meter.last_step is not None
    data_s, compute_s = meter.last_step.data_ns / 1e9, meter.last_step.compute_ns / 1e9
    assert 0.05 <= data_s < 0.25
    assert 0.02 <= compute_s < 0.2
    assert compute_s < data_s
    assert meter.last_step.step_ns >= 0.07 * S


@pytest.mark.spec("PERF-01")
def test_an_instrumented_step_reads_the_clock_twice_per_change_of_state_at_most() -> None:
    reads = 0

    def clock() -> int:
        nonlocal reads
        reads += 1
        return reads

    meter = LearnerMeter(warmup_steps=0, clock_ns=clock)
    for number in meter.batches(range(12), size=1):
        if number == 1:
            reads = 0
    assert reads <= 2 * 3 * 11  # fetch, compute, other
