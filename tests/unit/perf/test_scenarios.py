"""Pipelines whose truth is known, each of which an obvious implementation gets wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from odstream.perf.shape import PipelineShape
from tests.fakes.pipeline import Engine, Learner, Outcome, simulate

TOLERANCE = 0.10


@dataclass(frozen=True, kw_only=True)
class Scenario:
    shape: PipelineShape
    engines: list[Engine]
    learner: Learner
    duration_s: float = 60.0
    round_robin: bool = False
    infer: float
    train: float
    thru: float
    verdict: str
    cause: str = ""
    notes: tuple[str, ...] = ()
    """Words that the verdict must contain."""
    silent: tuple[str, ...] = ("capacity not realised", "failed", "down")
    """Words that it must not contain, unless in `notes`."""

    def run(self) -> Outcome:
        return simulate(
            self.shape,
            self.engines,
            self.learner,
            duration_s=self.duration_s,
            round_robin=self.round_robin,
        )


def bounded(**sizes: int) -> PipelineShape:
    return PipelineShape(**{"batch_size": 8, "producer_batch": 8, "pool_capacity": 32, **sizes})


SCENARIOS = {
    "a step takes longer than ten seconds": Scenario(
        shape=bounded(),
        engines=[Engine(call_s=1.0)],
        learner=Learner(compute_s=12.0),
        duration_s=1500.0,
        infer=8.0,
        train=8 / 12,
        thru=8 / 12,
        verdict="training",
        cause="compute",
    ),
    "a call of an engine takes longer than ten seconds": Scenario(
        shape=bounded(),
        engines=[Engine(call_s=15.0)],
        learner=Learner(fetch_s=0.01, compute_s=0.05),
        duration_s=2000.0,
        infer=8 / 15,
        train=8 / 0.06,
        thru=8 / 15,
        verdict="production",
    ),
    "a serial engine with requests queued on it": Scenario(
        shape=bounded(pool_capacity=64),
        engines=[Engine(call_s=0.05, queued=4)],
        learner=Learner(fetch_s=0.002, compute_s=0.01),
        infer=160.0,
        train=8 / 0.012,
        thru=160.0,
        verdict="production",
    ),
    "two unequal engines, round robin": Scenario(
        shape=bounded(pool_capacity=64),
        engines=[Engine(call_s=0.05), Engine(call_s=0.2)],
        learner=Learner(fetch_s=0.002, compute_s=0.01),
        round_robin=True,
        infer=200.0,
        train=8 / 0.012,
        thru=80.0,
        verdict="production",
        cause="tasks",
        notes=("capacity not realised",),
    ),
    "one generation in five fails": Scenario(
        shape=bounded(),
        engines=[Engine(call_s=8 * 0.8 / 54, fails=lambda call: call % 5 == 0)],
        learner=Learner(fetch_s=0.005, compute_s=0.02),
        infer=54.0,
        train=8 / 0.025,
        thru=54.0,
        verdict="production",
        notes=("20% of the generations failed",),
    ),
    "data takes six times as long as compute": Scenario(
        shape=bounded(),
        engines=[Engine(call_s=0.05)],
        learner=Learner(fetch_s=0.3, compute_s=0.05),
        infer=160.0,
        train=8 / 0.35,
        thru=8 / 0.35,
        verdict="training",
        cause="data path",
    ),
    "a full pool emptied by one call per sample": Scenario(
        shape=bounded(batch_size=32, pool_capacity=256),
        engines=[Engine(call_s=0.02)],
        learner=Learner(fetch_s=32 * 0.005, compute_s=0.05),
        infer=400.0,
        train=32 / 0.21,
        thru=32 / 0.21,
        verdict="training",
        cause="data path",
    ),
    "one event per second": Scenario(
        shape=PipelineShape(batch_size=1, pool_capacity=8),
        engines=[Engine(call_s=0.5)],
        learner=Learner(fetch_s=0.1, compute_s=0.9),
        duration_s=120.0,
        infer=2.0,
        train=1.0,
        thru=1.0,
        verdict="training",
        cause="compute",
    ),
    "the plan spaces the batches": Scenario(
        shape=bounded(),
        engines=[Engine(call_s=0.05)],
        learner=Learner(fetch_s=0.01, compute_s=0.05, pace_s=0.06),
        infer=160.0,
        train=8 / 0.06,
        thru=8 / 0.12,
        verdict="paced by plan",
    ),
    "publication takes half of the producer's time": Scenario(
        shape=bounded(pool_capacity=64),
        engines=[Engine(call_s=0.05, publish_s=0.05)],
        learner=Learner(fetch_s=0.002, compute_s=0.01),
        infer=80.0,
        train=8 / 0.012,
        thru=80.0,
        verdict="production",
        cause="publication",
    ),
    "each episode is used four times": Scenario(
        shape=PipelineShape(batch_size=8, producer_batch=1, selections_per_episode=4, pool_capacity=64),
        engines=[Engine(call_s=0.1)],
        learner=Learner(fetch_s=0.01, compute_s=0.04),
        infer=40.0,
        train=160.0,
        thru=40.0,
        verdict="production",
        notes=("4.0 times the producers",),
    ),
    "the pool is too small for the bursts": Scenario(
        shape=PipelineShape(batch_size=8, producer_batch=32, pool_capacity=32),
        engines=[Engine(call_s=(0.1, 0.9))],
        learner=Learner(fetch_s=0.02, compute_s=0.08),
        infer=64.0,
        train=80.0,
        thru=64 / 1.2,
        verdict="buffer",
    ),
    "half of the engines die": Scenario(
        shape=bounded(pool_capacity=64),
        engines=[Engine(call_s=0.1), Engine(call_s=0.1, down_from_s=5.0)],
        learner=Learner(fetch_s=0.005, compute_s=0.02),
        infer=80.0,
        train=8 / 0.025,
        thru=80.0,
        verdict="production",
        notes=("producers down: 1 of 2",),
    ),
    "evaluation takes a third of the time": Scenario(
        shape=bounded(pool_capacity=4096),
        engines=[Engine(call_s=0.15)],
        learner=Learner(fetch_s=0.02, compute_s=0.08, evaluate_every=5, evaluate_s=0.25),
        infer=8 / 0.15,
        train=80.0,
        thru=8 / 0.15,
        verdict="overhead",
        cause="eval",
    ),
    "evaluation takes three quarters of the time, and a small pool is full meanwhile": Scenario(
        shape=bounded(pool_capacity=64),
        engines=[Engine(call_s=0.05)],
        learner=Learner(fetch_s=0.02, compute_s=0.08, evaluate_every=5, evaluate_s=1.5),
        duration_s=120.0,
        infer=160.0,
        train=80.0,
        thru=40 / 2.0,
        verdict="overhead",
        cause="eval",
        notes=("capacity not realised: thru = 20.0 is 25%",),
    ),
    "both sides are equally fast": Scenario(
        shape=bounded(pool_capacity=64),
        engines=[Engine(call_s=0.1)],
        learner=Learner(fetch_s=0.02, compute_s=0.08),
        infer=80.0,
        train=80.0,
        thru=80.0,
        verdict="balanced",
    ),
}


@pytest.mark.spec("PERF-02", "PERF-04", "PERF-05", "PERF-06")
@pytest.mark.parametrize("name", SCENARIOS)
def test_capacities_and_throughput_are_true_within_a_tenth_and_the_verdict_is_right(name: str) -> None:
    scenario = SCENARIOS[name]
    outcome = scenario.run()
    values, diagnosis = outcome.last.values, outcome.monitor.diagnosis
    assert values["perf/infer_capacity"] == pytest.approx(scenario.infer, rel=TOLERANCE)
    assert values["perf/train_capacity"] == pytest.approx(scenario.train, rel=TOLERANCE)
    assert values["perf/thru"] == pytest.approx(scenario.thru, rel=TOLERANCE)
    assert (diagnosis.verdict, diagnosis.cause) == (scenario.verdict, scenario.cause), str(diagnosis)
    for word in scenario.notes:
        assert word in str(diagnosis)
    for word in set(scenario.silent) - {word for word in scenario.silent if word in " ".join(scenario.notes)}:
        assert word not in str(diagnosis)


@pytest.mark.spec("PERF-05")
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_record_of_a_running_pipeline_shows_a_false_zero(name: str) -> None:
    for record in SCENARIOS[name].run().records:
        assert record.values["perf/thru"] > 0
        assert record.values["perf/train_capacity"] > 0
        assert record.values.get("perf/infer_capacity", 1.0) > 0


@pytest.mark.spec("PERF-05")
@pytest.mark.parametrize(
    "name", ["a serial engine with requests queued on it", "data takes six times as long as compute"]
)
def test_in_steady_state_throughput_is_the_smaller_capacity(name: str) -> None:
    values = SCENARIOS[name].run().last.values
    bound = min(values["perf/infer_capacity"], values["perf/train_capacity"])
    assert values["perf/thru"] == pytest.approx(bound, rel=TOLERANCE)


@pytest.mark.parametrize("name", SCENARIOS)
def test_throughput_is_what_was_completed_over_what_passed_in_every_record(name: str) -> None:
    """From the first record on: N events over the N gaps that they took, never over N - 1."""
    outcome = SCENARIOS[name].run()
    for record, end_ns in zip(outcome.records, outcome.recorded_at_ns, strict=True):
        start_ns = end_ns - round(record.values["perf/window"] * 1e9)
        truth = outcome.completed_between(start_ns, end_ns) / (end_ns - start_ns) * 1e9
        assert record.values["perf/thru"] == pytest.approx(truth)


def test_one_event_per_second_is_one_per_second_in_every_record() -> None:
    outcome = SCENARIOS["one event per second"].run()
    assert [record.values["perf/thru"] for record in outcome.records] == pytest.approx([1.0] * len(outcome.records))
    assert len(outcome.records) > 100


def test_a_full_pool_is_not_read_as_waiting_for_production() -> None:
    values = SCENARIOS["a full pool emptied by one call per sample"].run().last.values
    assert values["perf/dispatch_wait"] == 0.0
    assert values["perf/data_time"] == pytest.approx(0.16)
    assert values["perf/pool"] > 0


def test_the_service_time_of_a_call_leaves_queueing_out() -> None:
    """Four requests wait for a serial engine; each result takes 0.25 s, each call still 0.05 s."""
    outcome = SCENARIOS["a serial engine with requests queued on it"].run()
    assert outcome.latencies_s[-1] == pytest.approx(0.25)
    assert outcome.last.values["perf/infer_batch_time"] == pytest.approx(0.05)


@pytest.mark.parametrize("name", SCENARIOS)
def test_states_of_every_role_sum_to_its_wall_time(name: str) -> None:
    outcome = SCENARIOS[name].run()
    for meter in (outcome.monitor.learner, *outcome.meters):
        assert sum(meter.totals_ns().values()) == outcome.ended_ns


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"batch_size": 64, "pool_capacity": 32}, "pool_capacity must be at least batch_size=64, got 32"),
        ({"batch_size": 8, "producer_batch": 64, "pool_capacity": 32}, "nothing could ever be queued"),
        ({"batch_size": 6, "producer_batch": 4, "pool_capacity": 7}, "must be at least 8, got 7"),
    ],
)
def test_what_could_only_hang_is_refused_at_construction(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PipelineShape(**sizes)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 6, 8])
@pytest.mark.parametrize("handed", [1, 2, 3, 4, 7])
def test_every_pool_that_is_refused_would_have_hung(batch_size: int, handed: int) -> None:
    refused = 0
    for capacity in range(1, batch_size + handed):
        try:
            PipelineShape(batch_size=batch_size, producer_batch=handed, pool_capacity=capacity)
        except ValueError:
            unchecked = PipelineShape(batch_size=batch_size, producer_batch=handed)
            object.__setattr__(unchecked, "pool_capacity", capacity)
            with pytest.raises(RuntimeError, match="deadlock"):
                simulate(unchecked, [Engine(call_s=0.01)], Learner(compute_s=0.01), duration_s=10.0)
            refused += 1
    assert refused == max(batch_size, handed, batch_size + handed - math.gcd(batch_size, handed)) - 1


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 6, 8])
@pytest.mark.parametrize("handed", [1, 2, 3, 4, 7])
def test_the_smallest_accepted_pool_never_hangs(batch_size: int, handed: int) -> None:
    smallest = None
    for capacity in range(1, batch_size + handed + 1):
        try:
            smallest = PipelineShape(batch_size=batch_size, producer_batch=handed, pool_capacity=capacity)
        except ValueError:
            continue
        break
    assert smallest is not None
    outcome = simulate(smallest, [Engine(call_s=0.01)], Learner(compute_s=0.01), duration_s=10.0)
    assert outcome.completed_between(5_000_000_000, 10_000_000_000) > 0
