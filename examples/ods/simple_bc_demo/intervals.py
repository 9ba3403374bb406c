"""What so few scenes leave open: 95 % intervals of success rates. Pure."""

from __future__ import annotations

import math

Interval = tuple[float, float]

_Z = 1.959963984540054
"""Of the normal distribution, 97.5 %."""


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


def newcombe(first: tuple[int, int], second: tuple[int, int]) -> Interval:
    """Return Newcombe's interval of the difference of two rates, first minus second.

    Args:
        first: Successes and trials.
        second: The same of the other side, independent of the first.
    """
    (low, high), rate = wilson(*first), first[0] / first[1]
    (other_low, other_high), other_rate = wilson(*second), second[0] / second[1]
    difference = rate - other_rate
    return (
        difference - math.hypot(rate - low, other_high - other_rate),
        difference + math.hypot(high - rate, other_rate - other_low),
    )
