"""Calibration: what records of work say, and when they say too little."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import pytest

from odstream.calibration import CalibrationRecords, Throughput, WorkInterval, measure_throughput, production_records
from odstream.calibration.throughput import nearest_rank, overlap_seconds
from odstream.configuration import ODSReuseProfileCfg, configure_ods


def work(*spans: tuple[float, float], count: int = 8) -> list[WorkInterval]:
    return [WorkInterval(started_s=started, ended_s=ended, count=count) for started, ended in spans]


def records(**changes: Any) -> CalibrationRecords:
    """100 s: a producer makes 8 episodes every 10 s, a learner 64 chunks in the first 80 ms of every 0.1 s."""
    fields: dict[str, Any] = {
        "window_started_s": 1000.0,
        "window_ended_s": 1100.0,
        "production": work(*[(1000.0 + 10 * i, 1010.0 + 10 * i) for i in range(10)]),
        "training": work(*[(1000.0 + 0.1 * i, 1000.08 + 0.1 * i) for i in range(1000)], count=64),
        "first_publication_s": [2.0 + 0.1 * i for i in range(20)],
        "batch_size": 64,
        "producer_envs": 4,
        "bytes_per_episode": 107_400,
        "measurement_scope": "two processes on one machine",
    }
    return CalibrationRecords(**{**fields, **changes})


@pytest.mark.spec("PLAN-13")
def test_known_work_gives_known_rates() -> None:
    measured = measure_throughput(records())
    assert measured.accepted_episodes_per_second == 0.8
    assert measured.training_chunks_per_second == pytest.approx(800.0)
    rates = measured.rates()
    assert rates.training_chunks_per_wall_second == 640.0
    assert rates.window_seconds == 100.0
    assert (measured.first_publication_p50_seconds, measured.first_publication_p95_seconds) == (2.9, 3.8)
    assert measured.overlap_seconds == pytest.approx(80.0)
    assert (measured.production_intervals, measured.training_intervals) == (10, 1000)
    assert measured.warnings == ()


@pytest.mark.spec("PLAN-13")
def test_a_rate_is_total_over_total() -> None:
    """Field case T04."""
    production = work((1000.0, 1099.0), (1099.0, 1100.0), count=100)
    assert measure_throughput(records(production=production)).accepted_episodes_per_second == 2.0


def test_what_was_measured_is_what_the_planner_gets() -> None:
    measured = measure_throughput(records())
    runtime = measured.runtime(min_cache_episodes=8, cache_memory_bytes=10**9)
    assert (runtime.batch_size, runtime.producer_envs, runtime.bytes_per_episode) == (64, 4, 107_400)
    assert runtime.measurement_scope == "two processes on one machine"
    assert measured.runtime().bytes_per_episode is None
    profile = ODSReuseProfileCfg(
        profile_id="p",
        scope="s",
        qualified=True,
        min_chunks_per_episode=1,
        max_chunks_per_episode=1000,
        hard_max_chunks_per_episode=1000,
    )
    plan = configure_ods(
        measured.accepted_episodes_per_second, measured.training_chunks_per_second, profile=profile, runtime=runtime
    )
    assert plan.episode_sample_budget in (999, 1000)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"production": work((1000.0, 1050.0), (1050.0, 1100.0))}, "Only 2 complete refills"),
        ({"first_publication_s": [1.0] * 19}, "95th percentile of 19 first-publication latencies is their maximum"),
        ({"training": work((1000.0, 1100.0))}, "Only 1 learner intervals"),
        ({"training": work(*[(1000.0 + i / 4, 1000.0 + i / 4 + 0.2) for i in range(100)])}, None),
        (
            {"production": work((1000.0, 1080.0)), "training": work((1070.0, 1090.0))},
            "together for only 50% of the less active side's time",
        ),
    ],
)
def test_a_sample_that_is_too_small_or_not_concurrent_is_warned_about(
    changes: dict[str, Any], warning: str | None
) -> None:
    warnings = measure_throughput(records(**changes)).warnings
    assert any(warning in each for each in warnings) if warning else warnings == ()


@pytest.mark.spec("PLAN-13")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"production": []}, "production must hold at least one complete interval"),
        ({"training": []}, "training must hold at least one complete interval"),
        ({"first_publication_s": []}, "first_publication_s must hold at least one latency"),
        ({"first_publication_s": [0.0]}, "first_publication_s must be a finite number > 0"),
        ({"first_publication_s": [math.nan]}, "first_publication_s must be a finite number > 0"),
        ({"production": work((999.0, 1010.0))}, r"every production interval must lie in the window \[1000.0, 1100.0\]"),
        ({"training": work((1099.0, 1101.0))}, "every training interval must lie in the window"),
        ({"training": work((1000.0, 1010.0), (1009.0, 1012.0))}, "training intervals must follow one another"),
        ({"window_ended_s": 1000.0}, "ended_s must be later than started_s=1000.0"),
        ({"batch_size": 0}, "batch_size must be an integer"),
        ({"producer_envs": True}, "producer_envs must be an integer"),
        ({"bytes_per_episode": 1.5}, "bytes_per_episode must be an integer"),
        ({"measurement_scope": ""}, "measurement_scope must be a text"),
    ],
)
def test_impossible_records_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        records(**changes)


@pytest.mark.parametrize("side", ["production", "training"])
def test_a_side_that_completed_nothing_has_no_rate(side: str) -> None:
    with pytest.raises(ValueError, match=f"{side} completed nothing in 10 active seconds: there is no rate"):
        measure_throughput(records(**{side: work((1000.0, 1010.0), count=0)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"accepted_episodes_per_second": 0.9},
            "accepted_episodes_per_second must be count over active time, 0.8, got",
        ),
        ({"training_chunks_per_second": 0.8}, "training_chunks_per_second must be count over active time"),
        ({"completed_chunks": 1000}, "training_chunks_per_second must be count over active time, 12."),
        ({"production_active_seconds": 100.5}, "active_seconds must be at most the window of 100.0 s"),
        ({"overlap_seconds": 80.5}, "overlap_seconds must be at most"),
        ({"first_publication_p50_seconds": 3.9}, "first_publication_p50_seconds must be at most"),
        ({"training_intervals": 0}, "training_intervals must be an integer"),
        ({"warnings": "none"}, "warnings must be a tuple of texts"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    fields = dataclasses.asdict(measure_throughput(records()))
    with pytest.raises(ValueError, match=message):
        Throughput(**{**fields, **changes})


def test_percentiles_are_observed_values() -> None:
    assert nearest_rank([3.0], 50) == nearest_rank([3.0], 95) == 3.0
    values = [float(value) for value in range(1, 101)]
    assert (nearest_rank(values, 50), nearest_rank(values, 95)) == (50.0, 95.0)
    assert nearest_rank(values[:19], 95) == 19.0
    assert nearest_rank(values[:20], 95) == 19.0


def test_overlap_is_the_time_both_sides_worked() -> None:
    one = work((0.0, 10.0), (20.0, 30.0))
    other = work((5.0, 22.0), (24.0, 25.0), (29.0, 40.0))
    assert overlap_seconds(one, other) == overlap_seconds(other, one) == 5.0 + 2.0 + 1.0 + 1.0
    assert overlap_seconds(one, work((10.0, 20.0))) == 0.0


def published(generation: int, *seconds: float, kind: str = "published") -> list[dict[str, Any]]:
    return [{"kind": kind, "generation": generation, "monotonic_ns": round(s * 1e9)} for s in seconds]


def test_lifecycle_events_become_complete_intervals_and_latencies() -> None:
    events = [
        *published(3, 118.0, 120.0),  # not complete
        *published(1, 90.0, 91.0, 92.0, 93.0),  # the initial fill: nobody requested it
        *published(2, 103.0, 112.5, 104.0, 108.0),
        *published(2, 103.0, 104.0, kind="evicted"),
    ]
    intervals, latencies_s = production_records({3: 113.0, 2: 100.0}, events, episodes_per_fill=4)
    assert intervals == [WorkInterval(started_s=100.0, ended_s=112.5, count=4)]
    assert latencies_s == [3.0]


@pytest.mark.spec("PLAN-01")
def test_calibration_and_planning_need_no_torch() -> None:
    script = "import sys, odstream.calibration; print({'torch', 'numpy', 'gymnasium'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=True)
    assert run.stdout.strip() == "set()"
