"""Reads a run directory into one value. Only ``run.json`` is required, and what is damaged is left out and said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from odstream.calibration import (
    Comparison,
    ComparisonLine,
    PlanInputs,
    Reuse,
    plan_from_json,
    record_from_mapping,
)
from odstream.calibration.comparison import COMPARISON_FORMAT, COMPARISON_VERSION
from odstream.perf.exposure import Trajectories, read_trajectories
from odstream.perf.records import Record, RecordFile, read_records

__all__ = ["Run", "comparison_from_json", "read_run"]

RUN, METRICS, TASK, PLAN = "run.json", "metrics.jsonl", "task.yaml", "plan.json"
COMPARISON, TRAJECTORIES, OUTCOME = "comparison.json", "trajectories.json", "demo.json"

_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Everything that a run left. None: the file is not there, or `damaged`."""

    path: Path
    started_unix_ns: int
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    metrics: RecordFile | None
    task_text: str | None
    """YAML with all overrides."""
    plan: PlanInputs | None
    comparison: Comparison | None
    trajectories: Trajectories | None
    outcome: Mapping[str, Any] | None
    """What the trainer wrote of its result."""
    damaged: tuple[str, ...] = ()
    """In words, which files cannot be read, and why."""

    @property
    def records(self) -> tuple[Record, ...]:
        """All whole records, in order."""
        return () if self.metrics is None else self.metrics.records

    @property
    def torn(self) -> str:
        """In words, what is missing at the end of the metrics; empty if nothing is."""
        return "" if self.metrics is None else self.metrics.torn

    @property
    def missing(self) -> tuple[str, ...]:
        """In words, what cannot be shown because a file ends too early or is damaged."""
        return (*([f"{self.path / METRICS}: {self.torn}"] if self.torn else []), *self.damaged)

    @property
    def name(self) -> str:
        """The task's name where the run says one, and the folder's."""
        task, folder = self.settings.get("task"), self.path.resolve().name
        return f"{task}: {folder}" if isinstance(task, str) and task not in ("", folder) else folder

    @property
    def selections_per_episode(self) -> int | None:
        """K, or None if nobody says it."""
        if self.trajectories is not None and self.trajectories.assigned_chunks is not None:
            return self.trajectories.assigned_chunks
        shape = self.settings.get("shape")
        if not isinstance(shape, Mapping) or not shape.get("reuse_known", True):
            return None
        found = shape.get("selections_per_episode")
        return found if isinstance(found, int) else None


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        OSError: If it, or its ``run.json``, is not there, or a file cannot be read.
        ValueError: If ``run.json`` is not what its name says, or a line of the metrics before the last one.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder; a run directory is needed")
    if not (path / RUN).is_file():
        raise FileNotFoundError(f"{path} is no run directory: it has no {RUN}")
    head = _parsed(path / RUN, _run_json)
    damaged: list[str] = []

    def whole(name: str, parse: Callable[[str], _Found]) -> _Found | None:
        """Return what a file says; None if it is not there, or damaged."""
        try:
            return _parsed(path / name, parse) if (path / name).exists() else None
        except ValueError as error:
            damaged.append(str(error))
            return None

    return Run(
        path=path,
        started_unix_ns=head["started_unix_ns"],
        environment=head["environment"],
        settings=head["settings"],
        metrics=read_records(path / METRICS) if (path / METRICS).exists() else None,
        task_text=whole(TASK, str),
        plan=whole(PLAN, lambda text: plan_from_json(text)[1]),
        comparison=whole(COMPARISON, comparison_from_json),
        trajectories=whole(TRAJECTORIES, read_trajectories),
        outcome=whole(OUTCOME, _object),
        damaged=tuple(damaged),
    )


def comparison_from_json(text: str) -> Comparison:
    """Read a document that `odstream.calibration.comparison_to_json` wrote.

    Raises:
        ValueError: If it is no such document, or of another version.
    """
    fields = dict(_object(text))
    header = (fields.pop("format", None), fields.pop("version", None))
    if header != (COMPARISON_FORMAT, COMPARISON_VERSION):
        raise ValueError(f"format must be {COMPARISON_FORMAT!r} version {COMPARISON_VERSION}, got {header}")
    reuse = dict(fields["reuse"])
    uses = reuse["chunks_per_evicted_episode"]
    reuse["chunks_per_evicted_episode"] = None if uses is None else tuple(uses)
    reuse["generation_shares"] = {int(name): float(share) for name, share in reuse["generation_shares"].items()}
    fields["reuse"] = record_from_mapping(Reuse, reuse, "reuse")
    fields["lines"] = tuple(record_from_mapping(ComparisonLine, line, "a line") for line in fields["lines"])
    fields["notes"] = tuple(map(str, fields["notes"]))
    return record_from_mapping(Comparison, fields, "the comparison")


def _run_json(text: str) -> dict[str, Any]:
    found = _object(text)
    wanted = {"started_unix_ns": int, "environment": dict, "settings": dict}
    for name, kind in wanted.items():
        if not isinstance(found.get(name), kind):
            raise ValueError(f"{name} must be {kind.__name__}, got {found.get(name)!r:.60}")
    return found


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object is needed, got {type(found).__name__}")
    return found


def _parsed(path: Path, parse: Callable[[str], _Found]) -> _Found:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except KeyError as error:
        raise ValueError(f"{path}: {error} is missing") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error
