"""From records of work to measured throughput. Pure.

Every time is in seconds on the host's monotonic clock. A rate is a total count over a total time, never a mean of
rates, and only complete stretches of work inside the window count: nothing is cut at its edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from odstream.configuration import (
    ODSRateMeasurementCfg,
    ODSRuntimeCfg,
    ODSThroughputMeasurement,
    measure_ods_throughput,
)
from odstream.configuration.checks import checked_count, checked_quantity, checked_text

ENOUGH_REFILLS = 5
"""Complete refills below which a production rate is called a guess."""
ENOUGH_LATENCIES = 20
"""Latencies below which the nearest-rank 95th percentile is simply the largest one."""
ENOUGH_TRAINING_INTERVALS = 100
"""Learner intervals below which a learner rate is called a guess."""
ENOUGH_OVERLAP = 0.8
"""Share of the less active side's time during which both sides should have worked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkInterval:
    """A stretch of uninterrupted work, and what it completed.

    Raises:
        ValueError: If it does not end after it starts, or the count is negative.
    """

    started_s: float
    ended_s: float
    count: int
    """Accepted episodes of a whole refill, or completed chunks of one or more updates."""

    def __post_init__(self) -> None:
        started = checked_quantity("started_s", self.started_s, zero_allowed=True)
        if checked_quantity("ended_s", self.ended_s, zero_allowed=True) <= started:
            raise ValueError(f"ended_s must be later than started_s={self.started_s!r}, got {self.ended_s!r}")
        checked_count("count", self.count, minimum=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationRecords:
    """What was observed while producer and learner worked side by side, and under which settings.

    Raises:
        ValueError: If an interval leaves the window or overlaps another of its side, or if a value is out of range.
    """

    window_started_s: float
    window_ended_s: float
    production: Sequence[WorkInterval]
    """One per complete refill, from its request to its last publication."""
    training: Sequence[WorkInterval]
    """Sampling, copies, transfer and optimizer; without pacing, waits and evaluation."""
    first_publication_s: Sequence[float]
    """Per refill: seconds from its request to its first publication."""
    batch_size: int
    producer_envs: int
    bytes_per_episode: int
    """Bytes of cache storage that one episode takes."""
    measurement_scope: str
    """Machine, placement, task, model: what the rates hold for."""

    def __post_init__(self) -> None:
        window = WorkInterval(started_s=self.window_started_s, ended_s=self.window_ended_s, count=0)
        for side, intervals in (("production", self.production), ("training", self.training)):
            _check_side(side, intervals, window)
        if not self.first_publication_s:
            raise ValueError("first_publication_s must hold at least one latency, got none")
        for latency_s in self.first_publication_s:
            checked_quantity("first_publication_s", latency_s)
        for field in ("batch_size", "producer_envs", "bytes_per_episode"):
            checked_count(field, getattr(self, field))
        checked_text("measurement_scope", self.measurement_scope)


def _check_side(side: str, intervals: Sequence[WorkInterval], window: WorkInterval) -> None:
    if not intervals:
        raise ValueError(f"{side} must hold at least one complete interval, got none")
    previous_s = window.started_s
    for interval in intervals:
        if interval.started_s < window.started_s or interval.ended_s > window.ended_s:
            raise ValueError(
                f"every {side} interval must lie in the window [{window.started_s!r}, {window.ended_s!r}], "
                f"got [{interval.started_s!r}, {interval.ended_s!r}]"
            )
        if interval.started_s < previous_s:
            raise ValueError(f"{side} intervals must follow one another, got one that starts before {previous_s!r}")
        previous_s = interval.ended_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """Measured throughput: what the planner needs, and what one needs to judge it.

    Raises:
        ValueError: If a value is out of range, or the values contradict each other.
    """

    measurement_scope: str
    batch_size: int
    producer_envs: int
    bytes_per_episode: int
    accepted_episodes_per_second: float
    """g: accepted episodes over production's active seconds."""
    training_chunks_per_second: float
    """t: completed chunks over the learner's active seconds."""
    first_publication_p50_seconds: float
    first_publication_p95_seconds: float
    """Nearest-rank percentiles: one of the observed latencies."""
    first_publication_samples: int
    window_start_monotonic_seconds: float
    window_end_monotonic_seconds: float
    accepted_episodes: int
    production_intervals: int
    production_active_seconds: float
    completed_chunks: int
    training_intervals: int
    training_active_seconds: float
    overlap_seconds: float
    """Seconds in which both sides worked."""
    warnings: tuple[str, ...]
    """Why the numbers may not hold, in sentences; empty if nothing speaks against them."""

    def __post_init__(self) -> None:
        # The classes that get these values later check them as they always do.
        self.runtime()
        rates = self.rates()
        checked_count("bytes_per_episode", self.bytes_per_episode)
        for field in ("first_publication_samples", "production_intervals", "training_intervals"):
            checked_count(field, getattr(self, field))
        if not isinstance(self.warnings, tuple) or not all(isinstance(warning, str) for warning in self.warnings):
            raise ValueError(f"warnings must be a tuple of texts, got {self.warnings!r}")
        p50 = checked_quantity("first_publication_p50_seconds", self.first_publication_p50_seconds)
        if p50 > Fraction(self.first_publication_p95_seconds):
            raise ValueError(
                f"first_publication_p50_seconds must be at most first_publication_p95_seconds="
                f"{self.first_publication_p95_seconds!r}, got {self.first_publication_p50_seconds!r}"
            )
        checked_quantity("overlap_seconds", self.overlap_seconds, zero_allowed=True)
        shorter_s = min(self.production_active_seconds, self.training_active_seconds)
        if self.overlap_seconds > shorter_s:
            raise ValueError(f"overlap_seconds must be at most {shorter_s!r}, got {self.overlap_seconds!r}")
        for field, rate in (
            ("accepted_episodes_per_second", rates.accepted_episodes_per_active_second),
            ("training_chunks_per_second", rates.training_chunks_per_active_second),
        ):
            if checked_quantity(field, getattr(self, field)) != Fraction(rate):
                raise ValueError(f"{field} must be count over active time, {rate!r}, got {getattr(self, field)!r}")

    def rates(self) -> ODSThroughputMeasurement:
        """Active and wall rates."""
        return _measured(
            (self.window_start_monotonic_seconds, self.window_end_monotonic_seconds),
            (self.accepted_episodes, self.production_active_seconds),
            (self.completed_chunks, self.training_active_seconds),
        )

    def runtime(self, *, min_cache_episodes: int = 1, cache_memory_bytes: int | None = None) -> ODSRuntimeCfg:
        """Return the planner's runtime settings, with what is chosen instead of measured."""
        return ODSRuntimeCfg(
            batch_size=self.batch_size,
            producer_envs=self.producer_envs,
            first_publication_p95_seconds=self.first_publication_p95_seconds,
            min_cache_episodes=min_cache_episodes,
            measurement_scope=self.measurement_scope,
            cache_memory_bytes=cache_memory_bytes,
            bytes_per_episode=None if cache_memory_bytes is None else self.bytes_per_episode,
        )


def _measured(
    window_s: tuple[float, float], production: tuple[int, float], training: tuple[int, float]
) -> ODSThroughputMeasurement:
    (episodes, production_s), (chunks, training_s) = production, training
    window = {"start_monotonic_seconds": window_s[0], "end_monotonic_seconds": window_s[1]}
    return measure_ods_throughput(
        ODSRateMeasurementCfg(unit="accepted_episodes", count=episodes, active_seconds=production_s, **window),
        ODSRateMeasurementCfg(unit="completed_chunks", count=chunks, active_seconds=training_s, **window),
    )


def measure_throughput(records: CalibrationRecords) -> Throughput:
    """Sum up what was recorded, and say where the sample is too small or the two sides did not work together.

    Raises:
        ValueError: If nothing was accepted or nothing was trained on.
    """
    totals = {}
    for side, intervals in (("production", records.production), ("training", records.training)):
        totals[side] = (sum(interval.count for interval in intervals), _active_s(intervals))
        if totals[side][0] == 0:
            raise ValueError(f"{side} completed nothing in {totals[side][1]:.6g} active seconds: there is no rate")
    rates = _measured((records.window_started_s, records.window_ended_s), totals["production"], totals["training"])
    overlap_s = overlap_seconds(records.production, records.training)
    latencies_s = sorted(records.first_publication_s)
    return Throughput(
        measurement_scope=records.measurement_scope,
        batch_size=records.batch_size,
        producer_envs=records.producer_envs,
        bytes_per_episode=records.bytes_per_episode,
        accepted_episodes_per_second=rates.accepted_episodes_per_active_second,
        training_chunks_per_second=rates.training_chunks_per_active_second,
        first_publication_p50_seconds=nearest_rank(latencies_s, 50),
        first_publication_p95_seconds=nearest_rank(latencies_s, 95),
        first_publication_samples=len(latencies_s),
        window_start_monotonic_seconds=records.window_started_s,
        window_end_monotonic_seconds=records.window_ended_s,
        accepted_episodes=totals["production"][0],
        production_intervals=len(records.production),
        production_active_seconds=totals["production"][1],
        completed_chunks=totals["training"][0],
        training_intervals=len(records.training),
        training_active_seconds=totals["training"][1],
        overlap_seconds=overlap_s,
        warnings=_warnings(records, overlap_s / min(totals["production"][1], totals["training"][1])),
    )


def _active_s(intervals: Sequence[WorkInterval]) -> float:
    return float(sum((Fraction(i.ended_s) - Fraction(i.started_s) for i in intervals), Fraction()))


def overlap_seconds(one: Sequence[WorkInterval], other: Sequence[WorkInterval]) -> float:
    """Seconds in which an interval of each side was under way. Both sides are in order, without overlaps."""
    shared, i, j = Fraction(), 0, 0
    while i < len(one) and j < len(other):
        started_s, ended_s = max(one[i].started_s, other[j].started_s), min(one[i].ended_s, other[j].ended_s)
        if ended_s > started_s:
            shared += Fraction(ended_s) - Fraction(started_s)
        if one[i].ended_s <= other[j].ended_s:
            i += 1
        else:
            j += 1
    return float(shared)


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest of the ``ordered`` values that at least ``percent`` % of them do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def _warnings(records: CalibrationRecords, overlap: float) -> tuple[str, ...]:
    warnings = []
    refills, latencies, steps = len(records.production), len(records.first_publication_s), len(records.training)
    if refills < ENOUGH_REFILLS:
        warnings.append(f"Only {refills} complete refills were measured; the production rate needs {ENOUGH_REFILLS}.")
    if latencies < ENOUGH_LATENCIES:
        warnings.append(
            f"The 95th percentile of {latencies} first-publication latencies is their maximum; "
            f"it needs {ENOUGH_LATENCIES}."
        )
    if steps < ENOUGH_TRAINING_INTERVALS:
        warnings.append(
            f"Only {steps} learner intervals were measured; the training rate needs {ENOUGH_TRAINING_INTERVALS}."
        )
    if overlap < ENOUGH_OVERLAP:
        warnings.append(
            f"Both sides worked together for only {overlap:.0%} of the less active side's time; rates that were not "
            "measured side by side do not hold side by side."
        )
    return tuple(warnings)


def production_records(
    requested_at_s: Mapping[int, float], events: Sequence[Mapping[str, Any]], *, episodes_per_fill: int
) -> tuple[list[WorkInterval], list[float]]:
    """Turn refill requests and lifecycle events into production intervals and first-publication latencies.

    Args:
        requested_at_s: Per generation, when its refill was requested.
        events: Lifecycle events, in any order; those of kind ``"published"`` count.
        episodes_per_fill: C. A generation with fewer publications is not complete and is left out.

    Returns:
        Intervals and latencies of the complete generations that were requested here, in their order.
    """
    checked_count("episodes_per_fill", episodes_per_fill)
    published: dict[int, list[int]] = {generation: [] for generation in sorted(requested_at_s)}
    for event in events:
        if event["kind"] == "published" and event["generation"] in published:
            published[event["generation"]].append(event["monotonic_ns"])
    intervals, latencies_s = [], []
    for generation, times_ns in published.items():
        if len(times_ns) >= episodes_per_fill:
            requested_s = requested_at_s[generation]
            ended_s = float(Fraction(max(times_ns), 10**9))
            intervals.append(WorkInterval(started_s=requested_s, ended_s=ended_s, count=len(times_ns)))
            latencies_s.append(float(Fraction(min(times_ns), 10**9)) - requested_s)
    return intervals, latencies_s
