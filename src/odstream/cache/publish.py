"""Turns a recorded row into one that can be sampled. Used by the worker process alone.

Everything that takes time (annotations, padding, window tables, event records) is done while the row is out of reach.
Under the lock remain the publication time, and one commit that points the slot to the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.cache.events import EventLog, RowState
from odstream.cache.layout import ANNOTATIONS, PROVENANCE, Word
from odstream.cache.store import CacheStore
from odstream.cache.windows import SAMPLING_MODES, intervals_of

__all__ = ["FrameSegment", "Publisher", "RowRecord"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameSegment:
    """A half-open range of frames of one segment."""

    start: int
    end: int
    subtask_index: int = -1
    attempt: int = 0
    accepted: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRecord:
    """What is known of a recorded row beside its recorded fields."""

    row: int
    length: int
    segments: tuple[FrameSegment, ...]
    """Consecutive, covering ``[0, length)``."""
    terminated: bool = False
    truncated: bool = False
    task_index: int = -1
    valid: NDArray[np.bool_] | None = None
    continuity_id: NDArray[np.int64] | None = None


class Publisher:
    """Owns the rows that no slot points to.

    Args:
        store: The cache.
        run_id: Identity of the engine's run, stamped on every frame.
        budget: Selections assigned to each published episode; 0 for no ledger.
        unix_ns: Wall clock, for the time of acceptance.
        monotonic_ns: Monotonic clock, for the time of publication.
    """

    def __init__(
        self,
        store: CacheStore,
        *,
        run_id: int,
        budget: int,
        unix_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._budget = budget
        self._unix_ns, self._monotonic_ns = unix_ns, monotonic_ns
        self._events = EventLog(store)
        self._rows: Mapping[tuple[str, ...], NDArray[Any]] = store.rows_of_fields()
        self._provenance = PROVENANCE[0].key in self._rows
        self._free = list(range(store.layout.rows - 1, -1, -1))
        self._claimed: set[int] = set()
        self._next_episode = 0

    def claim(self) -> int:
        """Return a row to record into. The caller owns it until it gives it to `recycle` or `publish`.

        Raises:
            RuntimeError: If all spare rows are claimed.
        """
        if not self._free:
            raise RuntimeError(f"all {len(self._claimed)} free rows are claimed; give one away before the next claim")
        row = self._free.pop()
        self._claimed.add(row)
        return row

    def recycle(self, row: int) -> None:
        """Take back a row whose recording is of no use.

        Raises:
            ValueError: If it is not claimed.
        """
        self._give_away(row)
        self._free.append(row)

    def has_room(self, slot: int) -> bool:
        """Return whether the log can take what publishing into ``slot`` adds: an eviction and a publication."""
        if not self._events.enabled:
            return True
        return self._events.free() >= (1 if self._store.row_of_slot[slot] < 0 else 2)

    def publish(
        self,
        record: RowRecord,
        *,
        slot: int,
        generation: int,
        also: Callable[[int], Mapping[int, int]] | None = None,
    ) -> int:
        """Make ``record`` readable in ``slot``, retire what was there, and return the new episode's identity.

        Holds the lock for the swap only. Call it when `has_room`.

        Args:
            record: What was recorded.
            slot: Where it becomes readable.
            generation: Of the fill that it belongs to.
            also: Gets the time of publication, under the lock, and returns further words to change with the swap.

        Raises:
            ValueError: If the record does not describe every frame of a claimed row. Nothing was changed.
        """
        store, row = self._store, record.row
        episode_id = self._next_episode
        _check_frames(record, store.layout.max_episode_steps)
        self._give_away(row)
        self._annotate(record)
        self._tabulate(record)
        store.episode_id[row], store.generation[row] = episode_id, generation
        if self._provenance:
            self._stamp(record, episode_id, generation)
        old = int(store.row_of_slot[slot])
        count = self._log(old, row, slot)
        with store.transaction():
            now_ns = self._monotonic_ns()
            if self._provenance:
                self._stamp_publication(record, now_ns)
            at = [store.slot_at + slot, store.assigned_at + row, store.delivered_at + row]
            values = [row, self._budget, 0]
            if count:
                at.append(Word.EVENT_TAIL)
                values.append(self._events.stamp(count, now_ns))
            counts = {
                Word.SUCCESSFUL_EPISODES: int(store.words[Word.SUCCESSFUL_EPISODES]) + 1,
                Word.RETIRED_CHUNKS: int(store.words[Word.RETIRED_CHUNKS]) + self._left_on(old),
                **({} if also is None else also(now_ns)),
            }
            store.commit([*at, *counts], [*values, *counts.values()])
        self._next_episode += 1
        if old >= 0:
            self._free.append(old)
        return episode_id

    def _left_on(self, row: int) -> int:
        """Return the selections that were never used of an episode that is replaced. Call it under the lock."""
        return 0 if row < 0 else int(self._store.assigned[row] - self._store.delivered[row])

    def _give_away(self, row: int) -> None:
        if row not in self._claimed:
            raise ValueError(f"row must be a claimed one that was not given away yet, got {row!r}")
        self._claimed.remove(row)

    def _valid(self, row: int, length: int) -> NDArray[np.bool_]:
        valid: NDArray[np.bool_] = self._rows["valid",][row, :length].view(np.bool_)
        return valid

    def _annotate(self, record: RowRecord) -> None:
        """Fill the annotations, and pad what earlier episodes and failed attempts left behind the new one."""
        row, length = record.row, record.length
        for field in self._store.layout.fields:
            self._rows[field.key][row, length:] = field.padding
        write = {field.key[0]: self._rows[field.key][row, :length] for field in ANNOTATIONS}
        steps = np.arange(length)
        write["valid"][:] = True if record.valid is None else record.valid
        write["episode_step"][:] = steps
        write["continuity_id"][:] = 0 if record.continuity_id is None else record.continuity_id
        write["task_index"][:] = record.task_index
        for name in ("segment_start", "segment_end", "terminated", "truncated"):
            write[name][:] = False
        for index, segment in enumerate(record.segments):
            part = slice(segment.start, segment.end)
            write["segment_id"][part] = index
            write["segment_step"][part] = steps[: segment.end - segment.start]
            write["segment_accepted"][part] = segment.accepted
            write["segment_attempt_id"][part] = segment.attempt
            write["subtask_index"][part] = segment.subtask_index
            write["segment_start"][segment.start] = True
            write["segment_end"][segment.end - 1] = True
        write["terminated"][length - 1] = record.terminated
        write["truncated"][length - 1] = record.truncated
        self._blank_gaps(record)

    def _blank_gaps(self, record: RowRecord) -> None:
        """Write canonical padding into frames that are not real, so that nobody can read what lies there."""
        if record.valid is None or record.valid.all():
            return
        gaps = np.flatnonzero(~record.valid)
        for field in self._store.layout.fields:
            self._rows[field.key][record.row, gaps] = field.padding

    def _tabulate(self, record: RowRecord) -> None:
        """Compute the row's window tables from its annotations."""
        store, row, length = self._store, record.row, record.length
        valid, accepted = (self._rows[name,][row, :length] for name in ("valid", "segment_accepted"))
        continuity, segment = (self._rows[name,][row, :length] for name in ("continuity_id", "segment_id"))
        for mode, name in enumerate(SAMPLING_MODES):
            intervals, longest = intervals_of(name, valid, continuity, segment, accepted)
            count, stale = len(intervals.end), int(store.intervals[mode, row])
            tables = [(store.first[mode, row], intervals.first), (store.end[mode, row], intervals.end)]
            if intervals.pivot is not None:
                tables.append((store.pivot[row], intervals.pivot))
            for table, values in tables:
                table[:count] = values
                table[count:stale] = 0
            store.intervals[mode, row], store.longest[mode, row] = count, longest
        store.length[row] = length
        store.valid_frames[row] = np.count_nonzero(valid)
        store.anchors[row] = np.count_nonzero(valid & (continuity >= 0))

    def _stamp(self, record: RowRecord, episode_id: int, generation: int) -> None:
        """Write the provenance that is known before publication. Invalid frames keep -1."""
        row, length = record.row, record.length
        valid = self._valid(row, length)
        values: tuple[Any, ...] = (self._run_id, episode_id, np.arange(length)[valid], generation, self._unix_ns())
        for field, value in zip(PROVENANCE, values, strict=False):
            frames = self._rows[field.key][row, :length]
            frames[:] = field.padding
            frames[valid] = value
        self._rows[PROVENANCE[-1].key][row, :length] = PROVENANCE[-1].padding

    def _stamp_publication(self, record: RowRecord, now_ns: int) -> None:
        frames = self._rows[PROVENANCE[-1].key][record.row, : record.length]
        frames[... if record.valid is None else record.valid] = now_ns

    def _log(self, old: int, new: int, slot: int) -> int:
        if not self._events.enabled:
            return 0
        states = [(False, self._state(old, slot))] if old >= 0 else []
        states.append((True, self._state(new, slot)))
        self._events.prepare(states, self._run_id)
        return len(states)

    def _state(self, row: int, slot: int) -> RowState:
        store = self._store
        length = int(store.length[row])
        valid = self._valid(row, length)
        anchors = valid & (self._rows["continuity_id",][row, :length] >= 0)
        return RowState(int(store.episode_id[row]), int(store.generation[row]), slot, valid, anchors)


def _check_frames(record: RowRecord, max_episode_steps: int) -> None:
    """Refuse a record that would leave frames of its row with what an earlier episode wrote."""
    length = record.length
    if not 1 <= length <= max_episode_steps:
        raise ValueError(
            f"an episode's length must be between 1 and max_episode_steps={max_episode_steps}, got {length}"
        )
    ranges = [(segment.start, segment.end) for segment in record.segments]
    begins, ends = [start for start, _ in ranges], [end for _, end in ranges]
    if [*begins, length] != [0, *ends] or any(start >= end for start, end in ranges):
        raise ValueError(f"segments must be consecutive, not empty, and cover frames 0 to {length}, got {ranges}")
    for name, array, kind in (("valid", record.valid, np.bool_), ("continuity_id", record.continuity_id, np.integer)):
        if array is not None and (np.shape(array) != (length,) or not np.issubdtype(array.dtype, kind)):
            raise ValueError(f"{name} must be an array [{length}] of {kind.__name__}, got {array!r}")
