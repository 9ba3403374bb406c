"""Rates from counts: totals over totals, one window, units kept apart."""

from __future__ import annotations

import math
from typing import Any

import pytest

from odstream.configuration import ODSRateMeasurementCfg, measure_ods_throughput


def production(**changes: Any) -> ODSRateMeasurementCfg:
    fields: dict[str, Any] = {
        "unit": "accepted_episodes",
        "count": 30,
        "start_monotonic_seconds": 100.0,
        "end_monotonic_seconds": 140.0,
        "active_seconds": 20.0,
    }
    return ODSRateMeasurementCfg(**{**fields, **changes})


def training(**changes: Any) -> ODSRateMeasurementCfg:
    return production(**{"unit": "completed_chunks", "count": 6400, "active_seconds": 16.0, **changes})


@pytest.mark.spec("PLAN-13")
def test_active_and_wall_rates_are_kept_apart() -> None:
    measured = measure_ods_throughput(production(), training())
    assert measured.accepted_episodes_per_active_second == 1.5
    assert measured.accepted_episodes_per_wall_second == 0.75
    assert measured.training_chunks_per_active_second == 400.0
    assert measured.training_chunks_per_wall_second == 160.0
    assert measured.window_seconds == 40.0


@pytest.mark.spec("PLAN-13")
def test_a_rate_is_total_over_total() -> None:
    """Field case T04."""
    times = [100.0, 1.0, 50.0, 1.0]
    record = production(count=400, active_seconds=sum(times), end_monotonic_seconds=100.0 + sum(times))
    window = {"end_monotonic_seconds": 252.0}
    measured = measure_ods_throughput(record, training(**window))
    assert measured.accepted_episodes_per_active_second == pytest.approx(400 / 152)


@pytest.mark.spec("PLAN-13")
def test_nothing_counted_is_a_measurement_too() -> None:
    measured = measure_ods_throughput(production(count=0), training(count=0))
    assert measured.accepted_episodes_per_active_second == measured.training_chunks_per_wall_second == 0.0


@pytest.mark.spec("PLAN-13")
def test_who_worked_all_the_time_is_not_refused_for_rounding() -> None:
    """0.4 - 0.1 as floats exceeds the exact difference of the two floats."""
    record = production(start_monotonic_seconds=0.1, end_monotonic_seconds=0.4, active_seconds=0.4 - 0.1)
    assert record.active_seconds == 0.4 - 0.1


@pytest.mark.spec("PLAN-13")
@pytest.mark.parametrize("edge", ["start_monotonic_seconds", "end_monotonic_seconds"])
def test_different_windows_are_refused(edge: str) -> None:
    moved = training(**{edge: getattr(training(), edge) + 0.001})
    with pytest.raises(ValueError, match="must share one window"):
        measure_ods_throughput(production(), moved)


@pytest.mark.spec("PLAN-14")
def test_swapped_records_are_refused() -> None:
    with pytest.raises(ValueError, match="production must count 'accepted_episodes', got unit 'completed_chunks'"):
        measure_ods_throughput(training(), production())
    with pytest.raises(ValueError, match="training must count 'completed_chunks', got unit 'accepted_episodes'"):
        measure_ods_throughput(production(), production())


@pytest.mark.spec("PLAN-14")
@pytest.mark.parametrize("unit", ["frames", "completed_updates", "chunks", "", None])
def test_other_units_are_refused_and_not_converted(unit: Any) -> None:
    with pytest.raises(ValueError, match="multiply updates by the batch size; frames do not convert"):
        production(unit=unit)


@pytest.mark.spec("PLAN-14")
def test_completed_updates_times_the_batch_size_are_chunks() -> None:
    updates, batch_size = 100, 64
    measured = measure_ods_throughput(production(), training(count=updates * batch_size))
    assert measured.training_chunks_per_active_second == updates / 16.0 * batch_size


@pytest.mark.spec("PLAN-12", "PLAN-13")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": -1}, "count must be an integer in"),
        ({"count": 1.0}, "count must be an integer in"),
        ({"count": True}, "count must be an integer in"),
        ({"active_seconds": 0.0}, "active_seconds must be a finite number > 0"),
        ({"active_seconds": math.nan}, "active_seconds must be a finite number > 0"),
        ({"active_seconds": 40.1}, "active_seconds must be at most the window of 40.0 s, got 40.1"),
        ({"start_monotonic_seconds": -1.0}, "start_monotonic_seconds must be a finite number >= 0"),
        ({"end_monotonic_seconds": math.inf}, "end_monotonic_seconds must be a finite number >= 0"),
        ({"end_monotonic_seconds": 100.0}, "end_monotonic_seconds must be later than"),
        ({"end_monotonic_seconds": 99.0}, "end_monotonic_seconds must be later than"),
    ],
)
def test_an_impossible_record_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        production(**changes)


@pytest.mark.spec("PLAN-13")
def test_other_classes_are_refused() -> None:
    with pytest.raises(TypeError, match="training must be an ODSRateMeasurementCfg, got dict"):
        measure_ods_throughput(production(), {})  # type: ignore[arg-type]
