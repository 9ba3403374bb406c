"""Records as columns over time. Pure.

``N`` records. Each describes a window up to its moment; windows overlap, so a record stands for the time since the one
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from odstream.perf.records import Record

__all__ = ["Series", "Summary", "Timeline", "thinned"]

Floats = NDArray[np.float64]
POINTS = 1000
"""Of a line at most."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a metric was over the run, held values left out. NaN where it was never known."""

    last: float
    """The last record's, held or not."""
    mean: float
    """By time."""
    least: float
    most: float
    last_is_held: bool


@dataclass(frozen=True, slots=True)
class Series:
    """One metric."""

    name: str
    values: Floats
    """``[N]``, NaN before it was known."""
    held: NDArray[np.bool_]
    """``[N]``, whether the value is an earlier window's."""

    @property
    def fresh(self) -> Floats:
        """``[N]``, NaN where the value is held."""
        return np.where(self.held, np.nan, self.values)

    @property
    def is_known(self) -> bool:
        """Whether there is any value."""
        return bool(np.isfinite(self.values).any())

    def summary(self, weights: Floats) -> Summary:
        """Sum up.

        Args:
            weights: ``[N]``, seconds that each record stands for.
        """
        fresh = self.fresh
        known = np.isfinite(fresh)
        if not known.any():
            last = float(self.values[-1]) if self.values.size else np.nan
            return Summary(last, np.nan, np.nan, np.nan, bool(self.held[-1:].any()))
        seconds = weights[known] if weights[known].sum() > 0 else np.ones(int(known.sum()))
        return Summary(
            last=float(self.values[-1]),
            mean=float(np.average(fresh[known], weights=seconds)),
            least=float(fresh[known].min()),
            most=float(fresh[known].max()),
            last_is_held=bool(self.held[-1]),
        )


class Timeline:
    """All records against seconds since metering began.

    Args:
        records: In order.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = tuple(records)
        self.seconds: Floats = np.array([record.elapsed_s for record in records], np.float64)
        """``[N]``, by a monotonic clock."""
        self.steps = np.array([record.step for record in records], np.float64)
        self.weights: Floats = self._weights()
        """``[N]``: seconds that each record stands for."""
        self._series: dict[str, Series] = {}

    def _weights(self) -> Floats:
        gaps = np.diff(self.seconds)
        first = self.records[0].values.get("perf/window", 1.0) if self.records else 1.0
        return np.concatenate(([max(0.0, min(first, self.seconds[0]))], gaps)) if self.records else gaps

    def __len__(self) -> int:
        return len(self.records)

    @property
    def names(self) -> tuple[str, ...]:
        """Every metric that any record has."""
        return tuple(dict.fromkeys(name for record in self.records for name in record.values))

    def series(self, name: str) -> Series:
        """Return one metric, whether it was recorded or not."""
        if name not in self._series:
            self._series[name] = Series(
                name=name,
                values=np.array([record.values.get(name, np.nan) for record in self.records], np.float64),
                held=np.array([name in record.stale for record in self.records], np.bool_),
            )
        return self._series[name]

    def summary(self, name: str) -> Summary:
        """Sum one metric up."""
        return self.series(name).summary(self.weights)

    def verdicts(self) -> list[tuple[str, float, float]]:
        """Return stretches of one verdict: what it was, and from when to when, in seconds."""
        stretches: list[tuple[str, float, float]] = []
        for record, end_s, weight in zip(self.records, self.seconds.tolist(), self.weights.tolist(), strict=True):
            verdict = verdict_of(record)
            if stretches and stretches[-1][0] == verdict:
                stretches[-1] = (verdict, stretches[-1][1], end_s)
            else:
                stretches.append((verdict, end_s - weight, end_s))
        return stretches

    def verdict_shares(self) -> dict[str, float]:
        """Return the share of time of each verdict, the largest first."""
        seconds: dict[str, float] = {}
        for verdict, start_s, end_s in self.verdicts():
            seconds[verdict] = seconds.get(verdict, 0.0) + end_s - start_s
        total = sum(seconds.values())
        ordered = sorted(seconds.items(), key=lambda item: -item[1])
        return {verdict: spent / total if total else 1 / len(ordered) for verdict, spent in ordered}


def verdict_of(record: Record) -> str:
    """Return the verdict and its cause without advice, such as ``training (compute)``; empty if there is none."""
    return record.verdict.partition(";")[0].strip()


def thinned(across: Floats, lines: Sequence[Floats], points: int = POINTS) -> tuple[Floats, list[Floats]]:
    """Return at most ``points`` of what shall be drawn. Of every stretch the least and the most of each line stay.

    Args:
        across: ``[N]``.
        lines: ``[N]`` each.
        points: At most, for one line; each further line may add as many.
    """
    if len(across) <= points:
        return across, list(lines)
    width = -(-len(across) // (points // 2))
    starts = np.arange(0, len(across), width)
    kept = [np.array([0, len(across) - 1])]
    for line in lines:
        padding = np.full(len(starts) * width - len(line), np.nan)
        parts = np.concatenate((line, padding)).reshape(-1, width)
        kept.append(
            starts + np.where(np.isnan(parts), np.inf, parts).argmin(axis=1)
        )  # the first one of nothing but NaN
        kept.append(starts + np.where(np.isnan(parts), -np.inf, parts).argmax(axis=1))
    order = np.unique(np.concatenate(kept))
    return across[order], [line[order] for line in lines]


def averaged(across: Floats, lines: Sequence[Floats], points: int = POINTS // 4) -> tuple[Floats, list[Floats]]:
    """Return means over at most ``points`` equal stretches: for shares that must go on adding up."""
    if len(across) <= points:
        return across, list(lines)
    edges = np.linspace(0, len(across), points + 1).astype(int)
    counts = np.diff(edges)

    def means(values: Floats) -> Floats:
        found: Floats = np.add.reduceat(values, edges[:-1]) / counts
        return found

    moments = means(across)
    moments[0], moments[-1] = across[0], across[-1]
    return moments, [means(line) for line in lines]
