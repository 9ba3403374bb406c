"""Laws of the planner, over inputs of every proportion."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from odstream.configuration import ODSConfiguration, ODSReuseProfileCfg, ODSRuntimeCfg, configure_ods


class Inputs(NamedTuple):
    g: float
    t: float
    profile: ODSReuseProfileCfg
    runtime: ODSRuntimeCfg

    def plan(self) -> ODSConfiguration:
        return configure_ods(self.g, self.t, profile=self.profile, runtime=self.runtime)


rates = st.floats(1e-3, 1e6)
counts = st.integers(1, 5000)


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    low, mid, high = sorted(draw(st.tuples(counts, counts, counts)))
    profile = ODSReuseProfileCfg(
        profile_id="p",
        scope="s",
        qualified=draw(st.booleans()),
        min_chunks_per_episode=low,
        max_chunks_per_episode=mid,
        hard_max_chunks_per_episode=high,
        latency_safety_factor=draw(st.floats(1, 10)),
    )
    runtime = ODSRuntimeCfg(
        batch_size=draw(st.integers(1, 2000)),
        producer_envs=draw(st.integers(1, 64)),
        first_publication_p95_seconds=draw(st.floats(1e-3, 1e3)),
        min_cache_episodes=draw(st.integers(1, 500)),
        measurement_scope="s",
    )
    return Inputs(draw(rates), draw(rates), profile, runtime)


@st.composite
def limited_inputs(draw: st.DrawFn) -> Inputs:
    """Inputs whose memory lies anywhere between the smallest cache that works and more than is desired."""
    free = draw(inputs())
    smallest = base_episodes(free)
    episodes = draw(st.integers(smallest, smallest + 3 * free.plan().buffer_size))
    return _with_memory(free, episodes)


def _with_memory(free: Inputs, episodes: int) -> Inputs:
    return free._replace(runtime=replace(free.runtime, cache_memory_bytes=episodes * 1000, bytes_per_episode=1000))


def base_episodes(case: Inputs) -> int:
    """C_base, spelt out again."""
    budget, producers = case.plan().episode_sample_budget, case.runtime.producer_envs
    needed = max(
        2 * producers, case.runtime.min_cache_episodes, producers + math.ceil(Fraction(case.runtime.batch_size, budget))
    )
    return math.ceil(Fraction(needed, producers)) * producers


any_inputs = st.one_of(inputs(), limited_inputs())


@pytest.mark.spec("PLAN-06", "PLAN-07", "PLAN-08", "PLAN-09", "PLAN-10")
@given(any_inputs)
def test_a_plan_agrees_with_the_formulas_in_exact_arithmetic(case: Inputs) -> None:
    plan, profile, runtime = case.plan(), case.profile, case.runtime
    g, t = Fraction(case.g), Fraction(case.t)
    budget = plan.episode_sample_budget
    lead_s = Fraction(runtime.first_publication_p95_seconds) * Fraction(profile.latency_safety_factor)
    assert budget == min(max(t // g, profile.min_chunks_per_episode), profile.max_chunks_per_episode)

    producers = runtime.producer_envs
    bridging = max(base_episodes(case), producers + math.ceil(t * lead_s / budget))
    size = math.ceil(Fraction(bridging, producers)) * producers
    if runtime.cache_memory_bytes is not None and runtime.bytes_per_episode is not None:
        size = min(size, runtime.cache_memory_bytes // runtime.bytes_per_episode // producers * producers)
    assert plan.buffer_size == size

    exact_cap = min(t, (size - producers) * budget / lead_s)
    cap = Fraction(plan.active_chunks_per_second_cap)
    assert cap <= exact_cap < Fraction(math.nextafter(plan.active_chunks_per_second_cap, math.inf))
    assert plan.refill_remaining_chunks == max(runtime.batch_size, math.ceil(cap * lead_s))
    target = min(cap, g * budget)
    for published, exact in (
        (plan.training_chunks_per_second_target, target),
        (plan.training_updates_per_second_target, target / runtime.batch_size),
        (plan.publication_episodes_per_second_target, target / budget),
    ):
        assert Fraction(published) <= exact < Fraction(math.nextafter(published, math.inf))
    for rounded, exact in (
        (plan.balance_chunks_per_episode, t / g),
        (plan.training_duty_fraction, target / t),
        (plan.producer_duty_fraction, target / budget / g),
        (plan.expected_training_throttle_fraction, 1 - target / t),
        (plan.expected_producer_throttle_fraction, 1 - target / budget / g),
    ):
        assert rounded == float(exact)


@pytest.mark.spec("PLAN-05", "PLAN-12", "PLAN-15")
@given(any_inputs)
def test_a_plan_never_asks_for_more_than_was_measured_or_allowed(case: Inputs) -> None:
    plan, profile, runtime = case.plan(), case.profile, case.runtime
    assert (plan.batch_size, plan.producer_envs) == (runtime.batch_size, runtime.producer_envs)
    assert profile.min_chunks_per_episode <= plan.episode_sample_budget <= profile.max_chunks_per_episode
    assert plan.episode_sample_budget <= plan.episode_sample_hard_limit
    assert plan.training_chunks_per_second_target <= plan.active_chunks_per_second_cap <= case.t
    assert plan.publication_episodes_per_second_target <= case.g
    assert 0 < plan.training_duty_fraction <= 1
    assert 0 < plan.producer_duty_fraction <= 1
    if runtime.cache_memory_bytes is not None:
        assert plan.cache_bytes is not None
        assert plan.cache_bytes <= runtime.cache_memory_bytes


@pytest.mark.spec("PLAN-07", "PLAN-09")
@given(any_inputs)
def test_unlocked_credits_fund_a_batch_and_the_refill_point_can_be_reached(case: Inputs) -> None:
    """Field case Q09."""
    plan = case.plan()
    unlocked = (plan.buffer_size - plan.producer_envs) * plan.episode_sample_budget
    assert plan.batch_size <= plan.refill_remaining_chunks <= unlocked
    assert plan.buffer_size % plan.producer_envs == 0
    assert plan.buffer_size >= 2 * plan.producer_envs
    assert plan.initial_chunk_budget == plan.initial_max_updates * plan.batch_size + plan.initial_remainder_chunks
    assert plan.initial_max_updates >= 1
    assert plan.initial_remainder_chunks < plan.batch_size


@pytest.mark.spec("PLAN-08")
@given(inputs(), st.integers(0, 3000), st.integers(0, 3000))
def test_more_memory_never_means_less_cache_or_a_lower_rate(case: Inputs, some: int, more: int) -> None:
    smallest = base_episodes(case)
    small = _with_memory(case, smallest + some).plan()
    large = _with_memory(case, smallest + some + more).plan()
    free = case.plan()
    assert small.buffer_size <= large.buffer_size <= free.buffer_size
    assert (
        small.training_chunks_per_second_target
        <= large.training_chunks_per_second_target
        <= free.training_chunks_per_second_target
    )


@pytest.mark.spec("PLAN-08")
@given(inputs(), st.integers(1, 500))
def test_memory_below_the_smallest_cache_is_refused_and_protection_stays(case: Inputs, missing: int) -> None:
    episodes = base_episodes(case) - missing
    assume(episodes >= 1)
    with pytest.raises(ValueError, match="at least .* are needed"):
        _with_memory(case, episodes).plan()


@pytest.mark.spec("PLAN-06", "PLAN-09")
@given(inputs(), st.floats(1, 100))
def test_faster_production_never_lowers_the_training_target_by_more_than_one_selections_rounding(
    case: Inputs, factor: float
) -> None:
    slow, fast = case.plan(), case._replace(g=case.g * factor).plan()
    assert fast.episode_sample_budget <= slow.episode_sample_budget
    budget = fast.episode_sample_budget
    assert fast.training_chunks_per_second_target >= slow.training_chunks_per_second_target * budget / (budget + 1)


@pytest.mark.spec("PLAN-07")
@given(inputs(), st.floats(1, 10))
def test_a_longer_latency_never_shrinks_the_cache_or_lowers_the_refill_point(case: Inputs, factor: float) -> None:
    later = case.runtime.first_publication_p95_seconds * factor
    slow = case._replace(runtime=replace(case.runtime, first_publication_p95_seconds=later)).plan()
    quick = case.plan()
    assert slow.buffer_size >= quick.buffer_size
    assert slow.refill_remaining_chunks >= quick.refill_remaining_chunks


@pytest.mark.spec("PLAN-09")
@given(inputs())
def test_without_a_memory_limit_the_cache_bridges_the_latency_at_full_rate(case: Inputs) -> None:
    assert case.plan().active_chunks_per_second_cap == case.t
