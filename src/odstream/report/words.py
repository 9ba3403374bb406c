"""Numbers in words and HTML. Pure."""

from __future__ import annotations

import html
import math
from datetime import UTC, datetime

__all__ = ["compact", "duration", "escaped", "exact", "moment", "percent", "shown"]

THIN = "\u202f"
"""A narrow space that does not break: between thousands, and between number and unit."""
_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def escaped(text: object) -> str:
    """Return text for HTML, between tags and in quotes."""
    return html.escape(str(text), quote=True)


def exact(value: float) -> str:
    """Return a number with all its digits, as Python and JSON read it."""
    return str(value) if isinstance(value, int) else repr(float(value))


def compact(value: float) -> str:
    """Return a number with about four significant digits and thin spaces between thousands."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if isinstance(value, int) or value == round(value) or abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif abs(value) >= 1e-4:
        text = f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}".rstrip("0").rstrip(".")
    else:
        text = f"{value:.2e}"
    return text.replace(",", THIN).replace("-", "−")


def percent(share: float) -> str:
    """Return a share as per cent; small ones with a digit more, and never 0 % for what is not 0."""
    if not math.isfinite(share):
        return "unknown"
    if 0 < abs(share) < 0.0005:
        return f"<{THIN}0.1{THIN}%"
    digits = 1 if abs(share) < 0.0995 and share != 0 else 0
    return f"{share * 100:.{digits}f}{THIN}%".replace("-", "−")


def shown(value: float, unit: str) -> str:
    """Return a number with its unit, in the size that suits."""
    if not math.isfinite(value):
        return compact(value)
    if unit in ("fraction", "share"):
        return percent(value)
    if unit == "bytes":
        for name, size in _BYTES:
            if abs(value) >= size:
                return f"{compact(value / size)}{THIN}{name}"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{compact(value * 1e3)}{THIN}ms"
    if unit == "s" and abs(value) >= 1000:
        return duration(value)
    return f"{compact(value)}{THIN}{unit}" if unit else compact(value)


def duration(seconds: float) -> str:
    """Return a duration in at most two units."""
    whole = round(seconds)
    if whole < 120:
        return f"{compact(round(seconds, 1))}{THIN}s"
    if whole < 7200:
        return f"{whole // 60}{THIN}min {whole % 60}{THIN}s"
    return f"{whole // 3600}{THIN}h {whole % 3600 // 60}{THIN}min"


def moment(unix_ns: int) -> str:
    """Return a moment in UTC."""
    return datetime.fromtimestamp(unix_ns / 1e9, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
