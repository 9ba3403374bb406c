"""Flow control: bounded waits, cancellation, and what callbacks are told."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import pytest

from odstream.errors import (
    DataBudgetExhaustedError,
    DataUnavailableError,
    LockTimeoutError,
    OnlineDataWorkerError,
)
from odstream.runtime import ODSFlowController, ODSFlowControllerCfg
from tests.fakes.engine import FakeClock, FakeEngine, FakeEngineCfg, FakeSource
from tests.unit.test_runtime import PLAN, B, Flow, half_second_plan


class Cancelled(BaseException):
    """What an application may raise to stop."""


class CancelAt:
    """A ``progress`` that raises in its n-th call."""

    def __init__(self, call: int) -> None:
        self.calls, self.call = 0, call

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.call:
            raise Cancelled


def failing(source: FakeSource, *errors: BaseException) -> FakeSource:
    """Let the next calls of a source raise, one error each; the last one repeats if it stands alone."""
    pending, sample = list(errors), source.sample_context

    def sample_context(*args: Any, **options: Any) -> Any:
        if pending:
            raise pending.pop(0)
        return sample(*args, **options)

    source.sample_context = sample_context  # type: ignore[method-assign]
    return source


# ---------------------------------------------------------------- sampling


@pytest.mark.spec("FLOW-10")
def test_a_batch_is_the_sources_own_and_every_argument_is_passed_on() -> None:
    flow = Flow()
    sequence, generator = object(), object()
    drawn = flow.controller.sample_context(flow.source, B, sequence, generator=generator)
    assert len(drawn) == B
    assert flow.source.calls == [(B, sequence, generator)]
    assert flow.engine.delivered == B


@pytest.mark.spec("FLOW-10")
def test_only_a_source_on_the_controlled_engine_is_accepted() -> None:
    flow = Flow()
    with pytest.raises(ValueError, match="another engine"):
        flow.controller.sample_context(FakeSource(FakeEngine(flow.clock)), B, None)
    with pytest.raises(TypeError, match="must be an OnlineDataSource on the controlled engine, got object"):
        flow.controller.sample_context(object(), B, None)  # type: ignore[arg-type]
    assert flow.engine.delivered == 0


@pytest.mark.spec("FLOW-10")
@pytest.mark.parametrize("transient", [DataUnavailableError, DataBudgetExhaustedError])
def test_transient_errors_are_waited_out(transient: type[Exception]) -> None:
    flow = Flow()
    source = failing(flow.source, transient("no"), transient("not yet"))
    assert len(flow.controller.sample_context(source, B, None)) == B
    assert flow.clock.sleeps == [0.02, 0.02]
    assert flow.intervals == [("data_wait", 1000.0, 1000.04)]


@pytest.mark.spec("FLOW-10")
@pytest.mark.parametrize("transient", [DataUnavailableError, DataBudgetExhaustedError])
def test_a_missed_data_deadline_is_a_timeout_caused_by_the_last_transient_error(transient: type[Exception]) -> None:
    """Field case Q13."""
    flow = Flow(data_wait_timeout=0.3)
    errors = [transient(f"attempt {i}") for i in range(100)]
    with pytest.raises(TimeoutError, match=r"data_wait_timeout=0.3 s: attempt \d+") as caught:
        flow.controller.sample_context(failing(flow.source, *errors), B, None)
    assert 1000.3 <= flow.clock.now <= 1000.32
    attempts = len(flow.clock.sleeps) + 1
    assert caught.value.__cause__ is errors[attempts - 1]


@pytest.mark.spec("FLOW-10")
@pytest.mark.parametrize(
    "error",
    [ValueError("bad window"), OnlineDataWorkerError("gone"), LockTimeoutError("held"), Cancelled(), RuntimeError()],
    ids=lambda error: type(error).__name__,
)
def test_anything_else_is_raised_at_the_first_probe(error: BaseException) -> None:
    """Field case Q13."""
    flow = Flow()
    with pytest.raises(type(error)) as caught:
        flow.controller.sample_context(failing(flow.source, error), B, None)
    assert caught.value is error
    assert flow.clock.sleeps == []


@pytest.mark.spec("FLOW-10", "FLOW-11")
def test_a_worker_that_fails_during_a_wait_ends_the_wait() -> None:
    flow = Flow()
    flow.leave(0)
    failure = OnlineDataWorkerError("gone", "ValueError", "traceback")
    sleep = flow.clock.sleep

    def sleep_and_fail(seconds: float) -> None:
        sleep(seconds)
        if len(flow.clock.sleeps) == 3:
            flow.engine.failure = failure

    flow.controller._sleep = sleep_and_fail
    with pytest.raises(OnlineDataWorkerError) as caught:
        flow.controller.sample_context(flow.source, B, None)
    assert caught.value is failure
    assert len(flow.clock.sleeps) == 3


# ---------------------------------------------------------------- unlocked budget


@pytest.mark.spec("FLOW-05")
def test_a_batch_that_is_not_funded_in_time_is_a_timeout_that_says_what_was_seen() -> None:
    flow = Flow(data_wait_timeout=1.5)
    flow.leave(10)
    with pytest.raises(TimeoutError, match=r"1.5 s: 10 chunks .* needs 64; 1 of 2 requested .* 12 episodes") as caught:
        flow.controller.prepare_batch(B)
    assert isinstance(caught.value.__cause__, DataBudgetExhaustedError)
    assert 1001.5 <= flow.clock.now <= 1001.52
    assert flow.intervals == [("quota_wait", 1000.0, flow.clock.now)]


@pytest.mark.spec("FLOW-05", "FLOW-11")
def test_there_is_no_sleep_once_the_condition_holds() -> None:
    """Field case T10."""
    flow = Flow(poll_interval=2.0)
    assert flow.controller.prepare_batch(B)
    assert flow.clock.sleeps == []

    slow = Flow(poll_interval=3.0)
    slow.leave(0)
    assert slow.controller.prepare_batch(B)  # the first group is published at 4 s
    assert slow.clock.sleeps == [3.0, 3.0]


@pytest.mark.spec("FLOW-11")
def test_a_sleep_never_overshoots_its_deadline() -> None:
    flow = Flow(poll_interval=10.0, data_wait_timeout=0.25)
    flow.leave(0)
    with pytest.raises(TimeoutError):
        flow.controller.prepare_batch(B)
    assert flow.clock.sleeps == [0.25]


# ---------------------------------------------------------------- generations


@pytest.mark.spec("FLOW-09")
def test_waiting_for_a_generation_means_its_last_publication() -> None:
    flow = Flow()
    generation = flow.controller.request_refill()
    assert generation == 2
    flow.controller.wait_for_generation(generation)
    assert flow.clock.now == pytest.approx(1012.0)
    assert flow.engine.episodes == 24
    assert flow.intervals == [("data_wait", 1000.0, flow.clock.now)]


@pytest.mark.spec("FLOW-09")
@pytest.mark.parametrize(
    ("timeout", "deadline", "ends"), [(5.0, None, 1005.0), (5.0, 1003.0, 1003.0), (5.0, 1100.0, 1005.0)]
)
def test_a_deadline_can_only_shorten_the_configured_timeout(
    timeout: float, deadline: float | None, ends: float
) -> None:
    """Field case U09."""
    flow = Flow(generation_timeout=timeout)
    generation = flow.controller.request_refill()
    assert generation is not None
    with pytest.raises(TimeoutError, match="generation 2 is not complete at its deadline: 1 of 2 .* 16 episodes|12 ep"):
        flow.controller.wait_for_generation(generation, deadline=deadline)
    assert flow.clock.now == pytest.approx(ends)


@pytest.mark.spec("FLOW-09")
def test_a_deadline_that_has_passed_ends_the_wait_at_once() -> None:
    """Field case U09."""
    flow = Flow()
    generation = flow.controller.request_refill()
    assert generation is not None
    with pytest.raises(TimeoutError):
        flow.controller.wait_for_generation(generation, deadline=999.0)
    assert flow.clock.now == 1000.0
    flow.controller.wait_for_generation(1, deadline=999.0)  # complete already: nothing was missed


@pytest.mark.spec("FLOW-09")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, True, "soon"])
def test_a_deadline_that_is_no_time_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="deadline must be a finite number >= 0"):
        Flow().controller.wait_for_generation(1, deadline=bad)


@pytest.mark.spec("FLOW-09")
def test_a_lock_that_stays_taken_is_not_taken_for_a_slow_producer() -> None:
    flow = Flow()

    def stuck(generation: int, timeout: float) -> None:
        raise LockTimeoutError("held by a process that is suspended")

    flow.engine.wait_for_generation = stuck  # type: ignore[method-assign]
    with pytest.raises(LockTimeoutError):
        flow.controller.wait_for_generation(1)


# ---------------------------------------------------------------- callbacks


@pytest.mark.spec("FLOW-11", "FLOW-12")
@pytest.mark.parametrize("wait", ["quota", "throttle", "data", "generation"])
def test_progress_cancels_any_wait_at_its_next_check(wait: str) -> None:
    """Field case U09."""
    flow = Flow(half_second_plan())
    flow.start_batch()
    flow.intervals.clear()
    generation = flow.controller.request_refill()
    assert generation is not None
    if wait in ("quota", "data"):
        flow.leave(0)
    flow.controller._progress = cancel = CancelAt(3)
    started = flow.clock.now
    with pytest.raises(Cancelled):
        if wait in ("quota", "throttle"):
            flow.controller.prepare_batch(B)
        elif wait == "data":
            flow.controller.sample_context(flow.source, B, None)
        else:
            flow.controller.wait_for_generation(generation)
    assert cancel.calls == 3
    assert flow.clock.now - started <= 3 * 0.02 + 1e-9
    kind = {"quota": "quota_wait", "throttle": "usage_throttle"}.get(wait, "data_wait")
    assert flow.intervals[-1] == (kind, started, flow.clock.now)


@pytest.mark.spec("FLOW-11")
@pytest.mark.parametrize("wait", ["quota", "throttle", "data", "generation"])
def test_every_wait_drains_events_and_checks_health_between_sleeps(wait: str) -> None:
    flow = Flow(half_second_plan(), data_wait_timeout=0.5)
    flow.start_batch()
    generation = flow.controller.request_refill()
    assert generation is not None
    drains, checks, sleeps = flow.engine.drains, flow.engine.health_checks, len(flow.clock.sleeps)
    if wait == "throttle":
        flow.controller.prepare_batch(B)
    else:
        if wait != "generation":
            flow.leave(0)
        with pytest.raises(TimeoutError):
            if wait == "quota":
                flow.controller.prepare_batch(B)
            elif wait == "data":
                flow.controller.sample_context(flow.source, B, None)
            else:
                flow.controller.wait_for_generation(generation, deadline=flow.clock.now + 0.5)
    slept = len(flow.clock.sleeps) - sleeps
    assert slept >= 20
    assert flow.engine.drains - drains >= slept
    assert flow.engine.health_checks - checks >= slept


@pytest.mark.spec("FLOW-12")
def test_events_reach_the_observer_and_are_drained_without_one() -> None:
    flow = Flow()
    flow.engine.events = [{"kind": "published"}, {"kind": "evicted"}]
    flow.controller.poll()
    assert [event["kind"] for event in flow.events] == ["published", "evicted"]
    assert flow.engine.events == []

    engine = FakeEngine(FakeClock())
    engine.events = [{"kind": "published"}]
    assert ODSFlowController(engine).drain_events() == [{"kind": "published"}]
    assert engine.events == []


@pytest.mark.spec("FLOW-13")
def test_final_events_can_be_drained_after_a_failure() -> None:
    flow = Flow()
    flow.engine.failure = OnlineDataWorkerError("gone")
    flow.engine.events = [{"kind": "published"}]
    assert flow.controller.drain_events() == [{"kind": "published"}]
    flow.engine.events = [{"kind": "evicted"}]
    with pytest.raises(OnlineDataWorkerError):
        flow.controller.poll()
    assert [event["kind"] for event in flow.events] == ["published", "evicted"]


@pytest.mark.spec("FLOW-12")
def test_every_wait_is_reported_also_when_it_took_no_time() -> None:
    flow = Flow()
    flow.start_batch()
    assert flow.intervals == [
        ("quota_wait", 1000.0, 1000.0),
        ("usage_throttle", 1000.0, 1000.0),
        ("data_wait", 1000.0, 1000.0),
    ]


@pytest.mark.spec("FLOW-12")
def test_intervals_are_the_host_monotonic_times_of_the_waits() -> None:
    flow = Flow(half_second_plan())
    flow.start_batch()
    flow.clock.now += 0.125
    flow.start_batch()
    kind, started, ended = flow.intervals[4]
    assert (kind, started) == ("usage_throttle", 1000.125)
    assert ended == pytest.approx(1000.5)


@pytest.mark.spec("FLOW-12")
@pytest.mark.parametrize("failure", [RuntimeError("observer"), KeyboardInterrupt("observer")], ids=["error", "exit"])
def test_an_observers_failure_becomes_a_note_on_the_error_under_way(failure: BaseException) -> None:
    flow = Flow(data_wait_timeout=0.1)
    flow.leave(0)

    def observe(kind: str, started: float, ended: float) -> None:
        raise failure

    flow.controller._on_interval = observe
    for wait in (
        lambda: flow.controller.prepare_batch(B),
        lambda: flow.controller.sample_context(flow.source, B, None),
        lambda: flow.controller.wait_for_generation(2, deadline=flow.clock.now),
    ):
        with pytest.raises(TimeoutError) as caught:
            wait()
        (note,) = caught.value.__notes__
        assert note.startswith("on_interval failed as well, reporting ")
        assert "'observer'" in note


@pytest.mark.spec("FLOW-12")
def test_an_observers_failure_is_raised_when_nothing_else_failed() -> None:
    flow = Flow()

    def observe(kind: str, started: float, ended: float) -> None:
        raise RuntimeError(f"observer of {kind}")

    flow.controller._on_interval = observe
    with pytest.raises(RuntimeError, match="observer of quota_wait"):
        flow.controller.prepare_batch(B)


@pytest.mark.spec("FLOW-12")
def test_an_error_that_the_caller_is_handling_hides_no_observers_failure() -> None:
    flow = Flow()

    def observe(kind: str, started: float, ended: float) -> None:
        raise RuntimeError(f"observer of {kind}")

    flow.controller._on_interval = observe
    try:
        raise ValueError("handled")
    except ValueError as handled:
        with pytest.raises(RuntimeError, match="observer of quota_wait"):
            flow.controller.prepare_batch(B)
        assert not hasattr(handled, "__notes__")


@pytest.mark.spec("FLOW-12")
def test_a_failing_refill_observer_does_not_repeat_the_request() -> None:
    flow = Flow()
    flow.leave(100)
    flow.controller._on_refill = lambda generation, at: 1 / 0
    with pytest.raises(ZeroDivisionError):
        flow.controller.prepare_batch(B)
    assert flow.controller.prepare_batch(B)
    assert len(flow.engine.requests) == 1


@pytest.mark.spec("FLOW-02", "FLOW-11")
def test_no_lock_of_the_engine_is_needed_while_it_waits() -> None:
    """Field case Q06."""
    flow = Flow()
    lock = threading.Lock()
    status = flow.engine.get_flow_status

    def locked_status() -> dict[str, int | None]:
        with lock:
            return status()

    flow.engine.get_flow_status = locked_status  # type: ignore[method-assign]
    flow.leave(0)
    held_during_sleep = []
    sleep = flow.clock.sleep

    def watched_sleep(seconds: float) -> None:
        held_during_sleep.append(lock.locked())
        sleep(seconds)

    flow.controller._sleep = watched_sleep
    assert flow.controller.prepare_batch(B)
    assert held_during_sleep
    assert not any(held_during_sleep)


@pytest.mark.spec("FLOW-01")
def test_real_time_is_the_default() -> None:
    engine = FakeEngine(FakeClock(), FakeEngineCfg())
    intervals: list[tuple[str, float, float]] = []
    fast = replace(PLAN, training_chunks_per_second_target=64 * 200.0, active_chunks_per_second_cap=64 * 200.0)
    controller = ODSFlowController(
        engine, ODSFlowControllerCfg(), plan=fast, on_interval=lambda *interval: intervals.append(interval)
    )
    for _ in range(3):
        assert controller.prepare_batch(B)
    throttles = [interval for interval in intervals if interval[0] == "usage_throttle"]
    ends = [ended for _, _, ended in throttles]
    assert all(later - earlier >= 0.005 for earlier, later in zip(ends, ends[1:], strict=False))
