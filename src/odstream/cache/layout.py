"""Where everything lies in the cache's memory. Computed alike in every process from a few numbers.

Letters: ``C`` readable slots, ``P`` spare rows, ``R = C + P`` rows, ``T`` frames per row, ``G`` guard frames.

Frames lie in *blocks*, arrays of bytes ``[frames, width]``. A field that is large, or that learners use as it is, owns
a block; the small ones share one, so that few copies serve all fields. Before the first row, between rows and after
the last lie ``G`` guard frames that always hold canonical padding, so a window that reaches over an end of an episode
is a plain copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from odstream.cache.lock import LOCK_BYTES
from odstream.cache.windows import SAMPLING_MODES

__all__ = ["ANNOTATIONS", "PROVENANCE", "Array", "Block", "CacheLayout", "Field", "Member", "Word"]

FieldKey = tuple[str, ...]

_PAGE_BYTES = 4096
_OWN_BLOCK_BYTES = 16
_OWN_BLOCK_KEYS = frozenset({("obs",), ("actions",)})
_MAX_GUARD_FRAMES = 64


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a frame."""

    key: FieldKey
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    padding: int = 0
    """Value of every element where there is no frame."""

    @property
    def nbytes(self) -> int:
        """Bytes per frame."""
        return prod(self.shape) * self.dtype.itemsize


def _scalars(dtype: type[np.generic], padding: int, *names: str) -> tuple[Field, ...]:
    return tuple(Field((name,), (), np.dtype(dtype), padding) for name in names)


ANNOTATIONS: tuple[Field, ...] = (
    *_scalars(np.bool_, 0, "valid"),
    *_scalars(np.int64, 0, "episode_step", "segment_id", "segment_step"),
    *_scalars(np.bool_, 0, "segment_start", "segment_end", "segment_accepted"),
    *_scalars(np.int64, 0, "segment_attempt_id", "continuity_id"),
    *_scalars(np.bool_, 0, "terminated", "truncated"),
    *_scalars(np.int64, -1, "task_index", "subtask_index"),
)
"""What every frame carries beside the recorded fields."""

PROVENANCE: tuple[Field, ...] = _scalars(
    np.int64,
    -1,
    "ods_run_id",
    "ods_episode_id",
    "ods_frame_index",
    "ods_generation",
    "ods_accepted_at_ns",
    "ods_published_at_monotonic_ns",
)
"""Identity and times of a frame, where the engine records provenance. The three that identify it are neighbours."""


class Word:
    """Positions of the counters in the control words. Plain integers: they index arrays on hot paths."""

    STATE = 0
    STOP = 1
    REQUESTED_GENERATION = 2
    COMPLETED_GENERATION = 3
    SUCCESSFUL_EPISODES = 4
    FAILED_EPISODES = 5
    GENERATED_FRAMES = 6
    PRODUCTION_NS = 7  # busy, up to the end of the last attempt
    SAMPLED_CHUNKS = 8
    SAMPLED_SINCE_REFILL = 9
    EVENT_HEAD = 10
    EVENT_TAIL = 11
    LANGUAGE_BYTES = 12
    ERROR_BYTES = 13
    JOURNAL_LENGTH = 14
    WORKER_PID = 15
    WORK = 16  # what the producer does, and since when: `odstream.engine.work`
    WORK_ORIGIN_NS = 17
    PUBLISH_NS = 18
    BLOCKED_NS = 19
    RETIRED_CHUNKS = 20
    COUNT = 21


class Member(NamedTuple):
    """A field's place in its block."""

    field: Field
    offset_bytes: int


class Block(NamedTuple):
    """Fields that are stored, and copied, together."""

    name: str
    width_bytes: int
    members: tuple[Member, ...]


