"""A cache in this process: rows of known content, published without a producer, and what a sample of them must hold.

`Cache` publishes `Row` after `Row` through the real `Publisher` and remembers, independently of the cache, every frame
of every field. `Window` then says in plain loops which frames a window may hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from odstream.cache.events import EventLog
from odstream.cache.layout import ANNOTATIONS, PROVENANCE, CacheLayout, Field, FieldKey, Word
from odstream.cache.publish import FrameSegment, Publisher, RowRecord
from odstream.cache.store import CacheStore
from odstream.engine.sampling import Sampler, WindowRequest

RUN_ID = 4_611_686_018_427_387_903
"""Too large for a float64 to hold exactly."""
FIELDS: tuple[Field, ...] = (
    Field(("obs",), (3,), np.dtype(np.float32)),
    Field(("actions",), (2,), np.dtype(np.float32)),
    Field(("rewards",), (), np.dtype(np.float32)),
    Field(("extra", "image"), (2, 2, 3), np.dtype(np.uint8)),
    Field(("extra", "deep", "angle"), (), np.dtype(np.float64)),
)
LANGUAGE_AND_PROVENANCE = {"task_index", "subtask_index", *(field.key[0] for field in PROVENANCE)}


@dataclass(frozen=True)
class Row:
    """An episode to publish."""

    length: int
    segments: tuple[int, ...] = ()
    """First frames of all segments but the first."""
    accepted: tuple[bool, ...] = ()
    """Per segment; empty for all."""
    gaps: tuple[int, ...] = ()
    continuity: tuple[int, ...] = ()
    """Per frame; empty for no jump."""
    task: int = -1
    terminated: bool = True
    truncated: bool = False
    mark: int | None = None
    """What the recorded numbers are made of; None for a number that no other row of the cache has."""

    def valid(self, frame: int) -> bool:
        return frame not in self.gaps

    def continuity_of(self, frame: int) -> int:
        return self.continuity[frame] if self.continuity else 0

    def segment_of(self, frame: int) -> int:
        return sum(start <= frame for start in self.segments)

    def accepted_at(self, frame: int) -> bool:
        return not self.accepted or self.accepted[self.segment_of(frame)]

    def ranges(self) -> list[tuple[int, int]]:
        return list(pairwise((0, *self.segments, self.length)))

    def record(self, place: int) -> RowRecord:
        """Describe the row to a `Publisher`."""
        return RowRecord(
            row=place,
            length=self.length,
            segments=tuple(
                FrameSegment(
                    start=start,
                    end=end,
                    subtask_index=100 + index,
                    attempt=index % 3,
                    accepted=not self.accepted or self.accepted[index],
                )
                for index, (start, end) in enumerate(self.ranges())
            ),
            terminated=self.terminated,
            truncated=self.truncated,
            task_index=self.task,
            valid=np.array([self.valid(frame) for frame in range(self.length)]) if self.gaps else None,
            continuity_id=np.array(self.continuity, np.int64) if self.continuity else None,
        )


@dataclass(frozen=True)
class Published:
    """A row in the cache, and everything its frames hold."""

    row: Row
    episode_id: int
    generation: int
    slot: int
    frames: dict[FieldKey, NDArray[Any]] = field(repr=False)
    """Per field ``[length, ...]``, canonical padding in gaps."""


class Clock:
    """Counts on by one at every look."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Cache:
    """A `CacheStore` in this process, its `Publisher`, and what each slot holds."""

    def __init__(
        self,
        *,
        slots: int = 1,
        spare_rows: int = 1,
        max_episode_steps: int = 16,
        fields: Sequence[Field] = FIELDS,
        provenance: bool = True,
        budget: int = 0,
        event_capacity: int = 0,
        language_bytes: int = 0,
    ) -> None:
        self.fields = tuple(fields)
        self.layout = CacheLayout(
            slots=slots,
            spare_rows=spare_rows,
            max_episode_steps=max_episode_steps,
            fields=(*self.fields, *ANNOTATIONS, *(PROVENANCE if provenance else ())),
            event_capacity=event_capacity,
            language_bytes=language_bytes,
        )
        self.provenance, self.budget = provenance, budget
        self.store = CacheStore.create(self.layout)
        self.unix_ns, self.monotonic_ns = Clock(1_700_000_000_000_000_000), Clock(5_000_000_000_000)
        self.publisher = Publisher(
            self.store, run_id=RUN_ID, budget=budget, unix_ns=self.unix_ns, monotonic_ns=self.monotonic_ns
        )
        self.events = EventLog(self.store)
        self.rows = self.store.rows_of_fields()
        self.slots: dict[int, Published] = {}

    def fill(self, *rows: Row, generation: int = 1) -> list[Published]:
        """Publish rows into slots 0, 1, ..."""
        return [self.publish(row, slot=slot, generation=generation) for slot, row in enumerate(rows)]

    def publish(
        self,
        row: Row,
        *,
        slot: int = 0,
        generation: int = 1,
        values: dict[FieldKey, NDArray[Any]] | None = None,
    ) -> Published:
        """Record ``row`` (its numbers are ``values``, where given), publish it, and remember what must be there."""
        place = self.publisher.claim()
        number = self.published if row.mark is None else row.mark
        recorded = {item.key: _numbers(item, number, row.length) for item in self.fields} | (values or {})
        for key, frames in recorded.items():
            self.rows[key][place, : row.length] = frames
        episode_id = self.publisher.publish(row.record(place), slot=slot, generation=generation)
        frames = recorded | self._annotations(row, episode_id, generation)
        for item in self.layout.fields:
            frames[item.key] = frames[item.key].copy()
            frames[item.key][list(row.gaps)] = item.padding
        self.slots[slot] = Published(row, episode_id, generation, slot, frames)
        return self.slots[slot]

    @property
    def published(self) -> int:
        """Episodes published so far."""
        return int(self.store.words[Word.SUCCESSFUL_EPISODES])

    def fail(self, written: int) -> None:
        """Record ``written`` frames of an attempt that is not accepted."""
        place = self.publisher.claim()
        for item in self.fields:
            self.rows[item.key][place, :written] = 99
        self.publisher.recycle(place)

    def sampler(self, check: Callable[[], None] = lambda: None, *, refill_after: int | None = None) -> Sampler:
        """Return a sampler as a consumer would have it."""
        return Sampler(self.store, budgeted=self.budget > 0, refill_after=refill_after, check=check)

    def delivered(self) -> dict[int, int]:
        """Return the deliveries of each retained episode, by its identity, as the ledger has them."""
        rows = self.store.row_of_slot[self.store.row_of_slot >= 0]
        return dict(zip(self.store.episode_id[rows].tolist(), self.store.delivered[rows].tolist(), strict=True))

    def window(self, published: Published, frames: Iterable[int]) -> dict[FieldKey, NDArray[Any]]:
        """Return what every field of a window must hold; a frame that is negative stands for padding."""
        place = np.array(list(frames))
        expected = {}
        for item in self.layout.fields:
            stored = published.frames[item.key]
            values = np.full((len(place), *item.shape), item.padding, item.dtype)
            values[place >= 0] = stored[place[place >= 0]]
            expected[item.key] = values
        return expected

    def _annotations(self, row: Row, episode_id: int, generation: int) -> dict[FieldKey, NDArray[Any]]:
        """Say in plain words, frame by frame, what the annotations must be."""
        ranges = row.ranges()
        lines: list[dict[str, Any]] = []
        for frame in range(row.length):
            segment = row.segment_of(frame)
            lines.append(
                {
                    "valid": True,
                    "episode_step": frame,
                    "segment_id": segment,
                    "segment_step": frame - ranges[segment][0],
                    "segment_start": frame == ranges[segment][0],
                    "segment_end": frame == ranges[segment][1] - 1,
                    "segment_accepted": row.accepted_at(frame),
                    "segment_attempt_id": segment % 3,
                    "continuity_id": row.continuity_of(frame),
                    "terminated": row.terminated and frame == row.length - 1,
                    "truncated": row.truncated and frame == row.length - 1,
                    "task_index": row.task,
                    "subtask_index": 100 + segment,
                    "ods_run_id": RUN_ID,
                    "ods_episode_id": episode_id,
                    "ods_generation": generation,
                    "ods_frame_index": frame,
                    "ods_accepted_at_ns": self.unix_ns.now,
                    "ods_published_at_monotonic_ns": self.monotonic_ns.now,
                }
            )
        names = (*ANNOTATIONS, *(PROVENANCE if self.provenance else ()))
        return {item.key: np.array([line[item.key[0]] for line in lines], item.dtype) for item in names}


