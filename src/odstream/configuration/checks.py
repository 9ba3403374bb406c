"""Checks of plain values, and rounding of exact fractions. Pure."""

from __future__ import annotations

import math
from fractions import Fraction

_INT64_MAX = 2**63 - 1


def checked_count(field: str, value: object, *, minimum: int = 1) -> int:
    """Return ``value`` if it is an integer (no bool) in ``[minimum, 2**63 - 1]``."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _INT64_MAX:
        raise ValueError(f"{field} must be an integer in [{minimum}, {_INT64_MAX}], got {value!r}")
    return value


def checked_quantity(field: str, value: object, *, zero_allowed: bool = False) -> Fraction:
    """Return the exact value of a finite int or float (no bool) that is positive, or zero where allowed."""
    accepted = "a finite number " + (">= 0" if zero_allowed else "> 0")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{field} must be {accepted}, got {value!r}")
    if not math.isfinite(value) if isinstance(value, float) else abs(value) >= 2**1024:
        raise ValueError(f"{field} must be {accepted} within the range of a float, got {value!r:.40}")
    if value < 0 or (value == 0 and not zero_allowed):
        raise ValueError(f"{field} must be {accepted}, got {value!r}")
    return Fraction(value)


def checked_text(field: str, value: object) -> str:
    """Return ``value`` if it is a text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} must be a text that is not blank, got {value!r}")
    return value


def derived_count(name: str, value: int) -> int:
    """Return ``value`` if it still fits into 64 bits."""
    if value > _INT64_MAX:
        raise ValueError(f"the derived {name} is {value}, more than {_INT64_MAX}: the inputs are out of proportion")
    return value


def nearest(name: str, value: Fraction) -> float:
    """Return the float nearest to ``value``; a positive value never becomes zero or infinite."""
    try:
        rounded = float(value)
    except OverflowError:
        rounded = math.inf
    if math.isinf(rounded) or (value > 0 and rounded == 0.0):
        raise ValueError(f"the derived {name} does not fit into a float: the inputs are out of proportion")
    return rounded


def rounded_down(name: str, value: Fraction) -> float:
    """Return the largest float that does not exceed the positive ``value``."""
    rounded = nearest(name, value)
    if Fraction(rounded) > value:
        rounded = math.nextafter(rounded, 0.0)
    if rounded == 0.0:
        raise ValueError(f"the derived {name} rounds down to zero: the inputs are out of proportion")
    return rounded


def round_up_to(multiple: int, value: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``value``."""
    return -(-value // multiple) * multiple
