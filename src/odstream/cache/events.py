"""A bounded log of what entered the cache and what left it.

One process appends (the producer's worker), one drains (the owner). Records lie in a ring; two counters say how many
were ever appended and drained. A full ring holds the producer back: nothing is dropped or overwritten.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from odstream.cache.layout import Word
from odstream.cache.store import CacheStore

__all__ = ["EventLog", "RowState"]

_EVICTED, _PUBLISHED = 0, 1
_COLUMNS = ("sequence", "kind", "run_id", "episode_id", "generation", "slot", "monotonic_ns", "length")


class RowState(NamedTuple):
    """What an event says of a row."""

    episode_id: int
    generation: int
    slot: int
    valid: NDArray[np.bool_]
    """``[length]`` real frames."""
    anchors: NDArray[np.bool_]
    """``[length]`` frames that may be the current frame of a context in episode mode."""


class EventLog:
    """The log of one cache. Does nothing when its capacity is zero."""

    def __init__(self, store: CacheStore) -> None:
        self._store = store
        self._capacity = store.layout.event_capacity
        self._records = store.array("events")
        self._frames = store.array("event_frames")

    @property
    def enabled(self) -> bool:
        """Whether events are recorded at all."""
        return self._capacity > 0

    def free(self) -> int:
        """Return how many records still fit. Grows when the owner drains."""
        words = self._store.words
        return self._capacity - int(words[Word.EVENT_TAIL] - words[Word.EVENT_HEAD])

    def prepare(self, kinds: list[tuple[bool, RowState]], run_id: int) -> None:
        """Write records behind the tail, where nobody reads yet. Needs `free` room; takes no lock.

        Args:
            kinds: For each record whether the row was published (else evicted), and its state.
            run_id: Identity of the engine's run.
        """
        tail = int(self._store.words[Word.EVENT_TAIL])
        for sequence, (published, row) in enumerate(kinds, tail):
            place = sequence % self._capacity
            length = len(row.valid)
            kind = _PUBLISHED if published else _EVICTED
            self._records[place] = (sequence, kind, run_id, row.episode_id, row.generation, row.slot, 0, length)
            self._frames[place, 0, :length] = row.valid
            self._frames[place, 1, :length] = row.anchors

    def stamp(self, count: int, monotonic_ns: int) -> int:
        """Set the time of ``count`` prepared records and return the tail to commit. Call it under the lock."""
        tail = int(self._store.words[Word.EVENT_TAIL])
        for sequence in range(tail, tail + count):
            self._records[sequence % self._capacity, 6] = monotonic_ns
        return tail + count

    def drain(self) -> list[dict[str, Any]]:
        """Return and remove all records, oldest first. Holds the lock while they are copied.

        Each record has ``kind`` ("published" or "evicted"), ``sequence, run_id, episode_id, generation, slot,
        monotonic_ns, valid_frame_indices, eligible_anchor_indices, valid_frames, eligible_anchors``.
        """
        if not self.enabled:
            return []
        words = self._store.words
        with self._store.transaction():
            head, tail = int(words[Word.EVENT_HEAD]), int(words[Word.EVENT_TAIL])
            places = np.arange(head, tail) % self._capacity
            records, frames = self._records[places], self._frames[places]
            if head < tail:
                self._store.commit([Word.EVENT_HEAD], [tail])
        return [_event(record, masks) for record, masks in zip(records.tolist(), frames, strict=True)]


def _event(columns: list[int], masks: NDArray[np.bool_]) -> dict[str, Any]:
    record = dict(zip(_COLUMNS, columns, strict=True))
    length = record.pop("length")
    valid, anchors = (np.flatnonzero(mask[:length]).tolist() for mask in masks)
    return {
        "kind": "published" if record.pop("kind") == _PUBLISHED else "evicted",
        **record,
        "valid_frame_indices": valid,
        "eligible_anchor_indices": anchors,
        "valid_frames": len(valid),
        "eligible_anchors": len(anchors),
    }