def _numbers(item: Field, number: int, length: int) -> NDArray[Any]:
    """Numbers that no padding has, different in every frame and in every element."""
    size = int(np.prod(item.shape, dtype=int))
    values = 1 + number * 31 + np.arange(length * size).reshape(length, *item.shape)
    return (values % 251 + 1).astype(item.dtype) if item.dtype.kind in "u" else values.astype(item.dtype)


# ------------------------------------------------------------- what may be drawn, in plain loops


def usable(row: Row, frame: int, mode: str) -> bool:
    """Whether a window may hold this frame."""
    if not 0 <= frame < row.length or not row.valid(frame) or row.continuity_of(frame) < 0:
        return False
    return mode == "episode" or row.accepted_at(frame)


def follows(row: Row, frame: int, mode: str) -> bool:
    """Whether a window may hold this frame together with the one before."""
    if not usable(row, frame, mode) or not usable(row, frame - 1, mode):
        return False
    if row.continuity_of(frame) != row.continuity_of(frame - 1):
        return False
    return mode != "segment" or row.segment_of(frame) == row.segment_of(frame - 1)


def starts_of(row: Row, length: int, mode: str) -> list[int]:
    """All starts of windows of ``length`` frames."""
    found = []
    for start in range(row.length - length + 1):
        frames = range(start, start + length)
        if not all(usable(row, frame, mode) for frame in frames):
            continue
        if not all(follows(row, frame, mode) for frame in frames[1:]):
            continue
        crosses = any(row.segment_of(frame) != row.segment_of(frame - 1) for frame in frames[1:])
        if mode != "boundary" or crosses:
            found.append(start)
    return found


