from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from queue import Queue

import pytest

from odstream.perf.facts import PoolReading, imbalances
from odstream.perf.meter import LearnerMeter, ProducerMeter
from odstream.perf.monitor import PerfMonitor
from odstream.perf.progress import ProgressBar
from odstream.perf.records import Record
from odstream.perf.shape import PipelineShape
from odstream.perf.window import WindowCfg
from tests.fakes.clock import FakeClock
from tests.fakes.pipeline import Engine, Learner, simulate

SHAPE = PipelineShape(batch_size=8)


class Sink:
    def __init__(self, fails: bool = False) -> None:
        self.records: list[Record] = []
        self.closed = 0
        self.fails = fails

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed += 1
        if self.fails:
            raise OSError("disk full")


def monitor(clock: FakeClock, *sinks: Sink) -> PerfMonitor:
    return PerfMonitor(LearnerMeter(clock_ns=clock), SHAPE, sinks=sinks, clock_ns=clock, unix_ns=lambda: 5)


@pytest.mark.spec("PERF-02")
def test_records_have_the_step_as_their_axis_and_no_wait_for_a_slow_loop() -> None:
    clock, sink = FakeClock(), Sink()
    with monitor(clock, sink) as perf:
        for number in perf.batches(range(6)):
            clock.advance(12.0)
            perf.note(loss=0.5 + number, accuracy=0.25)
    assert [record.step for record in sink.records] == [2, 3, 4, 5, 6]
    last = sink.records[-1]
    assert (last.values["train/loss"], last.values["train/accuracy"]) == (5.5, 0.25)
    assert last.values["perf/thru"] == pytest.approx(8 / 12)
    assert sink.closed == 1


def test_fast_steps_are_recorded_once_per_second_and_the_rest_at_the_end() -> None:
    clock, sink = FakeClock(), Sink()
    with monitor(clock, sink) as perf:
        for _ in perf.batches(range(2051)):
            clock.advance(0.002)
    assert 3 <= len(sink.records) <= 5
    assert sink.records[-1].step == 2051


def test_what_was_noted_once_is_fresh_in_one_record() -> None:
    clock, sink = FakeClock(), Sink()
    with monitor(clock, sink) as perf:
        for number in perf.batches(range(6)):
            clock.advance(12.0)
            if number == 2:
                perf.note(eval_success=0.5)
    noted = [
        (record.values.get("train/eval_success"), "train/eval_success" in record.fresh()) for record in sink.records
    ]
    assert noted == [(None, False), (0.5, True), *[(0.5, False)] * 3]


def test_what_comes_after_the_loop_is_in_no_record() -> None:
    clock, sink = FakeClock(), Sink()
    with monitor(clock, sink) as perf:
        batches = perf.batches(range(99))
        for number in batches:
            clock.advance(0.1)
            if number == 50:
                break
        clock.advance(60.0)
    last = sink.records[-1].values
    assert last["perf/thru"] == pytest.approx(80.0, rel=0.05)
    assert (last["perf/in_flight"], sink.records[-1].step) == (8, 50)


def test_the_warm_up_is_in_no_window() -> None:
    clock, sink = FakeClock(), Sink()
    with monitor(clock, sink) as perf:
        for number in perf.batches(range(4)):
            clock.advance(100.0 if number == 0 else 1.0)
    assert {record.values["perf/step_time"] for record in sink.records} == {1.0}
    assert sink.records[-1].values["perf/completed"] == 32, "counts are since the start"


def test_all_sinks_and_the_bar_are_closed_also_if_one_fails_or_the_loop_does() -> None:
    clock, file = FakeClock(), io.StringIO()
    sinks = [Sink(), Sink(fails=True), Sink()]
    perf = PerfMonitor(
        LearnerMeter(clock_ns=clock), SHAPE, sinks=sinks, progress=ProgressBar(9, file=file), clock_ns=clock
    )
    with pytest.raises(ArithmeticError, match="loss is nan") as caught, perf:
        for _ in perf.batches(range(9)):
            raise ArithmeticError("loss is nan")
    assert caught.value.__notes__ == ["closing the metrics failed as well: OSError: disk full"]
    assert [sink.closed for sink in sinks] == [1, 1, 1]


