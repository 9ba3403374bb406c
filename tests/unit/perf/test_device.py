from __future__ import annotations

import subprocess
import sys

import pytest

from odstream.perf.device import CudaTimer, device_timer
from odstream.perf.facts import FactFinder
from odstream.perf.meter import LearnerMeter
from odstream.perf.shape import PipelineShape
from odstream.perf.window import Windows
from tests.fakes.clock import FakeClock


class Stream:
    """A device that stamps events when it gets to them, behind the host."""

    def __init__(self) -> None:
        self.time_ms = 0.0
        self.reached = 0
        self.recorded = 0
        self.made = 0

    def event(self) -> Event:
        self.made += 1
        return Event(self)

    def synchronise(self) -> None:
        self.reached = self.recorded


class Event:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def record(self) -> None:
        self._stream.recorded += 1
        self._number, self.at_ms = self._stream.recorded, self._stream.time_ms

    def query(self) -> bool:
        return self._stream.reached >= self._number

    def elapsed_time(self, end_event: Event) -> float:
        assert self.query() and end_event.query(), "read before the device got there"
        return end_event.at_ms - self.at_ms


@pytest.mark.spec("PERF-03")
def test_the_time_is_the_devices_and_is_read_at_a_synchronisation_that_happens_anyway() -> None:
    """Field case T01."""
    stream, clock = Stream(), FakeClock()
    meter = LearnerMeter(warmup_steps=0, timer=CudaTimer(stream.event), clock_ns=clock)
    windows, finder = Windows(clock_ns=clock), FactFinder(PipelineShape(batch_size=8))
    windows.restart([meter.snapshot()])
    for _ in range(10):
        with meter.during("fetch"):
            clock.advance(0.003)
        meter.deliver(8)
        with meter.update():
            clock.advance(0.0001)  # the launch
            stream.time_ms += 12.0
        assert meter.snapshot().counts["device_steps"] == 0
    stream.synchronise()
    window = windows.add([meter.snapshot()])
    assert window is not None
    facts = finder.facts(window)
    assert facts.compute_s == pytest.approx(0.012)
    assert facts.data_s == pytest.approx(0.003)
    assert facts.step_s == pytest.approx(0.012), "training cannot be faster than its device"
    assert facts.train_per_s == pytest.approx(8 / 0.012)


def test_events_are_used_again() -> None:
    stream = Stream()
    timer = CudaTimer(stream.event)
    for _ in range(50):
        timer.begin()
        timer.end(completes_step=True)
        stream.synchronise()
        timer.collect()
    assert stream.made == 2


def test_accumulated_batches_are_one_step_of_the_device() -> None:
    stream, clock = Stream(), FakeClock()
    meter = LearnerMeter(warmup_steps=0, timer=CudaTimer(stream.event), clock_ns=clock)
    for _ in meter.batches(range(6), size=1, accumulate=3):
        stream.time_ms += 4.0
    stream.synchronise()
    counts = meter.snapshot().counts
    assert (counts["device_steps"], counts["device_ns"]) == (2, 24_000_000)


@pytest.mark.spec("PERF-03")
def test_a_process_that_uses_a_device_is_timed_on_it_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert device_timer() is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Stream().event())
    assert isinstance(device_timer(), CudaTimer)


def test_the_warm_up_is_not_timed() -> None:
    stream, clock = Stream(), FakeClock()
    meter = LearnerMeter(timer=CudaTimer(stream.event), clock_ns=clock)
    for _ in meter.batches(range(3), size=1):
        stream.time_ms += 5.0
    stream.synchronise()
    assert meter.snapshot().counts["device_steps"] == 2


def test_an_evaluation_in_the_midst_of_an_update_is_no_compute_time() -> None:
    """Field case T01: on the device as on the host."""
    stream, clock = Stream(), FakeClock()
    meter = LearnerMeter(warmup_steps=0, timer=CudaTimer(stream.event), clock_ns=clock)
    for number in meter.batches(range(4), size=1):
        stream.time_ms += 6.0
        clock.advance(0.006)
        if number % 2:
            with meter.during("eval"):
                stream.time_ms += 1000.0
                clock.advance(1.0)
        stream.time_ms += 2.0
        clock.advance(0.002)
    stream.synchronise()
    found = meter.snapshot()
    assert (found.counts["device_steps"], found.counts["device_ns"]) == (4, 32_000_000)
    assert (found.states_ns["compute"], found.states_ns["eval"]) == (32_000_000, 2_000_000_000)


def test_a_step_that_is_completed_after_the_loop_was_left_is_one_step_of_the_device() -> None:
    stream, clock = Stream(), FakeClock()
    meter = LearnerMeter(warmup_steps=0, timer=CudaTimer(stream.event), clock_ns=clock)
    for number in meter.batches(range(9), size=1):
        stream.time_ms += 5.0
        if number == 2:
            break
    stream.time_ms += 700.0
    meter.complete()
    stream.synchronise()
    counts = meter.snapshot().counts
    assert (counts["steps"], counts["device_steps"], counts["device_ns"]) == (3, 3, 15_000_000)


def test_a_failed_update_costs_time_and_is_no_step() -> None:
    stream, clock = Stream(), FakeClock()
    meter = LearnerMeter(warmup_steps=0, timer=CudaTimer(stream.event), clock_ns=clock)
    for fails in (False, True, False):
        meter.deliver(1)
        try:
            with meter.update():
                stream.time_ms += 3.0
                if fails:
                    raise ArithmeticError
        except ArithmeticError:
            stream.time_ms += 50.0
    stream.synchronise()
    counts = meter.snapshot().counts
    assert (counts["device_steps"], counts["device_ns"]) == (2, 9_000_000)


def test_between_two_records_there_may_be_any_number_of_steps() -> None:
    stream = Stream()
    timer = CudaTimer(stream.event)
    for _ in range(20_000):
        timer.begin()
        stream.time_ms += 1.0
        timer.end(completes_step=True)
        stream.reached = stream.recorded - 20  # ten updates behind the host
    assert stream.made < 200, "events are used again"
    stream.synchronise()
    assert timer.collect() == (20_000 * 1_000_000, 20_000)
    assert timer.collect() == (0, 0)


def test_a_device_that_never_gets_there_is_an_error_and_no_leak() -> None:
    timer = CudaTimer(Stream().event)
    with pytest.raises(RuntimeError, match="the device has finished none of the last 4096 updates"):
        for _ in range(5000):
            timer.begin()
            timer.end(completes_step=True)
    with pytest.raises(RuntimeError, match="needs a begin"):
        CudaTimer(Stream().event).end(completes_step=True)


@pytest.mark.spec("PERF-03")
def test_real_events_time_the_device_and_not_the_launch() -> None:
    """Field case T01."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    meter = LearnerMeter(warmup_steps=1, timer=CudaTimer())
    matrix = torch.randn(4096, 4096, device="cuda")
    for _ in meter.batches(range(11), size=1):
        for _ in range(50):
            matrix @ matrix
    launched_ns = meter.totals_ns()["compute"]
    torch.cuda.synchronize()
    counts = meter.snapshot().counts
    assert counts["device_steps"] == 10
    assert counts["device_ns"] > launched_ns


def test_without_a_device_the_timer_says_to_leave_it_out() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(RuntimeError, match="there is no CUDA device to time; leave the timer out"):
        CudaTimer()


def test_metrics_import_no_torch() -> None:
    code = "import sys, odstream.perf, odstream.perf.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 0
