"""A planned run beside its plan: the numbers are right, and every selection is accounted for."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from odstream.calibration import (
    Comparison,
    LearnerWork,
    PlanInputs,
    PlannedRun,
    RunRecorder,
    RunRecords,
    compare_run,
    comparison_to_json,
    render_comparison,
)
from odstream.configuration import ODSConfiguration, ODSReuseProfileCfg, ODSRuntimeCfg
from odstream.errors import EngineStateError
from odstream.runtime import ODSFlowController, ODSFlowControllerCfg
from tests.fakes.engine import FakeClock, FakeEngine, FakeEngineCfg, FakeSource

B, P = 64, 4
NOTHING = LearnerWork(completed_chunks=0, active_s=0.0)


def inputs(g: float, t: float, cache_episodes: int | None = None) -> PlanInputs:
    return PlanInputs(
        accepted_episodes_per_second=g,
        training_chunks_per_second=t,
        profile=ODSReuseProfileCfg(
            profile_id="regime",
            scope="simulation",
            qualified=True,
            min_chunks_per_episode=200,
            max_chunks_per_episode=600,
            hard_max_chunks_per_episode=600,
        ),
        runtime=ODSRuntimeCfg(
            batch_size=B,
            producer_envs=P,
            first_publication_p95_seconds=P / g,
            min_cache_episodes=8,
            measurement_scope="simulation",
            cache_memory_bytes=None if cache_episodes is None else cache_episodes * 1000,
            bytes_per_episode=None if cache_episodes is None else 1000,
        ),
    )


class Run:
    """A learner of t chunks/s that follows a plan on a simulated engine."""

    def __init__(self, plan: ODSConfiguration, g: float, t: float) -> None:
        self.plan, self.step_s, self.clock = plan, B / t, FakeClock()
        self.engine = FakeEngine(
            self.clock,
            FakeEngineCfg(
                buffer_size=plan.buffer_size,
                episode_sample_budget=plan.episode_sample_budget,
                episode_sample_hard_limit=plan.episode_sample_hard_limit,
                lifecycle_event_capacity=4 * plan.buffer_size,
            ),
            group_s=P / g,
        )
        self.engine.log_initial_fill()
        self.active_s = self.paused_s = 0.0
        self.chunks = 0
        self.recorder = RunRecorder(
            lambda: LearnerWork(completed_chunks=self.chunks, active_s=self.active_s, paused_s=self.paused_s)
        )

    def train(self, generation: int, *, pause_every: int = 0, forget_every: int = 0) -> RunRecords:
        flow = ODSFlowController(
            self.engine,
            ODSFlowControllerCfg(data_wait_timeout=100.0),
            plan=self.plan,
            on_events=self.recorder.on_events,
            on_refill=self.recorder.on_refill,
            on_interval=self.recorder.on_interval,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        source, updates = FakeSource(self.engine), 0
        while self.engine.completed < generation:
            assert flow.prepare_batch(B)
            episodes = [self.engine.ids[row] for row in flow.sample_context(source, B, None)]
            updates += 1
            if not forget_every or updates % forget_every:
                self.recorder.delivered(episodes)
            self.clock.sleep(self.step_s)
            self.active_s += self.step_s
            self.chunks += B
            if pause_every and updates % pause_every == 0:
                self.clock.sleep(7.0)
                self.paused_s += 7.0
        flow.drain_events()
        return self.recorder.records(self.engine)


def line(comparison: Comparison, name: str, unit: str = "share") -> tuple[float | None, float]:
    (found,) = [item for item in comparison.lines if (item.name, item.unit) == (name, unit)]
    return found.planned, found.observed


REGIMES = {
    "production-bound": (inputs(1.0, 1000.0), 1.0, 1000.0),
    "learner-bound": (inputs(10.0, 600.0), 10.0, 600.0),
    "memory-limited": (inputs(1.0, 1000.0, cache_episodes=8), 1.0, 1000.0),
}


@pytest.mark.spec("FLOW-05", "PLAN-09", "PLAN-15")
@pytest.mark.parametrize("regime", REGIMES)
def test_known_times_give_the_planned_rates_within_five_percent(regime: str) -> None:
    given, g, t = REGIMES[regime]
    plan = given.plan()
    comparison = compare_run(plan, Run(plan, g, t).train(25), planned_first_publication_s=P / g)
    assert comparison.notes == ()
    for name, unit in (
        ("training", "chunks/s"),
        ("training", "updates/s"),
        ("training, active", "chunks/s"),
        ("production", "episodes/s"),
        ("production, active", "episodes/s"),
        ("reuse", "chunks/episode"),
        ("first publication, p95", "s"),
    ):
        planned, observed = line(comparison, name, unit)
        assert observed == pytest.approx(planned, rel=0.05), (name, unit)
    for name in ("training duty", "producer duty", "usage_throttle", "quota_wait", "data_wait"):
        planned, observed = line(comparison, name)
        assert observed == pytest.approx(planned, abs=0.05), name
    assert line(comparison, "cache", "bytes") == (plan.cache_bytes, plan.buffer_size * 1000)


@pytest.mark.parametrize("regime", REGIMES)
def test_every_selection_is_delivered_left_or_retired(regime: str) -> None:
    given, g, t = REGIMES[regime]
    plan = given.plan()
    run = Run(plan, g, t)
    reuse = compare_run(plan, run.train(6)).reuse
    assert reuse.unaccounted_chunks == 0
    assert reuse.assigned_chunks == plan.episode_sample_budget * run.engine.episodes
    assert reuse.assigned_chunks == reuse.delivered_chunks + reuse.remaining_chunks + reuse.retired_chunks
    assert (reuse.delivered_chunks, reuse.retired_chunks) == (run.engine.delivered, run.engine.retired)
    assert reuse.evicted_episodes == run.engine.episodes - plan.buffer_size
    assert reuse.chunks_per_evicted_episode is not None
    assert reuse.chunks_per_evicted_episode[2] <= plan.episode_sample_budget
    assert sum(reuse.generation_shares.values()) == pytest.approx(1.0)
    assert list(reuse.generation_shares)[0] == 1


def test_deliveries_that_nobody_counted_are_told() -> None:
    given, g, t = REGIMES["learner-bound"]
    comparison = compare_run(given.plan(), Run(given.plan(), g, t).train(6, forget_every=10))
    assert comparison.reuse.unaccounted_chunks < 0
    assert comparison.notes[0].startswith("Consumer and engine disagree by -")
    assert "unaccounted for" in render_comparison(comparison)


def test_pauses_lower_the_wall_rate_alone() -> None:
    given, g, t = REGIMES["learner-bound"]
    plan = given.plan()
    comparison = compare_run(plan, Run(plan, g, t).train(25, pause_every=40))
    planned, observed = line(comparison, "training", "chunks/s")
    assert observed == pytest.approx(planned, rel=0.05)
    assert line(comparison, "training, active", "chunks/s")[1] == pytest.approx(t)
    share_paused = comparison.paused_s / comparison.window_s
    assert share_paused > 0.5
    assert line(comparison, "training, wall", "chunks/s")[1] == pytest.approx(observed * (1 - share_paused))


@pytest.mark.parametrize("generation", [1, 2])
def test_a_run_that_was_too_short_has_no_rates_and_says_so(generation: int) -> None:
    given, g, t = REGIMES["learner-bound"]
    comparison = compare_run(given.plan(), Run(given.plan(), g, t).train(generation))
    assert [item.name for item in comparison.lines] == ["cache"]
    assert f"{generation - 1} refills were requested; rates need 3: the run was too short." in comparison.notes
    assert "too short" in render_comparison(comparison)
    json.loads(comparison_to_json(comparison))


def test_a_wait_on_the_edge_of_the_window_counts_in_part() -> None:
    given, g, t = REGIMES["learner-bound"]
    plan = given.plan()
    records = Run(plan, g, t).train(6)
    start_s, end_s = records.refills[1].requested_at_s, records.refills[-1].requested_at_s
    run = RunRecorder(lambda: NOTHING)
    run.on_interval("data_wait", start_s - 1.0, start_s + 0.25)
    run.on_interval("data_wait", end_s - 0.5, end_s + 9.0)
    run.on_interval("data_wait", end_s + 1.0, end_s + 2.0)
    run.on_interval("data_wait", start_s, start_s)
    assert run.waited_s == 1.25 + 9.5 + 1.0
    waits = run.records(FakeEngine(FakeClock())).waits
    comparison = compare_run(plan, dataclasses.replace(records, waits=waits))
    assert line(comparison, "data_wait")[1] == pytest.approx(0.75 / comparison.window_s)


def test_the_table_and_the_document_hold_every_line() -> None:
    given, g, t = REGIMES["production-bound"]
    comparison = compare_run(given.plan(), Run(given.plan(), g, t).train(8))
    text, document = render_comparison(comparison), json.loads(comparison_to_json(comparison))
    assert (document["format"], document["version"]) == ("odstream.comparison", 1)
    assert [item["name"] for item in document["lines"]] == [item.name for item in comparison.lines]
    assert all(item.name in text for item in comparison.lines)
    assert "Shares of the first generations: 1: " in text
    assert max(map(len, text.splitlines())) <= 110


def test_a_planned_run_hands_out_a_controller_and_compares_afterwards() -> None:
    given, g, t = REGIMES["learner-bound"]
    run = Run(given.plan(), g, t)
    planned = PlannedRun(given, ODSFlowControllerCfg(poll_interval=0.5))
    with pytest.raises(EngineStateError, match=r"control\(\) was not called"):
        planned.compare()
    engine: Any = run.engine
    controller, recorder = planned.control(engine, lambda: NOTHING)
    assert (controller.plan, controller.cfg.poll_interval) == (given.plan(), 0.5)
    controller.request_refill()
    comparison = planned.compare()
    assert comparison.reuse.published_episodes == given.plan().buffer_size
    assert "1 refills were requested" in comparison.notes[-1]
    assert recorder.records(engine).refills[0].generation == 2
