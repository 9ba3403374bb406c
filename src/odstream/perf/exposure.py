"""What became of every trajectory: how often it was delivered and trained on, and which of its frames were seen.

Shapes: ``B`` contexts of ``L`` frames. Imports no torch; batches are read through numpy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from odstream.validation import check_int

__all__ = ["ExposureRecorder", "Trajectories", "Trajectory", "read_trajectories"]

TRAJECTORIES_FORMAT, TRAJECTORIES_VERSION = "odstream.trajectories", 1
_SELECTIONS_AT_ONCE = 65_536
_Entry = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]
"""A batch: ``episodes [B]``, ``frames [B]``, ``loss_mask [B, L]``."""
_EPISODES: Final = 0
_FRAMES: Final = 1
_MASK: Final = 2


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

    One thread uses it. A delivery costs some microseconds; the sums are made every 65,536 selections and when asked
    for.

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
        self._in_flight: list[_Entry] = []
        self._completed: list[_Entry] = []
        self._failed: list[_Entry] = []
        self._in_flight_count = 0
        self._is_first = True
        self._waiting = 0
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

    def add_episodes(self, episodes: Iterable[Mapping[str, int]]) -> None:
        """Note episodes whose publication nobody saw.

        Args:
            episodes: ``episode_id``, ``generation`` (-1: not known) and ``valid_frames`` of each, as
                `odstream.datasets.resident_source.ResidentSource.describe_episodes` returns them.
        """
        for episode in episodes:
            tally = self._tally(episode["episode_id"])
            tally.generation = episode["generation"] if episode["generation"] >= 0 else None
            tally.length = episode["valid_frames"]

    def delivered(self, batch: Mapping[str, Any], current: int) -> int:
        """Count one selection per context, in flight until `completed` or `failed`; return how many there are.

        Args:
            batch: ``frame_ids [B, L, 3]`` (run, episode, frame), or ``ods_episode_id`` and ``ods_frame_index``
                ``[B, L]``; and ``loss_mask [B, L]``.
            current: Index of the current frame, ``history_length - 1``.

        Raises:
            KeyError: If the batch says nothing of where its frames come from (``include_provenance`` is off).
            ValueError: If a current frame is padding. Of the first batch that is told at once, of others when sums
                are made.
        """
        entry = _read(batch, current)
        if self._is_first:
            _check(entry[_EPISODES], entry[_FRAMES])
            self._is_first = False
        count = len(entry[_MASK])
        self._in_flight.append(entry)
        self._in_flight_count += count
        self._totals["delivered"] += count
        return count

    def completed(self) -> None:
        """Count what is in flight as used by a completed optimizer step."""
        self._settle("completed", self._completed)

    def failed(self) -> None:
        """Count what is in flight as lost to an update that failed. Its deliveries stay spent."""
        self._settle("failed", self._failed)

    def _settle(self, outcome: str, entries: list[_Entry]) -> None:
        entries += self._in_flight
        self._in_flight.clear()
        self._totals[outcome] += self._in_flight_count
        self._waiting += self._in_flight_count
        self._in_flight_count = 0
        if self._waiting >= _SELECTIONS_AT_ONCE:
            self._sum_up()

    def trajectories(self) -> Trajectories:
        """Return what was counted so far."""
        self._sum_up()
        waiting: dict[int, int] = {}
        for use in _by_episode(self._in_flight):
            waiting[use.episode] = use.selections
            self._tally(use.episode)
        return Trajectories(
            run_id=self._run_id,
            assigned_chunks=self._assigned,
            episodes=tuple(
                tally.read(episode, waiting.get(episode, 0)) for episode, tally in sorted(self._episodes.items())
            ),
            totals={**self._totals, "in_flight": self._in_flight_count},
        )

    def to_json(self) -> str:
        """Return what was counted so far, as a document; see `Trajectories.to_json`."""
        return self.trajectories().to_json()

    def _tally(self, episode: int) -> _Tally:
        if episode not in self._episodes:
            self._episodes[episode] = _Tally()
        return self._episodes[episode]

    def _sum_up(self) -> None:
        for use in _by_episode(self._completed):
            self._tally(use.episode).complete(use)
        for use in _by_episode(self._failed):
            self._tally(use.episode).failed += use.selections
        self._completed.clear()
        self._failed.clear()
        self._waiting = 0


class _Use(NamedTuple):
    """What some batches used of one episode."""

    episode: int
    selections: int
    supervised: int
    seen: int
    """A bit per frame."""


class _Tally:
    """Sums of one episode."""

    __slots__ = ("completed", "evicted_s", "failed", "generation", "length", "published_s", "seen", "supervised")

    def __init__(self) -> None:
        self.generation: int | None = None
        self.length: int | None = None
        self.published_s: float | None = None
        self.evicted_s: float | None = None
        self.completed = self.failed = self.supervised = 0
        self.seen = 0  # a bit per frame: an episode that is long gone costs little memory

    def complete(self, use: _Use) -> None:
        self.completed += use.selections
        self.supervised += use.supervised
        self.seen |= use.seen

    def read(self, episode: int, in_flight: int) -> Trajectory:
        return Trajectory(
            episode_id=episode,
            generation=self.generation,
            length=self.length,
            published_s=self.published_s,
            evicted_s=self.evicted_s,
            delivered=self.completed + self.failed + in_flight,
            completed=self.completed,
            anchors=self.seen.bit_count(),
            supervised_frames=self.supervised,
        )


def on_cpu(values: Any) -> bool:
    """Whether numpy can read an array, or a tensor, without a transfer from a device."""
    device = getattr(values, "device", None)
    return getattr(device, "type", "cpu") == "cpu"


def _array(values: Any) -> NDArray[Any]:
    """Return what numpy reads; of a tensor, faster than ``np.asarray``."""
    read = getattr(values, "numpy", None)
    try:
        return np.asarray(values if read is None else read())
    except TypeError as error:
        if on_cpu(values):
            raise
        raise TypeError(
            f"a batch must say in the CPU's memory where its frames come from, its ids or mask are on {values.device}: "
            "move to the device only what the model needs, or count no trajectories (trajectories=False)"
        ) from error


def _read(batch: Mapping[str, Any], current: int) -> _Entry:
    """Return copies of what is needed of a batch: nothing of it is held, so its memory can be used again."""
    keys = batch.keys()
    if "frame_ids" in keys:
        ids = _array(batch["frame_ids"])[:, current]
        return ids[:, 1].copy(), ids[:, 2].copy(), _array(batch["loss_mask"]).copy()
    if "ods_episode_id" in keys:
        episodes, frames = _array(batch["ods_episode_id"]), _array(batch["ods_frame_index"])
        return episodes[:, current].copy(), frames[:, current].copy(), _array(batch["loss_mask"]).copy()
    raise KeyError("a batch with frame_ids or ods_episode_id is needed; set include_provenance=True")


def _check(episodes: NDArray[np.int64], frames: NDArray[np.int64]) -> None:
    if episodes.size and min(episodes.min(), frames.min()) < 0:
        raise ValueError("a current frame of a context is padding; current must be history_length - 1")


def _supervised(masks: Sequence[NDArray[np.bool_]]) -> NDArray[np.float32]:
    """Return how many frames of each context are supervised. A product is thrice as fast as a sum of booleans."""
    if len({mask.shape[1] for mask in masks}) > 1:
        return np.concatenate([_supervised([mask]) for mask in masks])
    together = np.concatenate(masks)
    return together.astype(np.float32) @ np.ones(together.shape[1], np.float32)


def _by_episode(entries: list[_Entry]) -> Iterator[_Use]:
    """Yield what all entries together used of each episode."""
    if not sum(len(entry[_MASK]) for entry in entries):
        return
    episodes = np.concatenate([entry[_EPISODES] for entry in entries])
    frames = np.concatenate([entry[_FRAMES] for entry in entries])
    _check(episodes, frames)
    supervised = _supervised([entry[_MASK] for entry in entries])
    first, places = int(episodes.min()), episodes - episodes.min()
    if places.max() > len(places):  # far apart: number those that occur
        numbers, places = np.unique(episodes, return_inverse=True)
    else:
        numbers = np.arange(first, first + int(places.max()) + 1)
    counts = np.bincount(places, minlength=len(numbers))
    sums = np.bincount(places, weights=supervised, minlength=len(numbers))
    width = int(frames.max()) + 1
    seen = np.zeros((len(numbers), width), np.bool_)
    seen.reshape(-1)[places * width + frames] = True  # one index: thrice as fast as two
    bits = np.packbits(seen, axis=1, bitorder="little")
    for place in np.flatnonzero(counts).tolist():
        frames_seen = int.from_bytes(bits[place].tobytes(), "little")
        yield _Use(int(numbers[place]), int(counts[place]), int(sums[place]), frames_seen)
