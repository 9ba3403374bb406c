"""Flow control: who may use it, what it refuses, how it refills and paces."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from odstream.configuration import ODSConfiguration, ODSReuseProfileCfg, ODSRuntimeCfg, configure_ods
from odstream.errors import EngineOwnershipError, EngineStateError, OnlineDataWorkerError
from odstream.runtime import ODSFlowController, ODSFlowControllerCfg
from tests.fakes.engine import FakeClock, FakeEngine, FakeEngineCfg, FakeSource

PROFILE = ODSReuseProfileCfg(
    profile_id="numbers-v1",
    scope="a numeric workload",
    qualified=True,
    min_chunks_per_episode=200,
    max_chunks_per_episode=600,
    hard_max_chunks_per_episode=1000,
)
RUNTIME = ODSRuntimeCfg(
    batch_size=64, producer_envs=4, first_publication_p95_seconds=2.0, min_cache_episodes=8, measurement_scope="test"
)
PLAN = configure_ods(1.0, 1000.0, profile=PROFILE, runtime=RUNTIME)
B = 64


class Flow:
    """A controller on a fake engine that matches its plan, with everything its callbacks were told."""

    def __init__(self, plan: ODSConfiguration | None = PLAN, *, window_locked: bool = False, **cfg: Any) -> None:
        self.clock = FakeClock()
        settings = FakeEngineCfg()
        if plan is not None:
            settings.buffer_size, settings.episode_sample_budget = plan.buffer_size, plan.episode_sample_budget
            settings.episode_sample_hard_limit = plan.episode_sample_hard_limit
            settings.gym_config = {"num_envs": plan.producer_envs}
        self.engine = FakeEngine(self.clock, settings, window_locked=window_locked)
        self.source = FakeSource(self.engine)
        self.intervals: list[tuple[str, float, float]] = []
        self.refills: list[tuple[int, float]] = []
        self.events: list[dict[str, Any]] = []
        self.controller = ODSFlowController(
            self.engine,
            ODSFlowControllerCfg(**cfg),
            plan=plan,
            on_events=self.events.extend,
            on_refill=lambda generation, at: self.refills.append((generation, at)),
            on_interval=lambda kind, started, ended: self.intervals.append((kind, started, ended)),
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def start_batch(self) -> float:
        """Prepare and sample a batch; returns when it started."""
        assert self.controller.prepare_batch(B)
        started = self.clock.now
        self.controller.sample_context(self.source, B, None)
        return started

    def leave(self, chunks: int) -> None:
        """Use up all but ``chunks`` of the budget."""
        total = sum(self.engine.rows)
        self.engine.rows = [chunks] + [0] * (len(self.engine.rows) - 1)
        self.engine.delivered += total - chunks


def half_second_plan() -> ODSConfiguration:
    """128 chunks/s at B = 64: a batch every 0.5 s, which floats hold exactly."""
    return replace(PLAN, training_chunks_per_second_target=128.0, active_chunks_per_second_cap=1000.0)


# ---------------------------------------------------------------- construction


@pytest.mark.spec("FLOW-01")
def test_the_settings_have_the_documented_defaults() -> None:
    cfg = ODSFlowControllerCfg()
    assert (cfg.data_wait_timeout, cfg.generation_timeout, cfg.poll_interval) == (30.0, 1800.0, 0.02)
    assert cfg.max_generated_episodes is None


@pytest.mark.spec("FLOW-01")
@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, "1", None])
@pytest.mark.parametrize("field", ["data_wait_timeout", "generation_timeout", "poll_interval"])
def test_a_wait_that_is_no_positive_time_is_refused(field: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be a finite number > 0"):
        ODSFlowControllerCfg(**{field: bad})


@pytest.mark.spec("FLOW-08")
@pytest.mark.parametrize("bad", [0, -4, True, 12.0, "12"])
def test_a_limit_that_is_no_positive_integer_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="max_generated_episodes must be an integer"):
        ODSFlowControllerCfg(max_generated_episodes=bad)


@pytest.mark.spec("FLOW-02")
def test_construction_asks_nothing_of_the_engine() -> None:
    flow = Flow()
    assert (flow.engine.health_checks, flow.engine.drains, flow.engine.requests) == (0, 0, [])
    assert flow.engine.cfg == FakeEngineCfg()


@pytest.mark.spec("FLOW-02")
def test_construction_and_use_start_no_thread() -> None:
    before = threading.active_count()
    Flow().start_batch()
    assert threading.active_count() == before


@pytest.mark.spec("FLOW-02")
def test_an_engine_that_refills_by_itself_is_refused() -> None:
    engine = FakeEngine(FakeClock(), FakeEngineCfg(refill_policy="sample_threshold"))
    with pytest.raises(ValueError, match="refill_policy=\"manual\", got 'sample_threshold'"):
        ODSFlowController(engine)


@pytest.mark.spec("FLOW-03")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffer_size": 16}, "buffer_size: plan 12, engine 16"),
        ({"gym_config": {"num_envs": 2}}, "producer_envs: plan 4, engine 2"),
        ({"episode_sample_budget": 599}, "episode_sample_budget: plan 600, engine 599"),
        ({"episode_sample_hard_limit": 601}, "episode_sample_hard_limit: plan 1000, engine 601"),
        (
            {"episode_sample_budget": None, "episode_sample_hard_limit": None},
            "episode_sample_budget: plan 600, engine None; episode_sample_hard_limit: plan 1000, engine None",
        ),
    ],
)
def test_a_plan_for_another_engine_is_refused(changes: dict[str, Any], message: str) -> None:
    engine = FakeEngine(FakeClock(), FakeEngineCfg(**changes))
    with pytest.raises(ValueError, match=f"not configured from this plan: {message}"):
        ODSFlowController(engine, plan=PLAN)


@pytest.mark.spec("FLOW-03")
@pytest.mark.parametrize("bad", [63, 128])
def test_a_batch_that_the_plan_was_not_made_for_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match=f"batch_size must be the plan's 64, got {bad}"):
        Flow().controller.prepare_batch(bad)


@pytest.mark.spec("FLOW-03")
@pytest.mark.parametrize("bad", [0, -64, True, 64.0, "64", None])
@pytest.mark.parametrize("plan", [PLAN, None], ids=["planned", "unplanned"])
def test_a_batch_size_that_is_no_positive_integer_is_refused(plan: ODSConfiguration | None, bad: Any) -> None:
    with pytest.raises(ValueError, match="batch_size must be an integer"):
        Flow(plan).controller.prepare_batch(bad)


@pytest.mark.spec("FLOW-03")
def test_other_classes_are_refused() -> None:
    engine = FakeEngine(FakeClock())
    with pytest.raises(TypeError, match="plan must be an ODSConfiguration, got dict"):
        ODSFlowController(engine, plan={})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cfg must be an ODSFlowControllerCfg, got dict"):
        ODSFlowController(engine, {})  # type: ignore[arg-type]


@pytest.mark.spec("FLOW-03")
def test_what_could_never_deliver_a_batch_is_refused_at_once() -> None:
    """Field case Q09."""
    plan = replace(PLAN, buffer_size=8, episode_sample_budget=15)
    with pytest.raises(ValueError, match=r"\(buffer_size - producer_envs\) \* episode_sample_budget = 60 .*=64"):
        Flow(plan)
    Flow(replace(plan, episode_sample_budget=16))


@pytest.mark.spec("FLOW-03")
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["training_chunks_per_second_target", "active_chunks_per_second_cap"])
def test_a_plan_without_a_usable_rate_is_refused(field: str, bad: float) -> None:
    with pytest.raises(ValueError, match=f"the plan's {field} must be finite and > 0"):
        Flow(replace(PLAN, **{field: bad}))


@pytest.mark.spec("FLOW-04")
@pytest.mark.parametrize("gym_config", [None, {}, {"num_envs": None}, {"num_envs": True}, {"num_envs": 0}])
@pytest.mark.parametrize("limited", [True, False])
def test_a_plan_or_a_limit_needs_a_declared_num_envs(gym_config: dict[str, Any] | None, limited: bool) -> None:
    engine = FakeEngine(FakeClock(), FakeEngineCfg(gym_config=gym_config))
    with pytest.raises(ValueError, match=r'gym_config\["num_envs"\] must be an integer >= 1 that divides'):
        if limited:
            ODSFlowController(engine, ODSFlowControllerCfg(max_generated_episodes=12))
        else:
            ODSFlowController(engine, plan=PLAN)


@pytest.mark.spec("FLOW-04")
def test_num_envs_must_divide_the_cache_with_a_limit_but_not_without() -> None:
    """Field case Q15."""
    engine = FakeEngine(FakeClock(), FakeEngineCfg(gym_config={"num_envs": 5}))
    with pytest.raises(ValueError, match="divides buffer_size=12, got 5"):
        ODSFlowController(engine, ODSFlowControllerCfg(max_generated_episodes=24))
    assert ODSFlowController(engine).prepare_batch(B)
    assert ODSFlowController(FakeEngine(FakeClock(), FakeEngineCfg(gym_config=None))).prepare_batch(B)


@pytest.mark.spec("FLOW-08")
def test_a_limit_below_the_initial_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="at least buffer_size=12, got 11: it includes the initial fill"):
        Flow(max_generated_episodes=11)


# ---------------------------------------------------------------- ownership


@pytest.mark.spec("FLOW-02")
def test_another_thread_may_not_use_it() -> None:
    flow, errors = Flow(), []

    def use() -> None:
        for call in (
            flow.controller.poll,
            flow.controller.drain_events,
            flow.controller.request_refill,
            lambda: flow.controller.prepare_batch(B),
            lambda: flow.controller.wait_for_generation(1),
            lambda: flow.controller.sample_context(flow.source, B, None),
        ):
            with pytest.raises(EngineOwnershipError, match="process and thread that created it") as caught:
                call()
            errors.append(caught.value)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(errors) == 6
    assert flow.intervals == []


@pytest.mark.spec("FLOW-02")
def test_another_process_may_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(EngineOwnershipError, match="process and thread that created it"):
        flow.controller.prepare_batch(B)


# ---------------------------------------------------------------- pacing


@pytest.mark.spec("FLOW-05", "FLOW-06")
def test_batch_starts_are_spaced_exactly_and_a_pause_earns_nothing() -> None:
    """Field case Q12."""
    flow = Flow(half_second_plan())
    starts = [flow.start_batch() for _ in range(4)]
    assert [later - start for start, later in zip(starts, starts[1:], strict=False)] == pytest.approx([0.5, 0.5, 0.5])

    flow.clock.now += 10.0
    resumed = flow.clock.now
    starts = [flow.start_batch() for _ in range(3)]
    assert starts == pytest.approx([resumed, resumed + 0.5, resumed + 1.0])

    flow.clock.now += 3.0
    slow_step_ended = flow.clock.now
    starts = [flow.start_batch() for _ in range(3)]
    assert starts == pytest.approx([slow_step_ended, slow_step_ended + 0.5, slow_step_ended + 1.0])


@pytest.mark.spec("FLOW-05", "FLOW-06")
def test_a_start_is_never_early_whatever_the_steps_take() -> None:
    flow = Flow(half_second_plan())
    starts = []
    for step in range(40):
        starts.append(flow.start_batch())
        flow.clock.now += 0.13 * (step % 7)
    assert min(later - start for start, later in zip(starts, starts[1:], strict=False)) >= 0.5


@pytest.mark.spec("FLOW-05")
@pytest.mark.parametrize(("target", "cap"), [(128.0, 256.0), (256.0, 128.0)])
def test_the_smaller_of_cap_and_target_paces(target: float, cap: float) -> None:
    flow = Flow(replace(PLAN, training_chunks_per_second_target=target, active_chunks_per_second_cap=cap))
    first = flow.start_batch()
    assert flow.start_batch() - first == pytest.approx(0.5)


@pytest.mark.spec("FLOW-06")
def test_an_interrupted_wait_moves_no_later_start() -> None:
    flow = Flow(half_second_plan())
    first = flow.start_batch()
    flow.engine.failure = OnlineDataWorkerError("gone")
    with pytest.raises(OnlineDataWorkerError):
        flow.controller.prepare_batch(B)
    flow.engine.failure = None
    assert flow.start_batch() - first == pytest.approx(0.5)


@pytest.mark.spec("FLOW-05")
def test_without_a_plan_it_only_polls() -> None:
    flow = Flow(None)
    flow.leave(0)
    assert flow.controller.prepare_batch(7)
    assert (flow.engine.health_checks, flow.engine.drains, flow.engine.requests) == (1, 1, [])
    assert (flow.clock.sleeps, flow.intervals) == ([], [])


# ---------------------------------------------------------------- refills


@pytest.mark.spec("FLOW-05")
@pytest.mark.parametrize(("left", "requested"), [(2501, False), (2500, True), (2499, True), (64, True)])
def test_a_refill_is_requested_at_the_refill_point_and_not_before(left: int, requested: bool) -> None:
    flow = Flow()
    flow.leave(left)
    assert flow.controller.prepare_batch(B)
    assert (flow.engine.requests != []) is requested


@pytest.mark.spec("FLOW-05", "FLOW-12")
def test_a_pending_refill_is_requested_and_reported_once() -> None:
    flow = Flow()
    flow.leave(2000)
    for _ in range(5):
        flow.start_batch()
    assert flow.engine.requests == [1000.0]
    assert flow.refills == [(2, 1000.0)]


@pytest.mark.spec("FLOW-08", "FLOW-12")
def test_a_refill_that_somebody_else_requested_is_adopted_without_a_timestamp() -> None:
    flow = Flow()
    generation = flow.engine.request_refill()
    flow.leave(100)
    assert flow.controller.request_refill() == generation
    assert flow.controller.prepare_batch(B)
    assert len(flow.engine.requests) == 1
    assert flow.refills == []


@pytest.mark.spec("FLOW-08", "FLOW-09")
def test_the_limit_counts_the_initial_fill_and_only_whole_caches_fit() -> None:
    flow = Flow(max_generated_episodes=35)
    assert flow.controller.request_refill() == 2
    flow.controller.wait_for_generation(2)
    assert flow.engine.episodes == 24
    assert flow.controller.request_refill() is None
    assert [generation for generation, _ in flow.refills] == [2]


@pytest.mark.spec("FLOW-08")
def test_requests_made_directly_to_the_engine_bypass_the_limit() -> None:
    flow = Flow(max_generated_episodes=12)
    assert flow.controller.request_refill() is None
    generation = flow.engine.request_refill()
    assert flow.controller.request_refill() == generation


@pytest.mark.spec("FLOW-09")
def test_an_unplanned_owner_schedules_rounds_itself() -> None:
    flow = Flow(None, max_generated_episodes=36)
    generations = []
    while (generation := flow.controller.request_refill()) is not None:
        flow.controller.wait_for_generation(generation)
        generations.append(generation)
    assert generations == [2, 3]
    assert flow.engine.episodes == 36


@pytest.mark.spec("FLOW-05")
def test_a_refill_point_that_is_all_that_can_be_unlocked_does_not_thrash() -> None:
    """A memory-limited cache that nobody uses is not replaced over and over."""
    runtime = replace(RUNTIME, cache_memory_bytes=8, bytes_per_episode=1)
    plan = configure_ods(1.0, 1000.0, profile=PROFILE, runtime=replace(runtime, first_publication_p95_seconds=4.0))
    assert plan.refill_remaining_chunks == (plan.buffer_size - plan.producer_envs) * plan.episode_sample_budget
    flow = Flow(plan, window_locked=True)
    for _ in range(20):
        assert flow.controller.prepare_batch(B)
        flow.clock.now += 60.0
    assert flow.engine.requests == []

    flow.controller.sample_context(flow.source, B, None)
    for _ in range(20):
        assert flow.controller.prepare_batch(B)
        flow.clock.now += 60.0
    assert len(flow.engine.requests) == 1
    assert flow.engine.completed == 2


# ---------------------------------------------------------------- the end of supply


@pytest.mark.spec("FLOW-07")
def test_a_batch_that_nothing_can_fund_any_more_ends_the_run_at_once() -> None:
    """Field case Q03."""
    flow = Flow(max_generated_episodes=12)
    flow.leave(63)
    assert flow.controller.prepare_batch(B) is False
    assert flow.controller.prepare_batch(B) is False
    assert (flow.clock.sleeps, flow.engine.requests, sum(flow.engine.rows)) == ([], [], 63)


@pytest.mark.spec("FLOW-07")
def test_exactly_one_batch_left_is_still_delivered() -> None:
    flow = Flow(max_generated_episodes=12)
    flow.leave(64)
    flow.start_batch()
    assert flow.controller.prepare_batch(B) is False


@pytest.mark.spec("FLOW-07", "FLOW-08")
def test_a_limited_run_uses_every_batch_that_it_may() -> None:
    flow = Flow(max_generated_episodes=36)
    batches = 0
    while flow.controller.prepare_batch(B):
        flow.controller.sample_context(flow.source, B, None)
        batches += 1
    assert flow.engine.episodes == 36
    assert batches * B == flow.engine.delivered
    assert 0 <= 36 * 600 - flow.engine.retired - batches * B < B


@pytest.mark.spec("FLOW-07")
def test_the_end_is_not_declared_on_counters_of_two_instants() -> None:
    """A fill that ends between the two counters of one reading must not look like the end of supply."""
    flow = Flow(max_generated_episodes=24)
    flow.leave(10)
    flow.engine.requested = flow.engine.completed = 2
    flow.engine.episodes = 24
    consistent = flow.engine.get_flow_status

    def torn_once() -> dict[str, int | None]:
        flow.engine.get_flow_status = consistent  # type: ignore[method-assign]
        before = consistent()
        flow.engine.rows = [600] * 12
        return before

    flow.engine.get_flow_status = torn_once  # type: ignore[method-assign]
    assert flow.controller.prepare_batch(B) is True
    assert flow.clock.sleeps == []


@pytest.mark.spec("FLOW-07")
def test_without_a_limit_supply_never_ends() -> None:
    flow = Flow()
    flow.leave(0)
    assert flow.controller.prepare_batch(B) is True
    assert flow.clock.now >= 1004.0


def test_an_engine_without_budgets_is_reported() -> None:
    flow = Flow()
    flow.engine.cfg.episode_sample_budget = None
    with pytest.raises(EngineStateError, match="no unlocked budget"):
        flow.controller.prepare_batch(B)


def test_wall_clock_jumps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case T12."""
    monkeypatch.setattr(time, "time", lambda: pytest.fail("the wall clock was read"))
    engine = FakeEngine(FakeClock(time.monotonic()))
    controller = ODSFlowController(engine, plan=PLAN)
    assert controller.prepare_batch(B)
    controller.sample_context(FakeSource(engine), B, None)
    assert controller.prepare_batch(B)
