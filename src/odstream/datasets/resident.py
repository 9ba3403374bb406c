"""Episodes that stay in memory: frames of rows of different lengths, stored and sampled as the cache's are.

Letters: ``R`` episodes, ``N`` frames of all of them, ``G`` guard frames, ``W`` bytes per frame of a block.

The blocks hold ``G + length[0] + G + length[1] + G + ...`` frames. A row is as long as its episode, so a single long
episode costs nobody else anything; guards take at most a quarter of what the episodes take, plus a frame per episode.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.cache.layout import ANNOTATIONS, PROVENANCE, Block, CacheLayout, Field, FieldKey, Word
from odstream.cache.memory import SharedMemory
from odstream.cache.windows import SAMPLING_MODES, Intervals, runs_of
from odstream.errors import SharedMemoryError

__all__ = ["FRAME_IDS", "ResidentLayout", "ResidentStore", "resident_fields"]

Ints = NDArray[np.int64]

FRAME_IDS = Field(("frame_ids",), (3,), np.dtype(np.int64), -1)
"""Run, episode and frame."""

_PAGE_BYTES = 4096
_MAX_GUARD_FRAMES = 64
_GUARD_SHARE = 4
_KNOWN = {field.key: field for field in (*ANNOTATIONS, *PROVENANCE, FRAME_IDS)}
_REQUIRED = (("valid",), ("frame_ids",))
_DERIVED = ("loss_mask",)


def resident_fields(recorded: Mapping[FieldKey, tuple[tuple[int, ...], np.dtype[Any]]]) -> tuple[Field, ...]:
    """Return the fields to store for recorded ones: what was recorded, ``valid`` and ``frame_ids``.

    Args:
        recorded: Shape per frame and dtype of every recorded field.

    Raises:
        ValueError: If a field is empty, has a name that is filled by the source, or is an annotation of another shape
            or dtype than the engine's.
    """
    fields = []
    for key, (shape, dtype) in recorded.items():
        name, known = ".".join(key), _KNOWN.get(key)
        if key[0] in _DERIVED:
            raise ValueError(f"{name} must not be given: it is made anew for every context")
        if any(extent < 1 for extent in shape):
            raise ValueError(f"{name} must not be empty, got the shape {shape} per frame")
        if known is not None and (shape, dtype) != (known.shape, known.dtype):
            raise ValueError(
                f"{name} must be {known.dtype} of the shape {known.shape} per frame, got {dtype} of {shape}"
            )
        fields.append(known or Field(key, shape, dtype))
    fields.extend(_KNOWN[key] for key in _REQUIRED if key not in recorded)
    return tuple(fields)


@dataclass(frozen=True, kw_only=True)
class ResidentLayout:
    """Where everything lies. Computed, without allocating anything, from the lengths and the fields."""

    lengths: tuple[int, ...]
    """Frames per episode, each at least 1."""
    fields: tuple[Field, ...]
    """Everything a frame holds, as `resident_fields` returned it."""

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The fields, gathered into blocks as the cache does it."""
        return CacheLayout(slots=1, spare_rows=0, max_episode_steps=1, fields=self.fields).blocks

    @cached_property
    def guard_frames(self) -> int:
        """G: as many as the cache has, but at most a quarter of the mean length, so that short episodes stay small."""
        return max(1, min(_MAX_GUARD_FRAMES, sum(self.lengths) // (_GUARD_SHARE * len(self.lengths))))

    @cached_property
    def frames(self) -> int:
        """Frames in a block, guards included."""
        return sum(self.lengths) + (len(self.lengths) + 1) * self.guard_frames

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """Where each block begins, in bytes."""
        offsets, offset = {}, 0
        for block in self.blocks:
            offsets[block.name] = offset
            offset += -(-self.frames * block.width_bytes // _PAGE_BYTES) * _PAGE_BYTES
        return offsets

    @cached_property
    def block_bytes(self) -> int:
        """Size of all blocks."""
        last = self.blocks[-1]
        return self.offsets[last.name] + -(-self.frames * last.width_bytes // _PAGE_BYTES) * _PAGE_BYTES

    @property
    def nbytes(self) -> int:
        """What stays in memory: the blocks, and the index of the episodes. A gap adds 16 bytes when it is found."""
        return self.block_bytes + len(self.lengths) * _INDEX_BYTES


class ResidentStore:
    """The frames of all episodes in shared memory, and the tables that sampling needs (a `WindowStore`).

    Write the episodes through `frames` and `span`, then call `seal`, once. Forked and spawned copies share the frames;
    counters are each process's own.

    Raises:
        SharedMemoryError: If the frames do not fit into the available memory.
    """

    def __init__(self, layout: ResidentLayout) -> None:
        self.layout = layout
        try:
            self.memory = SharedMemory.create(layout.block_bytes)
        except SharedMemoryError as error:
            raise SharedMemoryError(
                f"{len(layout.lengths)} episodes of {sum(layout.lengths)} frames do not fit into memory: {error}"
            ) from error
        rows, modes = len(layout.lengths), len(SAMPLING_MODES)
        self.length: Ints = np.array(layout.lengths, np.int64)
        self.begin: Ints = layout.guard_frames + np.r_[0, np.cumsum(self.length + layout.guard_frames)[:-1]]
        self.row_of_slot: Ints = np.arange(rows)
        self.identity: Ints = np.full((rows, 2), -1, np.int64)
        self.generation: Ints = np.full(rows, -1, np.int64)
        self.anchors: Ints = np.zeros(rows, np.int64)
        self.valid_frames: Ints = np.zeros(rows, np.int64)
        self.longest = np.zeros((modes, rows), np.int32)
        self.intervals = np.zeros((modes, rows), np.int32)
        empty = _Ragged(np.empty(0, np.int32), np.zeros(rows + 1, np.int64))
        self.first: list[_Ragged] = [empty] * modes
        self.end: list[_Ragged] = [empty] * modes
        self.pivot = empty
        self._words(np.zeros(Word.COUNT + 2 * rows, np.int64))
        self._new_lock()

    def _words(self, words: Ints) -> None:
        rows = len(self.length)
        self.words = words
        self.delivered_at = Word.COUNT + rows
        self.assigned: Ints = words[Word.COUNT : self.delivered_at]
        self.delivered: Ints = words[self.delivered_at :]

    def _new_lock(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "assigned", "delivered")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._words(self.words)
        self._new_lock()

    # What sampling needs

    def array(self, name: str) -> NDArray[np.uint8]:
        """Return the block ``block:NAME``, ``[frames, W]`` bytes."""
        width = {block.name: block.width_bytes for block in self.layout.blocks}[name.removeprefix("block:")]
        offset = self.layout.offsets[name.removeprefix("block:")]
        return np.ndarray((self.layout.frames, width), np.uint8, buffer=self.memory.buffer, offset=offset)

    def first_frame(self, row: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the position of the rows' first frames in a block."""
        first: Ints = self.begin[row]
        return first

    def stored_frames(self, row: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return how many frames a row holds: those of its episode."""
        stored: Ints = self.length[row]
        return stored

    @contextmanager
    def transaction(self, *, check: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the lock, which keeps the threads of this process apart; a wait for it is too short to ``check``."""
        if self._pid != os.getpid():  # a forked child has the lock as some thread of its parent left it
            self._new_lock()
        with self._lock:
            yield

    def commit(self, at: Ints | list[int], values: Ints | list[int]) -> None:
        """Set ``words[at] = values``."""
        self.words[at] = values

    # Filling

    def frames(self) -> dict[FieldKey, NDArray[Any]]:
        """Return a writable view ``[frames, *shape]`` of each field, guards included."""
        views = {}
        for block in self.layout.blocks:
            content = self.array(f"block:{block.name}")
            for field, offset in block.members:
                values = content[:, offset : offset + field.nbytes].view(field.dtype)
                views[field.key] = values.reshape(len(content), *field.shape)
        return {field.key: views[field.key] for field in self.layout.fields}

    def span(self, row: int) -> slice:
        """Return where the frames of an episode lie in the views."""
        begin = int(self.begin[row])
        return slice(begin, begin + int(self.length[row]))

    def positions(self) -> tuple[Ints, Ints]:
        """Return ``[N]`` positions of all frames in a block, and ``[N]`` the row of each."""
        row = np.repeat(self.row_of_slot, self.length)
        first = np.cumsum(self.length) - self.length
        return np.arange(len(row)) + (self.begin - first)[row], row

    def seal(self) -> None:
        """Write padding wherever there is no real frame, and compute the tables of windows."""
        views = self.frames()
        at, row = self.positions()
        valid = views["valid",]
        nothing = np.ones(self.layout.frames, np.bool_)
        nothing[at] = ~valid[at]
        places = np.flatnonzero(nothing)
        for field in self.layout.fields:
            views[field.key][places] = field.padding
        here = {name: views[name,][at] for name in _TABLE_FIELDS if (name,) in views}
        continuity = here.get("continuity_id", np.zeros(len(at), np.int64))
        usable = here["valid"] & (continuity >= 0)
        self.valid_frames = np.bincount(row[here["valid"]], minlength=len(self.length))
        self.anchors = np.bincount(row[usable], minlength=len(self.length))
        self._tabulate(SAMPLING_MODES.index("episode"), runs_of(usable, continuity, row), row)
        if "segment_id" in here and "segment_accepted" in here:
            runs = runs_of(usable & here["segment_accepted"], continuity, here["segment_id"], row)
            self._tabulate(SAMPLING_MODES.index("segment"), runs, row)

    def _tabulate(self, mode: int, runs: Intervals, row: Ints) -> None:
        """Enter the runs of all episodes, which are numbered through, as the intervals of ``mode``."""
        owner = row[runs.first]
        count = np.bincount(owner, minlength=len(self.length))
        begin = np.r_[0, np.cumsum(count)]
        origin = (np.cumsum(self.length) - self.length)[owner]
        self.first[mode] = _Ragged((runs.first - origin).astype(np.int32), begin)
        self.end[mode] = _Ragged((runs.end - origin).astype(np.int32), begin)
        self.intervals[mode] = count
        np.maximum.at(self.longest[mode], owner, (runs.end - runs.first).astype(np.int32))


_TABLE_FIELDS = ("valid", "continuity_id", "segment_id", "segment_accepted")
_INDEX_BYTES = 8 * 10 + 4 * 2 * len(SAMPLING_MODES) + 4 * 2 * 2
"""Per episode: ten 8-byte columns (with those of the ledger), two per mode, and one interval in each of two modes."""


class _Ragged:
    """Rows of numbers of different lengths, one behind the other (an `IntervalTable`)."""

    def __init__(self, values: NDArray[np.int32], begin: Ints) -> None:
        self._values = np.r_[values, np.int32(0)]
        self._begin = begin

    def __getitem__(self, key: tuple[NDArray[np.integer], slice], /) -> NDArray[np.int32]:
        rows, columns = key
        at = self._begin[rows][:, None] + np.arange(columns.stop)
        at[at >= self._begin[rows + 1][:, None]] = len(self._values) - 1
        values: NDArray[np.int32] = self._values[at]
        return values
