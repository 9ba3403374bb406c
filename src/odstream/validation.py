"""Checks of single settings. Each raises before anything is changed and names the setting, the value and the range."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["INT64_MAX", "check_choice", "check_finite", "check_int"]

INT64_MAX = 2**63 - 1


def check_int(name: str, value: object, minimum: int, maximum: int = INT64_MAX) -> int:
    """Return ``value`` if it is an int (and no bool) within ``[minimum, maximum]``.

    Raises:
        TypeError: If it is not an int.
        ValueError: If it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r} ({type(value).__name__})")
    if not minimum <= value <= maximum:
        upper = "" if maximum == INT64_MAX and value < minimum else f" and at most {maximum}"
        raise ValueError(f"{name} must be at least {minimum}{upper}, got {value}")
    return value


def check_finite(name: str, value: object, *, above: float = 0.0) -> float:
    """Return ``value`` if it is a finite number (and no bool) greater than ``above``.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is NaN, infinite or not greater than ``above``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not above < value <= sys.float_info.max:
        raise ValueError(f"{name} must be finite and greater than {above:g}, got {value!r}")
    return float(value)


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises:
        ValueError: If it is not.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