@pytest.mark.spec("PERF-06")
def test_the_verdict_needs_two_windows_that_share_no_time() -> None:
    outcome = simulate(
        PipelineShape(batch_size=8, producer_batch=8, pool_capacity=64),
        [Engine(call_s=0.1)],
        Learner(fetch_s=0.005, compute_s=0.02),
        duration_s=30.0,
    )
    first = next(index for index, one in enumerate(outcome.records) if one.details["verdict"] == "production")
    assert 19.0 <= outcome.recorded_at_ns[first] / 1e9 <= 23.0
    assert all(one.details["verdict"] == "production" for one in outcome.records[first:])


def test_counts_balance_after_a_run_and_after_a_failed_update_and_after_a_kill() -> None:
    clock = FakeClock()
    learner, producer = LearnerMeter(clock_ns=clock), ProducerMeter(clock_ns=clock)
    sink = Sink()
    producer.finish(accepted=10)
    drawn = 0
    with PerfMonitor(
        learner,
        SHAPE,
        producers=[producer],
        pool=lambda: PoolReading(delivered=drawn, remaining=40 - drawn, retired=0),
        sinks=[sink],
        clock_ns=clock,
    ) as perf:
        for number in range(4):
            drawn += 8
            learner.deliver(8)
            try:
                with learner.update():
                    clock.advance(1.0)
                    if number == 2:
                        raise ArithmeticError
            except ArithmeticError:
                pass
        producer.enter("down")
    assert perf.record is not None
    values = perf.record.values
    assert (values["perf/delivered"], values["perf/completed"], values["perf/failed_updates"]) == (32, 24, 8)
    assert (values["perf/in_flight"], values["perf/prefetched"]) == (0, 0)
    totals = {name: int(values[f"perf/{name}"]) for name in ("accepted", "published", "lost", "delivered", "completed")}
    assert imbalances({**totals, "failed_updates": 8}, PoolReading(delivered=32, remaining=8, retired=0), 4) == []


def test_a_sink_that_cannot_be_closed_is_an_error() -> None:
    with pytest.raises(OSError, match="disk full"), monitor(FakeClock(), Sink(fails=True)):
        pass


def test_times_without_length_are_refused() -> None:
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="every_s must be finite and greater than 0"):
            PerfMonitor(LearnerMeter(), SHAPE, every_s=wrong)


@pytest.mark.spec("PERF-05", "PERF-06")
def test_real_threads_that_sleep_are_measured_as_they_are() -> None:
    """A producer of eight per call of 30 ms feeds a learner that needs 5 ms; what is compared is measured as well."""
    queue: Queue[int | None] = Queue(maxsize=2)
    producer, learner, sink = ProducerMeter(), LearnerMeter(), Sink()
    slept_s: list[float] = []

    def produce() -> None:
        for number in range(70):
            began_s = time.monotonic()
            with producer.during("busy"):
                time.sleep(0.03)
            slept_s.append(time.monotonic() - began_s)
            with producer.during("blocked"):
                queue.put(number)
            producer.finish(accepted=8)
        queue.put(None)

    def loader() -> Iterator[int]:
        while True:
            with learner.during("wait"):
                number = queue.get()
            if number is None:
                return
            yield number

    thread = threading.Thread(target=produce)
    with PerfMonitor(
        learner,
        PipelineShape(batch_size=8, producer_batch=8, pool_capacity=16),
        producers=[producer],
        sinks=[sink],
        window=WindowCfg(min_s=0.5),
        every_s=0.2,
    ) as perf:
        thread.start()
        for _ in perf.batches(loader()):
            time.sleep(0.005)
    thread.join()
    window_calls = round(sink.records[-1].values["perf/window"] / 0.03) + 5
    truth = 8 / (sum(slept_s[-window_calls:]) / len(slept_s[-window_calls:]))
    values = sink.records[-1].values
    assert values["perf/infer_capacity"] == pytest.approx(truth, rel=0.15)
    assert values["perf/thru"] == pytest.approx(truth, rel=0.15)
    assert values["perf/train_capacity"] > 2 * values["perf/infer_capacity"]
    assert perf.diagnosis.verdict == "production"
