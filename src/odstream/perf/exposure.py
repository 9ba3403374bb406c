"""What became of every trajectory: how often it was delivered and trained on, and which of its frames were seen.

Shapes: ``B`` contexts of ``L`` frames. Imports no torch; batches are read through numpy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.validation import check_int

__all__ = ["ExposureRecorder", "Trajectories", "Trajectory", "read_trajectories"]

TRAJECTORIES_FORMAT, TRAJECTORIES_VERSION = "odstream.trajectories", 1
_BATCHES_AT_ONCE = 64
_EPISODE, _FRAME, _SUPERVISED = range(3)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. Times are seconds since the recorder was made; None: it is not known, or has not happened."""

    episode_id: int
    generation: int | None
    length: int | None
    """Real frames."""
    published_s: float | None
    evicted_s: float | None
    delivered: int
    """Selections that the loop has received: completed, failed and in flight."""
    completed: int
    """Selections used by a completed optimizer step. The two numbers below speak of these alone."""
    anchors: int
    """Distinct frames that were the current one of a context."""
    supervised_frames: int
    """Frames that ``loss_mask`` selected, counted each time."""


@dataclass(frozen=True, slots=True)
class Trajectories:
    """All episodes that were published or delivered, by id, and the totals."""

    run_id: int | None
    assigned_chunks: int | None
    """K, selections granted to each episode; None without budgets."""
    episodes: tuple[Trajectory, ...]
    totals: Mapping[str, int]
    """``delivered, completed, failed, in_flight``: selections."""

    def to_json(self) -> str:
        """Return the document that `read_trajectories` reads."""
        return json.dumps(
            {
                "format": TRAJECTORIES_FORMAT,
                "version": TRAJECTORIES_VERSION,
                "run_id": self.run_id,
                "assigned_chunks": self.assigned_chunks,
                "columns": _COLUMNS,
                "episodes": [list(asdict(episode).values()) for episode in self.episodes],
                "totals": dict(self.totals),
            },
            allow_nan=False,
        )


_COLUMNS = [field.name for field in fields(Trajectory)]


