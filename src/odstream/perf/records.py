"""Records of metrics as JSON lines: written whole and flushed, read even if the last one is torn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["JsonLinesSink", "Record", "RecordFile", "read_records"]

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """All metrics at one step."""

    step: int
    """The axis, ``train/step``."""
    unix_ns: int
    """A stamp for people; no duration is computed from it."""
    elapsed_s: float
    """Seconds since metering began, by a monotonic clock. Grows from record to record."""
    values: Mapping[str, float]
    """By name, in the units of the table."""
    stale: frozenset[str] = frozenset()
    """Names whose value is an earlier window's."""
    verdict: str = ""
    """The diagnosis in words; empty if there is none."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further fields, JSON only."""

    def fresh(self) -> dict[str, float]:
        """Return the values that are not stale: charts shall hold their last point rather than repeat it."""
        return {name: value for name, value in self.values.items() if name not in self.stale}

    def to_json(self) -> str:
        """Return one line of strict JSON; values that are not finite are written as text."""
        return json.dumps(
            {
                "train/step": self.step,
                "unix_ns": self.unix_ns,
                "elapsed_s": self.elapsed_s,
                "values": {name: _to_json(float(value)) for name, value in self.values.items()},
                "stale": sorted(self.stale),
                "verdict": self.verdict,
                "details": dict(self.details),
            },
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Read one line.

        Raises:
            ValueError: If it is no record.
        """
        found = json.loads(line)
        if not isinstance(found, dict) or not {"train/step", "elapsed_s", "values"} <= found.keys():
            raise ValueError(f"a record is an object with train/step, elapsed_s and values, got {line[:80]!r}")
        return cls(
            step=int(found["train/step"]),
            unix_ns=int(found.get("unix_ns", 0)),
            elapsed_s=float(found["elapsed_s"]),
            values={name: float(value) for name, value in found["values"].items()},
            stale=frozenset(found.get("stale", ())),
            verdict=found.get("verdict", ""),
            details=found.get("details", {}),
        )


def _to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return _NOT_FINITE[0]
    return _NOT_FINITE[1 if value > 0 else 2]


class JsonLinesSink:
    """Writes a line per record, each flushed before the next step goes on.

    Args:
        path: A file that does not exist yet.

    Raises:
        FileExistsError: If it does.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("x", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append a record."""
        self._file.write(record.to_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class RecordFile:
    """What was found in a file."""

    records: tuple[Record, ...]
    torn: str
    """In words, what is missing at its end; empty if the file is whole."""


def read_records(path: Path) -> RecordFile:
    """Read a file up to its last whole record.

    A run that was killed, or still goes on, leaves a torn last line; a power cut may leave one of zeros. That is said,
    and no error.

    Raises:
        ValueError: If a line before the last one is no record; the message names it.
        OSError: If the file cannot be read.
    """
    lines = path.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    records: list[Record] = []
    torn = ""
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Record.from_json(line.decode("utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number < len(lines):
                raise ValueError(f"{path}:{number}: no record: {error}") from error
            torn = f"line {number} is torn ({len(line)} bytes); shown up to the {len(records)} whole records before it"
    return RecordFile(tuple(records), torn)
