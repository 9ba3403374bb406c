from __future__ import annotations

import pytest

from odstream.perf.ages import AgeHistogram
from odstream.perf.facts import FactFinder, PoolReading, imbalances, total_rate
from odstream.perf.meter import LearnerMeter, ProducerMeter, Snapshot
from odstream.perf.metrics import Readings
from odstream.perf.shape import PipelineShape
from odstream.perf.window import Window, WindowCfg, Windows, difference
from tests.fakes.clock import FakeClock

S = 1_000_000_000


class Bench:
    """A learner and producers that a test drives by hand."""

    def __init__(self, producers: int = 1, **cfg: float) -> None:
        self.clock = FakeClock()
        self.learner = LearnerMeter(warmup_steps=0, clock_ns=self.clock)
        self.producers = [ProducerMeter(f"engine{number}", clock_ns=self.clock) for number in range(producers)]
        self.windows = Windows(WindowCfg(**cfg), clock_ns=self.clock)  # type: ignore[arg-type]
        self.finder = FactFinder(PipelineShape(batch_size=8))
        self.windows.restart(self.snapshots())

    def snapshots(self) -> list[Snapshot]:
        return [meter.snapshot() for meter in (self.learner, *self.producers)]

    def step(self, seconds: float, selections: int = 8) -> None:
        self.learner.deliver(selections)
        with self.learner.update():
            self.clock.advance(seconds)

    def call(self, seconds: float, accepted: int = 8, producer: int = 0) -> None:
        self.producers[producer].enter("busy")
        self.clock.advance(seconds)
        self.producers[producer].finish(accepted=accepted)

    def add(self) -> Window:
        window = self.windows.add(self.snapshots())
        assert window is not None
        return window


@pytest.mark.parametrize(
    ("step_s", "calls_per_step", "expected_s"),
    [
        (0.5, 1.0, 10.0),  # the shortest time decides: twenty steps take as long
        (0.1, 1.0, 10.0),
        (12.0, 1.0, 240.0),  # twenty steps
        (0.5, 0.05, 40.0),  # five ends of calls, one in twenty steps
        (60.0, 1.0, 600.0),  # the cap, though it holds ten steps only
    ],
)
def test_slow_steps_and_slow_calls_widen_the_window(step_s: float, calls_per_step: float, expected_s: float) -> None:
    bench = Bench()
    due, window = 0.0, None
    for _ in range(800):
        bench.step(step_s)
        due += calls_per_step
        if due >= 1 - 1e-9:
            due -= 1
            bench.producers[0].finish(accepted=1)
        window = bench.add()
    assert window is not None
    assert expected_s <= window.duration_ns / 1e9 <= expected_s + max(step_s, 20 * step_s * (calls_per_step < 1))
    assert window.complete == (step_s < 60)


def test_the_number_of_edges_kept_is_bounded() -> None:
    bench = Bench(min_steps=1, min_intervals=0)
    for _ in range(5000):
        bench.step(0.05)
        if bench.windows.due(bench.clock()):
            bench.add()
    assert len(bench.windows._edges) <= 23


def test_a_step_longer_than_the_cap_is_still_a_window() -> None:
    bench = Bench()
    for _ in range(4):
        bench.step(700.0)
        window = bench.add()
    assert bench.finder.facts(window).thru_per_s == pytest.approx(8 / 700)


def test_the_slowest_process_is_found_by_its_own_difference() -> None:
    """Field case T09: cumulative [10, 0] becomes [10, 8]; the slowest did 8 in this window, not 0."""
    clock = FakeClock()
    ranks = [LearnerMeter(f"rank{number}", warmup_steps=0, clock_ns=clock) for number in range(2)]

    def work(rank: int, seconds: float) -> None:
        ranks[rank].deliver(1)
        with ranks[rank].update():
            clock.advance(seconds)

    work(0, 10.0)
    windows = Windows(clock_ns=clock)
    windows.restart([rank.snapshot() for rank in ranks])
    work(1, 8.0)
    window = windows.add([rank.snapshot() for rank in ranks])
    assert window is not None
    facts = FactFinder(PipelineShape(batch_size=1)).facts(window)
    assert (facts.step_s, facts.compute_s) == (8.0, 8.0)