def read_trajectories(text: str) -> Trajectories:
    """Read a document.

    Raises:
        ValueError: If it is none, or of another format or version.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"trajectories are a JSON document: {error}") from error
    header = (found.get("format"), found.get("version")) if isinstance(found, dict) else (None, None)
    if header != (TRAJECTORIES_FORMAT, TRAJECTORIES_VERSION):
        raise ValueError(
            f"a document of format {TRAJECTORIES_FORMAT!r} version {TRAJECTORIES_VERSION} is needed, got {header}"
        )
    if found.get("columns") != _COLUMNS:
        raise ValueError(f"columns must be {_COLUMNS}, got {found.get('columns')!r}")
    return Trajectories(
        run_id=found["run_id"],
        assigned_chunks=found["assigned_chunks"],
        episodes=tuple(Trajectory(*row) for row in found["episodes"]),
        totals=found["totals"],
    )


class ExposureRecorder:
    """Counts, per trajectory, what a training loop receives and completes.

    One thread uses it. A delivery costs some microseconds; the sums are made every 64 batches and when asked for.

    Args:
        assigned_chunks: K, where there are budgets.
        clock_ns: Monotonic nanoseconds of this host.
    """

    def __init__(self, assigned_chunks: int | None = None, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        if assigned_chunks is not None:
            check_int("assigned_chunks", assigned_chunks, 1)
        self._assigned = assigned_chunks
        self._origin_ns = clock_ns()
        self._run_id: int | None = None
        self._episodes: dict[int, _Tally] = {}
        self._in_flight: list[NDArray[np.int64]] = []
        self._completed: list[NDArray[np.int64]] = []
        self._failed: list[NDArray[np.int64]] = []
        self._totals = dict.fromkeys(("delivered", "completed", "failed"), 0)

    def on_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Note publications and evictions: records of `OnlineDataEngine.drain_lifecycle_events`."""
        for event in events:
            self._run_id = event["run_id"]
            tally = self._tally(event["episode_id"])
            tally.generation = event["generation"]
            at_s = (event["monotonic_ns"] - self._origin_ns) / 1e9
            if event["kind"] == "published":
                tally.length, tally.published_s = event["valid_frames"], at_s
            else:
                tally.evicted_s = at_s

    def delivered(self, batch: Mapping[str, Any], current: int) -> None:
        """Count one selection per context: it is in flight until `completed` or `failed`.

        Args:
            batch: ``frame_ids [B, L, 3]`` (run, episode, frame), or ``ods_episode_id`` and ``ods_frame_index``
                ``[B, L]``; and ``loss_mask [B, L]``.
            current: Index of the current frame, ``history_length - 1``.

        Raises:
            KeyError: If the batch says nothing of where its frames come from (``include_provenance`` is off).
            ValueError: If a current frame is padding.
        """
        keys = set(batch.keys())
        if "frame_ids" in keys:
            ids = np.asarray(batch["frame_ids"])[:, current]
            episodes, frames = ids[:, 1], ids[:, 2]
        elif "ods_episode_id" in keys:
            episodes = np.asarray(batch["ods_episode_id"])[:, current]
            frames = np.asarray(batch["ods_frame_index"])[:, current]
        else:
            raise KeyError("a batch with frame_ids or ods_episode_id is needed; set include_provenance=True")
        supervised = np.asarray(batch["loss_mask"]).sum(axis=1)
        entry = np.stack((episodes, frames, supervised)).astype(np.int64, copy=False)
        if entry.size and entry[:_SUPERVISED].min() < 0:
            raise ValueError(f"frame {current} of a context is padding; current must be history_length - 1")
        self._in_flight.append(entry)
        self._totals["delivered"] += entry.shape[1]

    def completed(self) -> None:
        """Count what is in flight as used by a completed optimizer step."""
        self._settle("completed", self._completed)

    def failed(self) -> None:
        """Count what is in flight as lost to an update that failed. Its deliveries stay spent."""
        self._settle("failed", self._failed)

    def _settle(self, outcome: str, entries: list[NDArray[np.int64]]) -> None:
        entries += self._in_flight
        self._totals[outcome] += _selections(self._in_flight)
        self._in_flight.clear()
        if len(entries) >= _BATCHES_AT_ONCE:
            self._sum_up()

    def trajectories(self) -> Trajectories:
        """Return what was counted so far."""
        self._sum_up()
        waiting: dict[int, int] = {}
        for episode, part in _by_episode(self._in_flight):
            waiting[episode] = part.shape[1]
            self._tally(episode)
        return Trajectories(
            run_id=self._run_id,
            assigned_chunks=self._assigned,
            episodes=tuple(
                tally.read(episode, waiting.get(episode, 0)) for episode, tally in sorted(self._episodes.items())
            ),
            totals={**self._totals, "in_flight": _selections(self._in_flight)},
        )

    def to_json(self) -> str:
        """Return what was counted so far, as a document; see `Trajectories.to_json`."""
        return self.trajectories().to_json()

    def _tally(self, episode: int) -> _Tally:
        if episode not in self._episodes:
            self._episodes[episode] = _Tally()
        return self._episodes[episode]

    def _sum_up(self) -> None:
        for episode, part in _by_episode(self._completed):
            self._tally(episode).complete(part)
        for episode, part in _by_episode(self._failed):
            self._tally(episode).failed += part.shape[1]
        self._completed.clear()
        self._failed.clear()


class _Tally:
    """Sums of one episode."""

    __slots__ = ("completed", "evicted_s", "failed", "generation", "length", "published_s", "seen", "supervised")

    def __init__(self) -> None:
        self.generation: int | None = None
        self.length: int | None = None
        self.published_s: float | None = None
        self.evicted_s: float | None = None
        self.completed = self.failed = self.supervised = 0
        self.seen = np.zeros(0, np.bool_)

    def complete(self, part: NDArray[np.int64]) -> None:
        self.completed += part.shape[1]
        self.supervised += int(part[_SUPERVISED].sum())
        frames = part[_FRAME]
        needed = int(frames.max()) + 1
        if needed > len(self.seen):
            self.seen = np.concatenate((self.seen, np.zeros(needed - len(self.seen), np.bool_)))
        self.seen[frames] = True

    def read(self, episode: int, in_flight: int) -> Trajectory:
        return Trajectory(
            episode_id=episode,
            generation=self.generation,
            length=self.length,
            published_s=self.published_s,
            evicted_s=self.evicted_s,
            delivered=self.completed + self.failed + in_flight,
            completed=self.completed,
            anchors=int(self.seen.sum()),
            supervised_frames=self.supervised,
        )


def _selections(entries: list[NDArray[np.int64]]) -> int:
    return sum(entry.shape[1] for entry in entries)


def _by_episode(entries: list[NDArray[np.int64]]) -> Iterable[tuple[int, NDArray[np.int64]]]:
    """Return the columns of all entries, grouped by their episode."""
    if not entries:
        return
    columns = np.concatenate(entries, axis=1)
    columns = columns[:, np.argsort(columns[_EPISODE], kind="stable")]
    episodes, starts = np.unique(columns[_EPISODE], return_index=True)
    yield from zip(episodes.tolist(), np.split(columns, starts[1:], axis=1), strict=True)