def context_of(row: Row, anchor: int, history: int, horizon: int, mode: str) -> list[int]:
    """The frames of a context, -1 for padding."""
    first = last = anchor
    while first > anchor - history + 1 and follows(row, first, mode):
        first -= 1
    while last < anchor + horizon - 1 and follows(row, last + 1, mode):
        last += 1
    return [t if first <= t <= last else -1 for t in range(anchor - history + 1, anchor + horizon)]


# ------------------------------------------------------------- dying half way


class Died(BaseException):
    """The process ends here. What it had written stays, what comes after never happens."""


class _Mortal:
    """An array that takes element after element, and after some of them no more."""

    def __init__(self, array: NDArray[np.int64], left: list[int]) -> None:
        self._array, self._left = array, left

    def __getitem__(self, key: Any) -> Any:
        return self._array[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        places = np.arange(self._array.size).reshape(self._array.shape)[key]
        for place, number in zip(np.ravel(places), np.ravel(np.broadcast_to(value, np.shape(places))), strict=True):
            if not self._left[0]:
                raise Died
            self._left[0] -= 1
            self._array.flat[place] = number


@contextmanager
def dying(store: CacheStore, after_writes: int) -> Iterator[list[int]]:
    """Let everything in the block that changes the control state die after so many numbers have been written.

    Yields the writes that are left, as a list of one. The lock is given back at the end, as the kernel does it.
    """
    words, journal, left = store.words, store._journal, [after_writes]
    store.words, store._journal = _Mortal(words, left), _Mortal(journal, left)  # type: ignore[assignment]
    try:
        yield left
    except Died:
        pass
    finally:
        store.words, store._journal = words, journal


# ------------------------------------------------------------- drawing everything there is


def chunk(batch_size: int, length: int, mode: Any = "episode", generations: Any = None) -> WindowRequest:
    """A request for chunks."""
    return WindowRequest(batch_size=batch_size, mode=mode, anchor_frames=length, length=length, generations=generations)


def context(
    batch_size: int, history: int, horizon: int, mode: Any = "episode", generations: Any = None
) -> WindowRequest:
    """A request for contexts."""
    return WindowRequest(
        batch_size=batch_size,
        mode=mode,
        anchor_frames=1,
        before=history - 1,
        length=history + horizon - 1,
        padded=True,
        generations=generations,
    )


def seeded(seed: int) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


class _Scripted:
    def __init__(self, *draws: NDArray[np.float64]) -> None:
        self._draws = list(draws)

    def random(self, count: int) -> NDArray[np.float64]:
        draw = self._draws.pop(0)
        assert len(draw) == count
        return draw


def draw_all(sampler: Sampler, request: WindowRequest, counts: Sequence[int]) -> TensorDict:
    """Draw every window of every row once, row by row: all in one batch, and one by one with the same result.

    Args:
        sampler: Without budgets.
        request: Its batch size does not matter.
        counts: How many windows each eligible row has.
    """
    rows = np.array([(row + 0.5) / len(counts) for row, count in enumerate(counts) for _ in range(count)])
    starts = np.array([(start + 0.5) / count for count in counts for start in range(count)])
    sampler._pid = os.getpid()
    sampler._rng = _Scripted(rows, starts)  # type: ignore[assignment]
    together = sampler.draw(replace(request, batch_size=len(rows)), None)
    for line in range(len(rows)):
        sampler._rng = _Scripted(rows[line : line + 1], starts[line : line + 1])  # type: ignore[assignment]
        alone = sampler.draw(replace(request, batch_size=1), None)
        for key in ("obs", "actions", "valid", "task_index"):  # one of each block, and of each kind of padding
            assert torch.equal(alone[key][0], together[key][line]), (key, line)
    return together
