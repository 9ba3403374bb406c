"""The counts that must balance, as equations with their numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odstream.calibration import Comparison
from odstream.perf.exposure import Trajectories
from odstream.perf.facts import PoolReading, imbalances
from odstream.perf.records import Record

__all__ = ["Equation", "all_equations", "complaints"]


@dataclass(frozen=True, slots=True)
class Equation:
    """A sum that must come out."""

    source: str
    """The file that the numbers are from."""
    whole: tuple[str, int]
    parts: Sequence[tuple[str, int]]

    @property
    def difference(self) -> int:
        """The whole less its parts; 0 if it balances."""
        return self.whole[1] - sum(value for _, value in self.parts)

    @property
    def words(self) -> str:
        """Without numbers."""
        return f"{self.whole[0]} = {' + '.join(name for name, _ in self.parts)}"


def all_equations(
    record: Record | None, budget: int | None, trajectories: Trajectories | None, comparison: Comparison | None
) -> list[Equation]:
    """Return every equation whose numbers are known."""
    return [
        *([] if record is None else of_record(record, budget)),
        *([] if trajectories is None else of_trajectories(trajectories)),
        *([] if comparison is None else [of_comparison(comparison)]),
    ]


def of_record(record: Record, budget: int | None) -> list[Equation]:
    """Return the equations of the last record; those with a part that is unknown or of another moment are left out."""
    counts = _counts(record)
    wanted: list[tuple[str, Sequence[str]]] = [
        ("accepted", ("published", "lost")),
        ("delivered", ("completed", "in_flight", "failed_updates")),
    ]
    found = [
        Equation("metrics.jsonl", (whole, counts[whole]), [(_words(part), counts[part]) for part in parts])
        for whole, parts in wanted
        if {whole, *parts} <= counts.keys()
    ]
    parts = ("delivered", "prefetched", "remaining", "retired")
    if budget is not None and {"published", *parts} <= counts.keys():
        whole = (f"{budget} × published", budget * counts["published"])
        found.append(Equation("metrics.jsonl", whole, [(part, counts[part]) for part in parts]))
    return found


def of_trajectories(found: Trajectories) -> list[Equation]:
    """Return the equations of deliveries as the training loop counted them."""
    totals, file = found.totals, "trajectories.json"
    equations = [
        Equation(
            file,
            ("delivered", int(totals["delivered"])),
            [(_words(part), int(totals[part])) for part in ("completed", "failed", "in_flight")],
        ),
        Equation(
            file,
            ("delivered", int(totals["delivered"])),
            [("sum over trajectories", sum(one.delivered for one in found.episodes))],
        ),
    ]
    if found.assigned_chunks is not None:
        over = sum(max(0, one.delivered - found.assigned_chunks) for one in found.episodes)
        equations.append(Equation(file, ("deliveries beyond K", over), [("none", 0)]))
    return equations


def of_comparison(comparison: Comparison) -> Equation:
    """Return the equation of the engine's ledger at the end."""
    reuse = comparison.reuse
    return Equation(
        "comparison.json",
        ("K × published", reuse.assigned_chunks),
        [
            ("delivered", reuse.delivered_chunks),
            ("remaining", reuse.remaining_chunks),
            ("retired", reuse.retired_chunks),
        ],
    )


def complaints(record: Record, budget: int | None) -> list[str]:
    """Return, in words, what the metrics package itself finds out of balance in a record."""
    counts = _counts(record)
    drawn = counts["delivered"] + counts["prefetched"] if {"delivered", "prefetched"} <= counts.keys() else None
    pool = PoolReading(
        delivered=drawn,
        remaining=None if budget is None else counts.get("remaining"),
        retired=None if budget is None else counts.get("retired"),
    )
    return imbalances(counts, pool, 1 if budget is None else budget)


def _counts(record: Record) -> Mapping[str, int]:
    fresh = record.fresh()
    return {
        name.removeprefix("perf/"): round(value)
        for name, value in fresh.items()
        if name.count("/") == 1 and name.startswith("perf/") and value == value and abs(value) != float("inf")
    }


def _words(name: str) -> str:
    return name.replace("_", " ")
