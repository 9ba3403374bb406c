"""Ages of delivered data as histograms, which subtract and add: percentiles of any window, over any processes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["AgeHistogram"]

_PER_OCTAVE = 8
_SMALLEST_S = 1e-6
_BUCKETS = 48 * _PER_OCTAVE


class AgeHistogram:
    """Counts of ages in buckets that grow by the eighth root of two, from a microsecond to nine years.

    A percentile is off by at most 4.5 %.
    """

    __slots__ = ("_counts",)

    def __init__(self, counts: NDArray[np.int64] | None = None) -> None:
        self._counts = np.zeros(_BUCKETS, dtype=np.int64) if counts is None else counts

    def add(self, ages_s: Any) -> None:
        """Count ages.

        Args:
            ages_s: Seconds from publication to delivery, any number of them; anything that numpy reads.

        Raises:
            ValueError: If one is negative, NaN or infinite.
        """
        ages = np.atleast_1d(np.asarray(ages_s, dtype=np.float64)).ravel()
        if not ages.size:
            return
        if not (np.isfinite(ages).all() and ages.min() >= 0):
            raise ValueError(f"ages_s must be finite and at least 0, got {ages.min():g} to {ages.max():g}")
        octaves = np.log2(np.maximum(ages, _SMALLEST_S) / _SMALLEST_S)
        places = np.minimum((octaves * _PER_OCTAVE).astype(np.int64), _BUCKETS - 1)
        self._counts += np.bincount(places, minlength=_BUCKETS)

    def __len__(self) -> int:
        return int(self._counts.sum())

    def __bool__(self) -> bool:
        return bool(self._counts.any())

    def copy(self) -> AgeHistogram:
        """Return a detached copy."""
        return AgeHistogram(self._counts.copy())

    def since(self, before: AgeHistogram) -> AgeHistogram:
        """Return what was added after ``before``, an earlier copy of this histogram."""
        return AgeHistogram(self._counts - before._counts)

    @staticmethod
    def sum(parts: Iterable[AgeHistogram]) -> AgeHistogram:
        """Return the histogram of all parts together."""
        total = AgeHistogram()
        for part in parts:
            total._counts += part._counts
        return total

    def quantile_s(self, fraction: float) -> float | None:
        """Return the age that ``fraction`` of the counted ones do not exceed, in seconds; None without any."""
        total = len(self)
        if not total:
            return None
        rank = min(max(1, math.ceil(fraction * total)), total)
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return float(_SMALLEST_S * 2.0 ** ((place + 0.5) / _PER_OCTAVE))