@pytest.mark.spec("PERF-04")
def test_engines_that_work_side_by_side_add_up() -> None:
    """Field case T09: two engines, each 20 samples in one call of 2 s, within 10 s: 20/s and 2 s."""
    bench = Bench(producers=2)
    for number in range(2):
        bench.producers[number].enter("busy")
    bench.clock.advance(2.0)
    for number in range(2):
        bench.producers[number].finish(accepted=20)
    bench.clock.advance(8.0)
    facts = bench.finder.facts(bench.add())
    assert facts.infer_per_s == pytest.approx(20.0)
    assert facts.call_s == pytest.approx(2.0)


def test_over_ranks_the_slowest_step_counts_and_the_skew_is_said() -> None:
    clock = FakeClock()
    ranks = [LearnerMeter(f"rank{number}", warmup_steps=0, clock_ns=clock) for number in range(2)]
    windows = Windows(clock_ns=clock)
    windows.restart([rank.snapshot() for rank in ranks])
    for rank in ranks:
        rank.deliver(4)
        rank.begin_compute()
    clock.advance(1.0)
    ranks[0].complete()
    clock.advance(1.0)
    ranks[1].complete()
    window = windows.add([rank.snapshot() for rank in ranks])
    assert window is not None
    facts = FactFinder(PipelineShape(batch_size=8)).facts(window)
    assert (facts.step_s, facts.step_skew_s) == (2.0, 1.0)
    assert facts.train_per_s == pytest.approx(4.0), "the global batch over the slowest rank's step"
    assert facts.thru_per_s == pytest.approx(4.0)


def test_a_rate_is_total_over_total() -> None:
    """Field case T04."""
    assert total_rate([100] * 4, [100, 1, 50, 1]) == pytest.approx(400 / 152)
    bench = Bench()
    for seconds in (100, 1, 50, 1):
        bench.step(seconds, selections=100)
    assert bench.finder.facts(bench.add()).thru_per_s == pytest.approx(400 / 152)
    assert total_rate([], []) is None
    with pytest.raises(ValueError, match="of one length, got 1 and 2"):
        total_rate([1], [1, 2])


@pytest.mark.spec("PERF-02")
def test_a_wait_between_two_steps_is_in_throughput_and_in_no_capacity() -> None:
    """Field case T06."""
    bench = Bench()
    bench.step(1.0)
    with bench.learner.during("wait"):
        bench.clock.advance(10.0)
    bench.step(1.0)
    facts = bench.finder.facts(bench.add())
    assert (facts.step_s, facts.train_per_s) == (1.0, 8.0)
    assert facts.thru_per_s == pytest.approx(16 / 12)
    assert facts.wait_s == 5.0, "ten seconds over two steps"


def test_a_window_in_which_nothing_was_produced_keeps_the_capacity_and_marks_it_stale() -> None:
    bench = Bench(min_s=1.0, min_steps=1, min_intervals=0)
    readings = Readings()
    bench.call(2.0)
    bench.step(1.0)
    values, stale = readings.read(bench.finder.facts(bench.add()))
    assert (values["perf/infer_capacity"], "perf/infer_capacity" in stale) == (4.0, False)
    for _ in range(5):
        bench.step(1.0)
        values, stale = readings.read(bench.finder.facts(bench.add()))
    assert values["perf/infer_capacity"] == 4.0
    assert {"perf/infer_capacity", "perf/infer_batch_time"} <= stale


def test_many_slots_with_long_calls_have_a_fresh_capacity() -> None:
    """Each window holds some calls of some slots; the others count with what they did last."""
    bench = Bench(producers=4, min_s=1.0, min_steps=1, min_intervals=1)
    for number in range(12):
        bench.call(1.0, producer=number % 4)
        bench.step(0.5)
        values, stale = Readings().read(bench.finder.facts(bench.add()))
        assert values["perf/infer_capacity"] == pytest.approx(8.0 * min(number + 1, 4))
        assert "perf/infer_capacity" not in stale


def test_a_slot_that_never_gets_a_task_does_not_make_the_capacity_stale() -> None:
    bench = Bench(producers=2, min_s=1.0, min_steps=1, min_intervals=1)
    bench.call(2.0)
    bench.step(1.0)
    values, stale = Readings().read(bench.finder.facts(bench.add()))
    assert (values["perf/infer_capacity"], "perf/infer_capacity" in stale) == (4.0, False)


