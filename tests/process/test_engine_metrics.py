"""Metrics of a real engine: times against what the producer was told to need, and counts that balance."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.errors import DataBudgetExhaustedError
from odstream.perf.engine_meter import EngineMeter
from odstream.perf.facts import imbalances
from odstream.perf.meter import LearnerMeter, Snapshot
from odstream.perf.monitor import PerfMonitor
from odstream.perf.records import Record
from odstream.perf.shape import PipelineShape
from odstream.perf.window import WindowCfg
from tests.fakes.producers import Script

K, BATCH, SLOTS = 4, 8, 4
S = 1_000_000_000


class Collector:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass


def engine_with(script: Script, **settings: Any) -> OnlineDataEngine:
    cfg = OnlineDataEngineCfg(
        buffer_size=SLOTS,
        max_episode_steps=12,
        refill_policy="manual",
        episode_sample_budget=K,
        episode_sample_hard_limit=K,
        include_provenance=True,
        **settings,
    )
    return OnlineDataEngine(cfg, producer=script)


def ages_s(batch: Any) -> Any:
    published_ns = batch["ods_published_at_monotonic_ns"][:, 0]
    return (time.monotonic_ns() - published_ns).clamp(min=0).double().numpy() / 1e9


def stream(engine: OnlineDataEngine, learner: LearnerMeter, until_s: float) -> Iterator[Any]:
    """Yield batches until a time, asking for a refill whenever the budget is used up."""
    while time.monotonic() < until_s:
        try:
            batch = engine.sample_batch(BATCH, 4)
        except DataBudgetExhaustedError:
            with learner.during("wait"):
                engine.request_refill()
                time.sleep(0.002)
            continue
        learner.ages.add(ages_s(batch))
        yield batch


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def balance(learner: LearnerMeter, engine: OnlineDataEngine) -> list[str]:
    meter = EngineMeter(engine)
    return imbalances({**learner.snapshot().counts, **meter.snapshot().counts}, meter.pool(), K)


def between(before: Snapshot, after: Snapshot) -> Mapping[str, float]:
    """Seconds per state."""
    return {state: (after.states_ns[state] - before.states_ns[state]) / S for state in after.states_ns}


@pytest.mark.spec("PERF-02", "PERF-05", "PERF-06")
def test_a_real_engine_that_is_slower_than_the_learner_is_named_with_its_true_capacity() -> None:
    script = Script(num_envs=1, lengths=(10,), seconds_per_episode=0.02, failing_attempts=tuple(range(4, 400, 4)))
    learner, collector = LearnerMeter(), Collector()
    with engine_with(script) as engine:
        meter = EngineMeter(engine)
        with PerfMonitor(
            learner,
            PipelineShape(batch_size=BATCH, selections_per_episode=K),
            producers=[meter],
            pool=meter.pool,
            sinks=[collector],
            window=WindowCfg(min_s=0.8),
            every_s=0.1,
        ) as monitor:
            for _ in monitor.batches(stream(engine, learner, time.monotonic() + 3.0)):
                pass
        stats = engine.get_stats()
        assert balance(learner, engine) == []
    values = collector.records[-1].values
    per_attempt_s = stats["production_seconds"] / (stats["successful_episodes"] + stats["failed_episodes"])
    assert values["perf/infer_capacity"] == pytest.approx(K * 0.75 / per_attempt_s, rel=0.15)
    assert values["perf/infer_batch_time"] == pytest.approx(per_attempt_s, rel=0.15)
    assert values["perf/thru"] == pytest.approx(values["perf/infer_capacity"], rel=0.25)
    assert monitor.diagnosis.verdict == "production", str(monitor.diagnosis)
    assert "generations failed" in str(monitor.diagnosis)
    assert 0 < values["perf/age_p50"] <= values["perf/age_p95"] < 60
    counts = learner.snapshot().counts
    assert counts["delivered"] == counts["completed"] == stats["sampled_chunks"]
    assert stats["retired_chunks"] == 0


@pytest.mark.spec("PERF-02", "PERF-04")
def test_busy_and_blocked_time_are_what_the_producer_was_told_to_need_and_the_states_sum_to_its_age() -> None:
    script = Script(num_envs=1, lengths=(10,), refill_seconds_per_episode=0.1, initial=SLOTS)
    with engine_with(script) as engine:
        meter = EngineMeter(engine)
        before, began_s = meter.snapshot(), time.monotonic()
        generation = engine.request_refill()
        engine.wait_for_generation(generation)
        filled, filled_s = meter.snapshot(), time.monotonic()
        time.sleep(0.5)
        after, ended_s = meter.snapshot(), time.monotonic()
    fill, rest = between(before, filled), between(filled, after)
    assert fill["busy"] == pytest.approx(SLOTS * 0.1, rel=0.1)
    assert fill["busy"] + fill["publish"] + fill["blocked"] == pytest.approx(filled_s - began_s, abs=0.02)
    assert rest["blocked"] == pytest.approx(0.5, rel=0.1)
    assert sum(rest.values()) == pytest.approx(ended_s - filled_s, abs=0.02)
    assert (filled.state, after.state) == ("busy", "blocked") or filled.state == "blocked"
    assert after.counts["service_publish_ns"] == after.states_ns["publish"] > 0
    assert after.counts["service_busy_ns"] <= after.states_ns["busy"]


@pytest.mark.spec("PERF-06")
def test_a_full_event_log_is_blocked_time_until_it_is_drained() -> None:
    with engine_with(Script(num_envs=1, lengths=(10,)), lifecycle_event_capacity=SLOTS) as engine:
        meter = EngineMeter(engine)
        idle = meter.snapshot()
        generation = engine.request_refill()  # the initial fill has filled the log
        until(lambda: between(idle, meter.snapshot())["publish"] > 0 and meter.snapshot().state == "blocked")
        before = meter.snapshot()
        time.sleep(0.3)
        held = between(before, meter.snapshot())
        assert held["blocked"] == pytest.approx(0.3, rel=0.1)
        assert held["busy"] == held["publish"] == 0
        until(
            lambda: engine.drain_lifecycle_events() == [] and engine.get_stats()["completed_generation"] == generation
        )
        assert between(before, meter.snapshot())["busy"] > 0


@pytest.mark.spec("PERF-02")
def test_a_producer_that_is_asked_for_nothing_is_blocked_and_one_that_works_long_is_busy_before_it_ends() -> None:
    script = Script(num_envs=1, lengths=(10,), refill_seconds_per_episode=5.0, initial=SLOTS)
    with engine_with(script) as engine:
        meter = EngineMeter(engine)
        engine.request_refill()
        until(lambda: meter.snapshot().state == "busy")
        before = meter.snapshot()
        time.sleep(0.2)
        after = meter.snapshot()
    assert between(before, after)["busy"] == pytest.approx(0.2, rel=0.15)
    assert after.counts["service_busy_ns"] == before.counts["service_busy_ns"], "no attempt has ended"


@pytest.mark.spec("PERF-02")
def test_counts_balance_after_episodes_were_replaced_unused_and_after_a_failed_update() -> None:
    learner = LearnerMeter(warmup_steps=0)
    with engine_with(Script(num_envs=1, lengths=(10,))) as engine:
        for fails in (False, True):
            engine.sample_batch(BATCH, 4)
            learner.deliver(BATCH)
            try:
                with learner.update():
                    if fails:
                        raise FloatingPointError("loss is NaN")
            except FloatingPointError:
                pass
            engine.wait_for_generation(engine.request_refill())
        engine.sample_batch(BATCH, 4)
        learner.deliver(BATCH)
        stats, counts = engine.get_stats(), learner.snapshot().counts
        assert balance(learner, engine) == []
    assert stats["retired_chunks"] == 2 * (SLOTS * K - BATCH)
    assert K * 3 * SLOTS == stats["sampled_chunks"] + stats["remaining_chunks"] + stats["retired_chunks"]
    assert (counts["completed"], counts["failed_updates"], learner.in_flight) == (BATCH, BATCH, BATCH)


@pytest.mark.spec("PERF-02")
def test_counts_balance_after_the_producer_was_killed_and_it_is_down_from_then_on() -> None:
    learner = LearnerMeter(warmup_steps=0)
    script = Script(num_envs=1, lengths=(10,), refill_seconds_per_episode=0.05, initial=SLOTS)
    engine = engine_with(script)
    engine.start()
    try:
        meter = EngineMeter(engine)
        for _ in learner.batches((engine.sample_batch(BATCH, 4) for _ in range(1)), size=BATCH):
            pass
        engine.request_refill()
        until(lambda: engine.get_stats()["retired_chunks"] > 0)
        assert engine._worker is not None
        before = meter.snapshot()
        os.kill(engine._worker.pid, signal.SIGKILL)
        until(lambda: engine.state == "FAILED")
        found, found_s = meter.snapshot(), time.monotonic()
        time.sleep(0.2)
        after, after_s = meter.snapshot(), time.monotonic()
        assert before.state != found.state == after.state == "down"
        assert between(found, after)["down"] == pytest.approx(after_s - found_s, abs=0.02)
        assert sum(between(found, after).values()) == between(found, after)["down"]
        assert balance(learner, engine) == []
        assert meter.pool().ready == 0
    finally:
        with pytest.raises(Exception, match="signal|SIGKILL|killed"):
            engine.stop()


def test_a_producer_that_fails_or_is_stopped_is_down() -> None:
    engine = engine_with(Script(num_envs=1, lengths=(10,)))
    with engine:
        pass
    assert EngineMeter(engine).snapshot().state == "down"


@pytest.mark.spec("PERF-02")
def test_a_loop_is_metered_by_two_lines_and_wait_is_no_part_of_fetching() -> None:
    """Field cases T06, Q02."""
    with engine_with(Script(num_envs=1, lengths=(10,), seconds_per_episode=0.01)) as engine:
        learner = LearnerMeter(warmup_steps=0)
        for _ in learner.batches(stream(engine, learner, time.monotonic() + 0.6), size=BATCH):
            time.sleep(0.01)
        found, stats = learner.snapshot(), engine.get_stats()
    assert found.counts["delivered"] == found.counts["completed"] == stats["sampled_chunks"]
    assert found.states_ns["compute"] >= found.counts["steps"] * 0.01 * S
    assert found.states_ns["wait"] > found.states_ns["fetch"]
    assert found.wall_ns == pytest.approx(0.6 * S, rel=0.2)
