"""Metrics of a real engine: capacities against what the producer was told to need, and counts that balance."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.errors import DataBudgetExhaustedError
from odstream.perf.engine_meter import EngineMeter
from odstream.perf.facts import imbalances
from odstream.perf.meter import LearnerMeter
from odstream.perf.monitor import PerfMonitor
from odstream.perf.records import Record
from odstream.perf.shape import PipelineShape
from odstream.perf.window import WindowCfg
from tests.fakes.producers import Script

K, BATCH, SLOTS = 4, 8, 4


class Collector:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass


def engine_with(script: Script) -> OnlineDataEngine:
    cfg = OnlineDataEngineCfg(
        buffer_size=SLOTS,
        max_episode_steps=12,
        refill_policy="manual",
        episode_sample_budget=K,
        episode_sample_hard_limit=K,
        include_provenance=True,
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


@pytest.mark.spec("PERF-02", "PERF-05", "PERF-06")
def test_a_real_engine_that_is_slower_than_the_learner_is_named_with_its_true_capacity() -> None:
    script = Script(num_envs=1, lengths=(10,), seconds_per_episode=0.02, failing_attempts=tuple(range(4, 400, 4)))
    learner, collector = LearnerMeter(), Collector()
    with engine_with(script) as engine:
        meter = EngineMeter(engine, selections_per_episode=K)
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
        stats, pool = engine.get_stats(), meter.pool()
    values = collector.records[-1].values
    per_attempt_s = stats["production_seconds"] / (stats["successful_episodes"] + stats["failed_episodes"])
    assert values["perf/infer_capacity"] == pytest.approx(K * 0.75 / per_attempt_s, rel=0.15)
    assert values["perf/infer_batch_time"] == pytest.approx(per_attempt_s, rel=0.15)
    assert values["perf/thru"] == pytest.approx(values["perf/infer_capacity"], rel=0.25)
    assert monitor.diagnosis.verdict == "production", str(monitor.diagnosis)
    assert "generations failed" in str(monitor.diagnosis)
    assert 0 < values["perf/age_p50"] <= values["perf/age_p95"] < 60
    totals = {**learner.snapshot().counts, **meter.snapshot().counts}
    assert imbalances(totals, pool, K) == []
    assert totals["delivered"] == totals["completed"] == stats["sampled_chunks"]


@pytest.mark.spec("PERF-02")
def test_counts_balance_after_the_producer_was_killed_and_it_is_down() -> None:
    learner = LearnerMeter(warmup_steps=0)
    engine = engine_with(Script(num_envs=1, lengths=(10,), seconds_per_episode=0.01))
    engine.start()
    try:
        meter = EngineMeter(engine, selections_per_episode=K)
        for _ in learner.batches((engine.sample_batch(BATCH, 4) for _ in range(1)), size=BATCH):
            pass
        assert engine._worker is not None
        os.kill(engine._worker.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + 20
        while engine.state != "FAILED" and time.monotonic() < deadline_s:
            time.sleep(0.01)
        found = meter.snapshot()
        assert found.state == "down"
        assert imbalances({**learner.snapshot().counts, **found.counts}, meter.pool(), K) == []
    finally:
        with pytest.raises(Exception, match="signal|SIGKILL|killed"):
            engine.stop()


@pytest.mark.spec("PERF-02", "PERF-06")
def test_a_real_engine_that_nobody_asks_for_more_is_blocked() -> None:
    with engine_with(Script(num_envs=1, lengths=(10,))) as engine:
        meter = EngineMeter(engine, selections_per_episode=K)
        before = meter.snapshot()
        time.sleep(0.1)
        after = meter.snapshot()
    assert after.states_ns["blocked"] - before.states_ns["blocked"] >= 100_000_000
    assert after.states_ns["busy"] == before.states_ns["busy"]
