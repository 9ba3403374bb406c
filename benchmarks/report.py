"""The table and the JSON file that a benchmark writes. Standard library only."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A bound on one figure of a row."""

    text: str
    """The bound in words, as the table prints it."""
    value: float | None
    """What was measured; None if it could not be, because a peer is missing."""
    bound: float
    kind: Literal["at most", "at least"]

    @property
    def met(self) -> bool | None:
        """Whether the figure keeps the bound; None if there is no figure."""
        if self.value is None:
            return None
        return self.value <= self.bound if self.kind == "at most" else self.value >= self.bound


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. Times are seconds; None: not measured."""

    work: str
    ours: str
    """Our figure as it is printed, with its unit."""
    limit_s: float | None = None
    limit_ratio: float | None = None
    """Median over the rounds of our time over the limit's, both of the same round."""
    peers_s: Mapping[str, float] = field(default_factory=dict)
    peer_ratios: Mapping[str, float] = field(default_factory=dict)
    """Median over the rounds of the peer's time over ours: how many times faster we are."""
    targets: Sequence[Target] = ()
    note: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Everything measured, for the JSON file alone."""

    @property
    def met(self) -> bool | None:
        """Whether all targets are met; None if some could not be judged and none is missed, or there is none."""
        verdicts = [target.met for target in self.targets]
        if False in verdicts:
            return False
        return None if None in verdicts or not verdicts else True


def show_seconds(value_s: float | None) -> str:
    """Three significant digits in the unit that suits."""
    if value_s is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value_s >= scale:
            return f"{value_s / scale:.3g} {unit}"
    return f"{value_s / 1e-9:.3g} ns"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}x"


def _verdict(row: Row) -> str:
    if not row.targets:
        return "-"
    return {True: "yes", False: "NO", None: "not measured"}[row.met]


def render_table(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """Lay out the rows as a plain-text table: work, ours, limit, ratio to it, each peer and its ratio, target, met."""
    head = ["work", "ours", "limit", "ours/limit"]
    for peer in peers:
        head += [peer, "peer/ours"]
    lines = [[*head, "target", "met"]]
    for row in rows:
        cells = [row.work, row.ours, show_seconds(row.limit_s), _times(row.limit_ratio)]
        for peer in peers:
            cells += [show_seconds(row.peers_s.get(peer)), _times(row.peer_ratios.get(peer))]
        lines.append([*cells, "; ".join(target.text for target in row.targets) or "-", _verdict(row)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    text = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    notes = [f"{row.work}: {row.note}" for row in rows if row.note]
    return "\n".join([text, *([""] if notes else []), *notes])


def processor() -> str:
    """The processor's name as Linux tells it, else what Python knows."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write_json(name: str, rows: Sequence[Row], facts: Mapping[str, Any]) -> Path:
    """Write everything measured, and on what, to ``benchmarks/results/<name>.json``; return the path."""
    RESULTS.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "finished_unix_s": time.time(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **facts,
        "rows": [
            {**asdict(row), "targets": [{**asdict(t), "met": t.met} for t in row.targets], "met": row.met}
            for row in rows
        ],
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
