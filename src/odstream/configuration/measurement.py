"""Rates from counts and times. Pure; runs no probe."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from odstream.configuration.checks import checked_count, checked_quantity, nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class ODSRateMeasurementCfg:
    """What one side did in a window: a count, and how long it worked for it.

    Raises:
        ValueError: If a field is out of its range, the unit is unknown, or the active time exceeds the window.
    """

    unit: Literal["accepted_episodes", "completed_chunks"]
    """What is counted. Completed updates times the batch size are chunks; frames are neither."""
    count: int
    """How many, in the whole window; at least 0."""
    start_monotonic_seconds: float
    """Start of the window on the host's monotonic clock, absolute."""
    end_monotonic_seconds: float
    """End of the window on the same clock."""
    active_seconds: float
    """Seconds of the window in which this side worked: no waiting, no pacing, no evaluation; positive."""

    def __post_init__(self) -> None:
        if self.unit not in ("accepted_episodes", "completed_chunks"):
            raise ValueError(
                f"unit must be 'accepted_episodes' or 'completed_chunks', got {self.unit!r}: multiply updates by the "
                "batch size; frames do not convert"
            )
        checked_count("count", self.count, minimum=0)
        checked_quantity("start_monotonic_seconds", self.start_monotonic_seconds, zero_allowed=True)
        checked_quantity("end_monotonic_seconds", self.end_monotonic_seconds, zero_allowed=True)
        checked_quantity("active_seconds", self.active_seconds)
        # Compared as floats: whoever was active all the time reports exactly this difference.
        window_s = self.end_monotonic_seconds - self.start_monotonic_seconds
        if window_s <= 0:
            raise ValueError(
                "end_monotonic_seconds must be later than start_monotonic_seconds, "
                f"got {self.end_monotonic_seconds!r} and {self.start_monotonic_seconds!r}"
            )
        if self.active_seconds > window_s:
            raise ValueError(
                f"active_seconds must be at most the window of {window_s!r} s, got {self.active_seconds!r}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ODSThroughputMeasurement:
    """Active rates (what each side can do) and wall rates (what it did), kept apart by unit."""

    accepted_episodes_per_active_second: float
    """g, for `configure_ods`."""
    accepted_episodes_per_wall_second: float
    training_chunks_per_active_second: float
    """t, for `configure_ods`."""
    training_chunks_per_wall_second: float
    window_seconds: float


def _rate(side: str, count: int, seconds: Fraction) -> float:
    return nearest(f"{side} rate", count / seconds)


def measure_ods_throughput(
    production: ODSRateMeasurementCfg, training: ODSRateMeasurementCfg
) -> ODSThroughputMeasurement:
    """Divide total counts by total times. Runs nothing, and cannot tell whether both sides were saturated.

    Args:
        production: Counts ``"accepted_episodes"``.
        training: Counts ``"completed_chunks"`` in the same window.

    Raises:
        TypeError: If a record is of another class.
        ValueError: If the units are swapped, or the windows differ.
    """
    for name, record, unit in (
        ("production", production, "accepted_episodes"),
        ("training", training, "completed_chunks"),
    ):
        if not isinstance(record, ODSRateMeasurementCfg):
            raise TypeError(f"{name} must be an ODSRateMeasurementCfg, got {type(record).__name__}")
        if record.unit != unit:
            raise ValueError(f"{name} must count {unit!r}, got unit {record.unit!r}")
    windows = [(record.start_monotonic_seconds, record.end_monotonic_seconds) for record in (production, training)]
    if windows[0] != windows[1]:
        raise ValueError(f"production and training must share one window, got {windows[0]} and {windows[1]}")
    window_s = Fraction(windows[0][1]) - Fraction(windows[0][0])
    return ODSThroughputMeasurement(
        accepted_episodes_per_active_second=_rate("production", production.count, Fraction(production.active_seconds)),
        accepted_episodes_per_wall_second=_rate("production", production.count, window_s),
        training_chunks_per_active_second=_rate("training", training.count, Fraction(training.active_seconds)),
        training_chunks_per_wall_second=_rate("training", training.count, window_s),
        window_seconds=nearest("window_seconds", window_s),
    )