class Array(NamedTuple):
    """A named array in the memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """Names, shapes and offsets of all arrays of a cache."""

    slots: int
    """C: episodes that can be read at once."""
    spare_rows: int
    """P: further rows, for episodes that are being recorded."""
    max_episode_steps: int
    """T: frames per row."""
    fields: tuple[Field, ...]
    """Everything a frame holds."""
    event_capacity: int = 0
    """Lifecycle records that the log can hold; 0 for no log."""
    language_bytes: int = 0
    """Room for the language dictionaries."""
    error_bytes: int = 64 * 1024
    """Room for the description of a failure."""

    @property
    def rows(self) -> int:
        """R."""
        return self.slots + self.spare_rows

    @property
    def guard_frames(self) -> int:
        """G."""
        return min(self.max_episode_steps, _MAX_GUARD_FRAMES)

    @property
    def row_stride(self) -> int:
        """Frames from one row's first frame to the next row's."""
        return self.max_episode_steps + self.guard_frames

    @property
    def frames(self) -> int:
        """Frames in a block, guards included."""
        return self.rows * self.row_stride + self.guard_frames

    @property
    def frame_bytes(self) -> int:
        """Payload bytes of one frame."""
        return sum(field.nbytes for field in self.fields)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The fields, gathered into blocks."""
        return tuple(_blocks_of(self.fields))

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """Every array by name. ``block:*`` hold frames, the rest is control state."""
        return dict(self._place())

    @cached_property
    def nbytes(self) -> int:
        """Size of the memory."""
        last = list(self.arrays.values())[-1]
        return _aligned(last.offset + prod(last.shape) * last.dtype.itemsize, _PAGE_BYTES)

    @property
    def word_count(self) -> int:
        """Control words: counters, slot -> row, and per row the assigned and delivered selections."""
        return Word.COUNT + self.slots + 2 * self.rows

    def _place(self) -> Iterator[tuple[str, Array]]:
        offset = LOCK_BYTES
        for name, shape, dtype in self._wanted():
            offset = _aligned(offset, _PAGE_BYTES if name.startswith("block:") else 64)
            yield name, Array(offset, shape, np.dtype(dtype))
            offset += prod(shape) * np.dtype(dtype).itemsize

    def _wanted(self) -> Iterator[tuple[str, tuple[int, ...], Any]]:
        rows, steps, modes = self.rows, self.max_episode_steps, len(SAMPLING_MODES)
        yield "words", (self.word_count,), np.int64
        yield "journal", (2, self.word_count), np.int64
        yield "episode_id", (rows,), np.int64
        yield "generation", (rows,), np.int64
        yield "length", (rows,), np.int64
        yield "valid_frames", (rows,), np.int64
        yield "anchors", (rows,), np.int64
        yield "longest", (modes, rows), np.int32
        yield "intervals", (modes, rows), np.int32
        yield "first", (modes, rows, steps), np.int32
        yield "end", (modes, rows, steps), np.int32
        yield "pivot", (rows, steps), np.int32
        yield "error", (self.error_bytes,), np.uint8
        yield "language", (max(self.language_bytes, 1),), np.uint8
        yield "events", (max(self.event_capacity, 1), 8), np.int64
        yield "event_frames", (max(self.event_capacity, 1), 2, steps), np.bool_
        for block in self.blocks:
            yield f"block:{block.name}", (self.frames, block.width_bytes), np.uint8


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _blocks_of(fields: Iterable[Field]) -> Iterator[Block]:
    small = []
    for field in fields:
        if field.key in _OWN_BLOCK_KEYS or field.nbytes >= _OWN_BLOCK_BYTES:
            yield Block(str(field.key), field.nbytes, (Member(field, 0),))
        else:
            small.append(field)
    if not small:
        return
    small.sort(key=lambda field: -field.dtype.itemsize)  # so that every one is aligned
    offsets = np.cumsum([0, *(field.nbytes for field in small)]).tolist()
    members = tuple(Member(field, offset) for field, offset in zip(small, offsets[:-1], strict=True))
    yield Block("small", _aligned(offsets[-1], small[0].dtype.itemsize), members)
