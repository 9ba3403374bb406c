"""The planner: its worked numbers, its fields, its refusals."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys
from typing import Any

import pytest

from odstream.configuration import ODSConfiguration, ODSReuseProfileCfg, ODSRuntimeCfg, configure_ods

PROFILE: dict[str, Any] = {
    "profile_id": "numbers-v1",
    "scope": "a numeric workload",
    "qualified": True,
    "min_chunks_per_episode": 200,
    "max_chunks_per_episode": 600,
    "hard_max_chunks_per_episode": 1000,
}
RUNTIME: dict[str, Any] = {
    "batch_size": 64,
    "producer_envs": 4,
    "first_publication_p95_seconds": 2.0,
    "min_cache_episodes": 8,
    "measurement_scope": "two processes side by side",
}
NO_NUMBERS = [0, -1, -0.5, math.nan, math.inf, -math.inf, True, "1", None, 1 + 0j, 10**400]
NO_COUNTS = [0, -1, True, 1.0, "1", None, 2**63]


def planned(g: float = 1.0, t: float = 1000.0, **changes: Any) -> ODSConfiguration:
    profile = ODSReuseProfileCfg(**{k: changes.get(k, v) for k, v in PROFILE.items()})
    if "latency_safety_factor" in changes:
        profile = dataclasses.replace(profile, latency_safety_factor=changes["latency_safety_factor"])
    fields = {k: v for k, v in changes.items() if k in {f.name for f in dataclasses.fields(ODSRuntimeCfg)}}
    return configure_ods(g, t, profile=profile, runtime=ODSRuntimeCfg(**{**RUNTIME, **fields}))


@pytest.mark.spec("PLAN-01", "PLAN-02")
def test_the_documents_example_runs_as_it_stands() -> None:
    from dataclasses import asdict

    from odstream.configuration import (
        ODSReuseProfileCfg,
        ODSRuntimeCfg,
        configure_ods,
    )

    profile = ODSReuseProfileCfg(
        profile_id="illustrative-v1",
        scope="Illustrative numeric chunk workload; requires learning validation",
        qualified=False,
        min_chunks_per_episode=200,
        max_chunks_per_episode=600,
        hard_max_chunks_per_episode=1000,
    )
    runtime = ODSRuntimeCfg(
        batch_size=64,
        producer_envs=4,
        first_publication_p95_seconds=2.0,
        min_cache_episodes=8,
        measurement_scope="Illustrative concurrent rates, not a hardware result",
    )
    plan = configure_ods(1.0, 1000.0, profile=profile, runtime=runtime)
    assert plan.episode_sample_budget == 600
    print(asdict(plan))


@pytest.mark.spec("PLAN-05", "PLAN-06", "PLAN-07", "PLAN-09")
def test_the_worked_example_has_the_documents_numbers() -> None:
    plan = planned()
    numbers = {k: v for k, v in dataclasses.asdict(plan).items() if isinstance(v, int | float)}
    assert numbers == {
        "episode_sample_budget": 600,
        "episode_sample_hard_limit": 1000,
        "balance_chunks_per_episode": 1000.0,
        "batch_size": 64,
        "producer_envs": 4,
        "buffer_size": 12,
        "initial_chunk_budget": 7200,
        "initial_max_updates": 112,
        "initial_remainder_chunks": 32,
        "refill_remaining_chunks": 2500,
        "active_chunks_per_second_cap": 1000.0,
        "training_chunks_per_second_target": 600.0,
        "training_updates_per_second_target": 9.375,
        "publication_episodes_per_second_target": 1.0,
        "training_duty_fraction": 0.6,
        "producer_duty_fraction": 1.0,
        "expected_training_throttle_fraction": 0.4,
        "expected_producer_throttle_fraction": 0.0,
        "profile_qualified": True,
    }
    assert plan.cache_bytes is None


@pytest.mark.spec("PLAN-06", "PLAN-07", "PLAN-08", "PLAN-09")
def test_reuse_is_bounded_and_planned_from_rates() -> None:
    """Field case X09."""
    free = planned(latency_safety_factor=1.5)
    assert (free.episode_sample_budget, free.buffer_size, free.refill_remaining_chunks) == (600, 12, 3000)
    assert (free.initial_max_updates, free.training_chunks_per_second_target) == (112, 600.0)
    assert (free.training_duty_fraction, free.producer_duty_fraction) == (0.6, 1.0)

    tight = planned(latency_safety_factor=1.5, cache_memory_bytes=10_000, bytes_per_episode=1000)
    assert (tight.buffer_size, tight.active_chunks_per_second_cap, tight.refill_remaining_chunks) == (8, 800.0, 2400)
    assert (tight.initial_max_updates, tight.cache_bytes) == (75, 8000)
    assert any("Memory limits the cache to 8 of 12 episodes" in reason for reason in tight.reasons)
    assert any("The refill point is all that can be unlocked" in reason for reason in tight.reasons)


@pytest.mark.spec("PLAN-07", "PLAN-08")
def test_unlocked_credits_always_fund_one_batch_or_there_is_an_error() -> None:
    """Field case Q09."""
    single_use = {"min_chunks_per_episode": 1, "max_chunks_per_episode": 1, "min_cache_episodes": 1}
    plan = planned(t=1e-3, **single_use)
    assert plan.buffer_size == 68
    assert (plan.buffer_size - plan.producer_envs) * plan.episode_sample_budget == 64
    with pytest.raises(ValueError, match=r"holds 4 episodes .* at least 8 are needed \(8000 bytes\)"):
        planned(cache_memory_bytes=7999, bytes_per_episode=1000)


@pytest.mark.spec("PLAN-03", "PLAN-11")
def test_an_unqualified_profile_stays_unqualified_and_says_so() -> None:
    plan = planned(qualified=False)
    assert plan.profile_qualified is False
    assert any("'numbers-v1' is provisional" in reason for reason in plan.reasons)
    qualified = planned()
    assert qualified.profile_qualified is True
    assert not any("provisional" in reason for reason in qualified.reasons)


@pytest.mark.spec("PLAN-03")
def test_qualification_has_no_default() -> None:
    with pytest.raises(TypeError, match="qualified"):
        ODSReuseProfileCfg(**{k: v for k, v in PROFILE.items() if k != "qualified"})


@pytest.mark.spec("PLAN-11")
def test_an_unspecified_measurement_scope_is_a_reason() -> None:
    assert any("scope is unspecified" in reason for reason in planned(measurement_scope="unspecified").reasons)
    assert not any("scope is unspecified" in reason for reason in planned().reasons)


@pytest.mark.spec("PLAN-02", "PLAN-11")
def test_a_plan_is_frozen_travels_and_has_the_specified_fields() -> None:
    plan = planned()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.buffer_size = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert list(dataclasses.asdict(plan)) == [
        *["episode_sample_budget", "episode_sample_hard_limit", "balance_chunks_per_episode", "batch_size"],
        *["producer_envs", "buffer_size", "cache_bytes", "initial_chunk_budget", "initial_max_updates"],
        *["initial_remainder_chunks", "refill_remaining_chunks", "active_chunks_per_second_cap"],
        *["training_chunks_per_second_target", "training_updates_per_second_target"],
        *["publication_episodes_per_second_target", "training_duty_fraction", "producer_duty_fraction"],
        *["expected_training_throttle_fraction", "expected_producer_throttle_fraction", "profile_id"],
        *["profile_scope", "profile_qualified", "measurement_scope", "reasons", "end_of_supply_rule"],
    ]


@pytest.mark.spec("PLAN-15")
def test_the_learner_is_paced_when_demand_exceeds_supply() -> None:
    plan = planned(g=1.0, t=1000.0)
    assert plan.training_chunks_per_second_target == 600.0
    assert plan.expected_training_throttle_fraction == 0.4
    assert any("Supply limits training" in reason for reason in plan.reasons)


@pytest.mark.spec("PLAN-15")
def test_less_production_is_asked_for_when_supply_exceeds_demand() -> None:
    plan = planned(g=10.0, t=1000.0)
    assert plan.episode_sample_budget == 200
    assert plan.publication_episodes_per_second_target == 5.0
    assert plan.expected_producer_throttle_fraction == 0.5
    assert any("Demand limits production" in reason for reason in plan.reasons)


@pytest.mark.spec("PLAN-10")
def test_values_after_the_cap_derive_from_the_rounded_cap() -> None:
    """A cap of 2400/2.1 chunks/s is no float; its successors must fit below the float, not below the fraction."""
    plan = planned(
        first_publication_p95_seconds=2.1, latency_safety_factor=1.0, cache_memory_bytes=8, bytes_per_episode=1, g=9.0
    )
    assert plan.training_chunks_per_second_target <= plan.active_chunks_per_second_cap
    assert plan.refill_remaining_chunks <= (plan.buffer_size - plan.producer_envs) * plan.episode_sample_budget


@pytest.mark.spec("PLAN-12")
@pytest.mark.parametrize("bad", NO_NUMBERS, ids=lambda bad: repr(bad)[:12])
@pytest.mark.parametrize("side", ["g", "t"])
def test_a_rate_that_is_no_finite_positive_number_is_refused(side: str, bad: Any) -> None:
    with pytest.raises(ValueError, match="per_second must be a finite number > 0"):
        planned(**{side: bad})


@pytest.mark.spec("PLAN-12")
@pytest.mark.parametrize("bad", NO_NUMBERS, ids=lambda bad: repr(bad)[:12])
@pytest.mark.parametrize("field", ["first_publication_p95_seconds", "latency_safety_factor"])
def test_a_duration_or_factor_that_is_no_finite_positive_number_is_refused(field: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=field):
        planned(**{field: bad})


@pytest.mark.spec("PLAN-03", "PLAN-04", "PLAN-12")
@pytest.mark.parametrize("bad", NO_COUNTS, ids=repr)
@pytest.mark.parametrize(
    "field",
    [
        *["min_chunks_per_episode", "max_chunks_per_episode", "hard_max_chunks_per_episode"],
        *["batch_size", "producer_envs", "min_cache_episodes"],
    ],
)
def test_a_count_that_is_no_positive_64_bit_integer_is_refused(field: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=field):
        planned(**{field: bad})


@pytest.mark.spec("PLAN-03", "PLAN-04", "PLAN-12")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_chunks_per_episode": 601}, "got 601 <= 600 <= 1000"),
        ({"hard_max_chunks_per_episode": 599}, "got 200 <= 600 <= 599"),
        ({"latency_safety_factor": 0.999}, "latency_safety_factor must be at least 1, got 0.999"),
        ({"qualified": None}, "qualified must be True or False"),
        ({"qualified": 1}, "qualified must be True or False"),
        ({"profile_id": " "}, "profile_id must be a text"),
        ({"scope": None}, "scope must be a text"),
        ({"measurement_scope": ""}, "measurement_scope must be a text"),
        ({"cache_memory_bytes": 8}, "must be given together or not at all, got 8 and None"),
        ({"bytes_per_episode": 8}, "must be given together or not at all, got None and 8"),
        ({"cache_memory_bytes": 0, "bytes_per_episode": 1}, "cache_memory_bytes must be an integer"),
        ({"cache_memory_bytes": 8, "bytes_per_episode": 1.0}, "bytes_per_episode must be an integer"),
    ],
)
def test_an_invalid_profile_or_runtime_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(**changes)


@pytest.mark.spec("PLAN-12")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"g": 1e-300, "t": 1e300}, "balance_chunks_per_episode does not fit into a float"),
        ({"g": 1e300, "t": 1e-300}, "balance_chunks_per_episode does not fit into a float"),
        ({"t": 1e300, "g": 1e290}, "derived cache size in episodes"),
        ({"min_cache_episodes": 2**63 - 1}, "derived cache size in episodes"),
        ({"min_cache_episodes": 2**62}, "derived initial chunk budget"),
        ({"cache_memory_bytes": 2**62, "bytes_per_episode": 2**59}, "holds 8 episodes|cache size in bytes"),
        ({"t": 5e-324, "g": 5e-324}, "does not fit into a float|rounds down to zero"),
    ],
)
def test_derived_values_that_overflow_are_refused(changes: dict[str, Any], message: str) -> None:
    if "bytes_per_episode" in changes:  # as large as memory can be: nothing overflows
        assert planned(**changes).cache_bytes == 2**62
        return
    with pytest.raises(ValueError, match=message):
        planned(**changes)


@pytest.mark.spec("PLAN-12")
def test_other_classes_are_refused() -> None:
    profile, runtime = ODSReuseProfileCfg(**PROFILE), ODSRuntimeCfg(**RUNTIME)
    with pytest.raises(TypeError, match="profile must be an ODSReuseProfileCfg, got dict"):
        configure_ods(1.0, 1.0, profile=PROFILE, runtime=runtime)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="runtime must be an ODSRuntimeCfg, got ODSReuseProfileCfg"):
        configure_ods(1.0, 1.0, profile=profile, runtime=profile)  # type: ignore[arg-type]


@pytest.mark.spec("PLAN-01")
def test_the_planner_imports_the_standard_library_only() -> None:
    script = (
        "import sys; before = set(sys.modules); import odstream.configuration; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=True)
    assert run.stdout.strip() == "['odstream']"