def test_a_publication_under_way_is_no_capacity_of_zero() -> None:
    bench = Bench(min_s=1.0, min_steps=1, min_intervals=0)
    bench.call(2.0)
    bench.step(1.0)
    finder = bench.finder
    assert finder.facts(bench.add()).infer_per_s == 4.0
    window = bench.add()
    (slot,) = window.producers
    slot.counts["service_publish_ns"] = S  # type: ignore[index]
    slot.counts["calls"] = slot.counts["accepted"] = 0  # type: ignore[index]
    facts = finder.facts(window)
    assert (facts.infer_per_s, facts.infer_stale) == (4.0, True)


def test_what_was_never_known_is_absent_and_not_zero() -> None:
    bench = Bench(producers=0)
    bench.step(1.0)
    values, stale = Readings().read(bench.finder.facts(bench.add()))
    assert not {"perf/infer_capacity", "perf/pool", "perf/age_p50", "perf/producer/busy"} & values.keys()
    assert not stale


def test_an_engine_that_is_down_has_no_capacity() -> None:
    bench = Bench(producers=2)
    for number in range(2):
        bench.call(2.0, producer=number)
    bench.producers[1].enter("down")
    facts = bench.finder.facts(bench.add())
    assert facts.infer_per_s == pytest.approx(4.0)
    assert facts.slots_down == 1


def test_a_restarted_process_counts_from_zero_and_nothing_it_did_before_is_forgotten() -> None:
    bench = Bench()
    bench.call(1.0)
    bench.add()
    bench.producers[0] = ProducerMeter("engine0", incarnation=1, clock_ns=bench.clock)
    bench.call(1.0, accepted=3)
    window = bench.add()
    assert window.totals["accepted"] == 11
    assert bench.finder.facts(window).accepted == 3


def test_counters_that_go_backwards_are_refused() -> None:
    bench = Bench()
    bench.call(1.0)
    before = bench.producers[0].snapshot()
    with pytest.raises(ValueError, match="'engine0' decreased by .*: a process that starts again needs another"):
        difference(before, ProducerMeter("engine0", clock_ns=bench.clock).snapshot())
    with pytest.raises(ValueError, match="names must be unique within a role"):
        bench.windows.add([before, before])


def test_counts_balance_and_what_does_not_is_said() -> None:
    totals = {"accepted": 11, "published": 10, "lost": 1, "delivered": 20, "completed": 12, "failed_updates": 4}
    pool = PoolReading(delivered=24, remaining=10, retired=6)
    assert imbalances(totals, pool, 4) == []
    assert imbalances({**totals, "lost": 0}, pool, 4) == ["accepted 11 != published 10 + lost 0"]
    assert "4 x published = 40, but delivered 24 + remaining 9 + retired 6 = 39" in imbalances(
        totals, PoolReading(delivered=24, remaining=9, retired=6), 4
    )
    assert "received, the cache has delivered 19" in imbalances(totals, PoolReading(delivered=19), 4)[0]
    assert "more than the 20 selections delivered" in imbalances({**totals, "completed": 17}, pool, 4)[0]


def test_percentiles_of_ages_are_right_within_their_bucket_and_of_the_window_alone() -> None:
    ages = AgeHistogram()
    ages.add([1000.0] * 50)
    before = ages.copy()
    ages.add([index / 100 for index in range(1, 101)])
    within = ages.since(before)
    assert len(within) == 100
    assert within.quantile_s(0.5) == pytest.approx(0.50, rel=0.045)
    assert within.quantile_s(0.95) == pytest.approx(0.95, rel=0.045)
    assert AgeHistogram().quantile_s(0.5) is None
    assert len(AgeHistogram.sum([within, before])) == 150
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="ages_s must be finite and at least 0"):
            ages.add(wrong)


@pytest.mark.parametrize(
    "wrong", [{"min_s": 0.0}, {"min_steps": 0}, {"min_intervals": -1}, {"max_s": 1.0}, {"min_s": float("nan")}]
)
def test_windows_without_length_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WindowCfg(**wrong)  # type: ignore[arg-type]
