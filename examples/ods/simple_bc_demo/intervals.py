"""What so few scenes leave open: 95 % intervals of success rates. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

Interval = tuple[float, float]

_Z = 1.959963984540054
"""Of the normal distribution, 97.5 %."""
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Of Student's t with 1, 2, ... degrees of freedom, 97.5 %."""


def wilson(successes: int, trials: int) -> Interval:
    """Return Wilson's interval of a rate.

    Raises:
        ValueError: If there is no trial, or the successes are not 0 to ``trials``.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"successes must be 0 to trials, and trials at least 1, got {successes} of {trials}")
    rate, shrink = successes / trials, 1.0 + _Z * _Z / trials
    middle = (rate + _Z * _Z / (2 * trials)) / shrink
    half = _Z / shrink * math.sqrt(rate * (1.0 - rate) / trials + _Z * _Z / (4 * trials * trials))
    low = 0.0 if successes == 0 else middle - half
    return low, 1.0 if successes == trials else middle + half


def paired_t(differences: Sequence[float]) -> Interval | None:
    """Return Student's interval of the mean of paired differences; None of fewer than two.

    Args:
        differences: One per pair, such as two arms at one seed; pairs are independent.
    """
    pairs = len(differences)
    if pairs < 2:
        return None
    half = _t_quantile(pairs - 1) * stdev(differences) / math.sqrt(pairs)
    return mean(differences) - half, mean(differences) + half


def _t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t: from a table, beyond it an upper bound."""
    return _T[degrees - 1] if degrees <= len(_T) else _T[-1]
