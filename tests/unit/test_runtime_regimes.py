"""A run behaves as planned: a simulated producer and learner with known times, paced by the controller."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from odstream.configuration import ODSConfiguration, ODSReuseProfileCfg, ODSRuntimeCfg, configure_ods
from odstream.runtime import ODSFlowController, ODSFlowControllerCfg
from tests.fakes.engine import FakeClock, FakeEngine, FakeEngineCfg, FakeSource

B, P = 64, 4


class Observed(NamedTuple):
    chunks_per_second: float
    episodes_per_second: float
    waited_s: float
    throttled_s: float


def planned(g: float, t: float, cache_episodes: int | None = None) -> ODSConfiguration:
    profile = ODSReuseProfileCfg(
        profile_id="regime",
        scope="simulation",
        qualified=True,
        min_chunks_per_episode=200,
        max_chunks_per_episode=600,
        hard_max_chunks_per_episode=600,
    )
    runtime = ODSRuntimeCfg(
        batch_size=B,
        producer_envs=P,
        first_publication_p95_seconds=P / g,
        min_cache_episodes=8,
        measurement_scope="simulation",
        cache_memory_bytes=cache_episodes,
        bytes_per_episode=None if cache_episodes is None else 1,
    )
    return configure_ods(g, t, profile=profile, runtime=runtime)


def run(plan: ODSConfiguration, g: float, t: float, *, window_locked: bool = False, refills: int = 25) -> Observed:
    """Let a learner of t chunks/s follow the plan for some refills after three for warming up."""
    clock = FakeClock()
    settings = FakeEngineCfg(
        buffer_size=plan.buffer_size,
        episode_sample_budget=plan.episode_sample_budget,
        episode_sample_hard_limit=plan.episode_sample_hard_limit,
    )
    engine = FakeEngine(clock, settings, group_s=P / g, window_locked=window_locked)
    source = FakeSource(engine)
    spent = {"data_wait": 0.0, "quota_wait": 0.0, "usage_throttle": 0.0}

    def add(kind: str, started: float, ended: float) -> None:
        spent[kind] += ended - started

    flow = ODSFlowController(
        engine,
        ODSFlowControllerCfg(data_wait_timeout=100.0),
        plan=plan,
        on_interval=add,
        clock=clock,
        sleep=clock.sleep,
    )

    def train_until(generation: int) -> tuple[float, int, int]:
        while engine.completed < generation:
            assert flow.prepare_batch(B)
            flow.sample_context(source, B, None)
            clock.sleep(B / t)
        return clock.now, engine.delivered, engine.episodes

    start = train_until(4)
    spent.update(dict.fromkeys(spent, 0.0))
    end = train_until(4 + refills)
    seconds, chunks, episodes = (after - before for before, after in zip(start, end, strict=True))
    waited = spent["data_wait"] + spent["quota_wait"]
    return Observed(chunks / seconds, episodes / seconds, waited / seconds, spent["usage_throttle"] / seconds)


@pytest.mark.spec("FLOW-05", "PLAN-15")
@pytest.mark.parametrize("window_locked", [False, True], ids=["spare-rows", "locked-window"])
def test_a_production_bound_run_trains_at_the_planned_rate(window_locked: bool) -> None:
    plan = planned(g=1.0, t=1000.0)
    seen = run(plan, 1.0, 1000.0, window_locked=window_locked)
    assert seen.chunks_per_second == pytest.approx(600.0, rel=0.05)
    assert seen.chunks_per_second == pytest.approx(plan.training_chunks_per_second_target, rel=0.05)
    assert seen.episodes_per_second == pytest.approx(plan.publication_episodes_per_second_target, rel=0.05)
    assert seen.throttled_s == pytest.approx(plan.expected_training_throttle_fraction, abs=0.05)
    assert seen.waited_s < 0.05


@pytest.mark.spec("FLOW-05", "PLAN-15")
def test_a_balanced_run_keeps_both_sides_busy() -> None:
    plan = planned(g=1.0, t=500.0)
    seen = run(plan, 1.0, 500.0)
    assert seen.chunks_per_second == pytest.approx(plan.training_chunks_per_second_target, rel=0.05)
    assert seen.episodes_per_second == pytest.approx(plan.publication_episodes_per_second_target, rel=0.05)
    assert seen.throttled_s + seen.waited_s < 0.05


@pytest.mark.spec("FLOW-05", "PLAN-15")
def test_a_learner_bound_run_asks_for_less_production() -> None:
    plan = planned(g=10.0, t=600.0)
    seen = run(plan, 10.0, 600.0)
    assert seen.chunks_per_second == pytest.approx(600.0, rel=0.05)
    assert seen.episodes_per_second == pytest.approx(plan.publication_episodes_per_second_target, rel=0.05)
    assert plan.publication_episodes_per_second_target == pytest.approx(3.0)
    assert seen.throttled_s + seen.waited_s < 0.05


@pytest.mark.spec("FLOW-05", "PLAN-08")
@pytest.mark.parametrize("window_locked", [False, True], ids=["spare-rows", "locked-window"])
def test_a_memory_limited_run_trains_at_the_cap(window_locked: bool) -> None:
    plan = planned(g=1.0, t=1000.0, cache_episodes=8)
    assert plan.active_chunks_per_second_cap == plan.training_chunks_per_second_target == 480.0
    seen = run(plan, 1.0, 1000.0, window_locked=window_locked)
    assert seen.chunks_per_second == pytest.approx(480.0, rel=0.05)
    assert seen.throttled_s == pytest.approx(plan.expected_training_throttle_fraction, abs=0.05)
    if not window_locked:  # rows that are locked before they are replaced cost unused chunks
        assert seen.episodes_per_second == pytest.approx(plan.publication_episodes_per_second_target, rel=0.05)
