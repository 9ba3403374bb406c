"""The cache as arrays: views of the shared memory, the lock, and changes that happen as a whole or not at all.

Letters as in `layout`. Slots are what can be read; each slot points to a row. A row that no slot points to is being
recorded into, or free. Publication changes one pointer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.cache.layout import Array, CacheLayout, FieldKey, Word
from odstream.cache.lock import LockHeldError, SharedLock
from odstream.cache.memory import SharedMemory

__all__ = ["CacheStore", "Transaction"]


class CacheStore:
    """One process's view of a cache.

    Picklable while a process is spawned. A forked child may use its parent's store as it is: everything in it is
    shared memory or constant.

    State that must never be seen half changed lies in `words`. It is changed by `commit` alone, under `lock`.
    Everything else is written while nobody can reach it: the tables and frames of a row before it is published.
    """

    def __init__(self, layout: CacheLayout, memory: SharedMemory) -> None:
        self.layout = layout
        self.memory = memory
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory.buffer))
        self.lock = SharedLock(self._address)
        self._check: Callable[[], None] | None = None
        words = self.array("words")
        self.words: NDArray[np.int64] = words
        self._journal = self.array("journal")
        head, slots, rows = Word.COUNT, layout.slots, layout.rows
        self.row_of_slot: NDArray[np.int64] = words[head : head + slots]
        self.slot_at = head
        self.assigned_at = head + slots
        self.delivered_at = head + slots + rows
        self.assigned: NDArray[np.int64] = words[self.assigned_at : self.delivered_at]
        self.delivered: NDArray[np.int64] = words[self.delivered_at :]
        self.episode_id: NDArray[np.int64] = self.array("episode_id")
        self.generation: NDArray[np.int64] = self.array("generation")
        self.length: NDArray[np.int64] = self.array("length")
        self.valid_frames: NDArray[np.int64] = self.array("valid_frames")
        self.anchors: NDArray[np.int64] = self.array("anchors")
        self.longest: NDArray[np.int32] = self.array("longest")
        self.intervals: NDArray[np.int32] = self.array("intervals")
        self.first: NDArray[np.int32] = self.array("first")
        self.end: NDArray[np.int32] = self.array("end")
        self.pivot: NDArray[np.int32] = self.array("pivot")

    @classmethod
    def create(cls, layout: CacheLayout) -> CacheStore:
        """Allocate a cache in which every slot is empty and every frame is padding.

        Raises:
            SharedMemoryError: If it does not fit into the available memory.
        """
        store = cls(layout, SharedMemory.create(layout.nbytes))
        store.lock.initialise()
        store.row_of_slot[:] = -1
        store.episode_id[:] = -1
        for field, frames in store.fields():
            if field.padding:
                frames[...] = field.padding
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheStore, (self.layout, self.memory)

    def array(self, name: str) -> NDArray[Any]:
        """Return the array of this name in `CacheLayout.arrays`."""
        place: Array = self.layout.arrays[name]
        return np.ndarray(place.shape, place.dtype, buffer=self.memory.buffer, offset=place.offset)

    def fields(self) -> Iterator[tuple[Any, NDArray[Any]]]:
        """Yield each field with a view ``[frames, *shape]`` of all its frames, guards included."""
        for block in self.layout.blocks:
            frames = self.array(f"block:{block.name}")
            for field, offset in block.members:
                values = frames[:, offset : offset + field.nbytes].view(field.dtype)
                yield field, values.reshape(len(frames), *field.shape)

    def rows_of_fields(self) -> Mapping[FieldKey, NDArray[Any]]:
        """Return a view ``[R, T, *shape]`` of each field: the frames of all rows, without guards."""
        layout = self.layout
        rows: dict[FieldKey, NDArray[Any]] = {}
        for field, frames in self.fields():
            body = frames[layout.guard_frames :]
            rows[field.key] = body.reshape(layout.rows, layout.row_stride, *field.shape)[:, : layout.max_episode_steps]
        return rows

    def first_frame(self, row: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the position of the rows' first frames in a block."""
        return row * self.layout.row_stride + self.layout.guard_frames

    def stored_frames(self, row: NDArray[np.integer]) -> int:
        """Return how many frames a row holds, episode and padding behind it, before the next guard begins."""
        return self.layout.max_episode_steps

    def transaction(self, *, check: Callable[[], None] | None = None, patient: bool = False) -> Transaction:
        """Hold the lock: ``with store.transaction():``. What its last holder left unfinished is finished first.

        Args:
            check: Called now and then while this call waits for the lock; may raise to give up.
            patient: Do not let the check of `when_waiting` end the wait. For reports that must arrive.

        Raises:
            LockTimeoutError: If the lock was not free in time although its holder lives.
        """
        return Transaction(self, None if patient else check or self._check)

    def commit(self, at: NDArray[np.int64] | list[int], values: NDArray[np.int64] | list[int]) -> None:
        """Set ``words[at] = values`` as a whole, even if this process dies half way.

        The values are written down first; whoever takes the lock next finishes what was written down. Call it under
        the lock, once per transaction.
        """
        count = len(at)
        self._journal[0, :count] = at
        self._journal[1, :count] = values
        self.words[Word.JOURNAL_LENGTH] = count
        self._finish()

    def _finish(self) -> None:
        count = int(self.words[Word.JOURNAL_LENGTH])
        if count:
            self.words[self._journal[0, :count]] = self._journal[1, :count]
            self.words[Word.JOURNAL_LENGTH] = 0

    def when_waiting(self, check: Callable[[], None] | None) -> None:
        """Let ``check`` end every wait of this process for the lock. For the producer's process."""
        self._check = check


class Transaction:
    """What `CacheStore.transaction` returns.

    Its exit is the lock's own, kept in a slot: an interrupt between the steps of a Python function, or of a
    generator, would keep the lock.
    """

    __slots__ = ("__exit__", "_check", "_store")
    __exit__: Callable[..., None]

    def __init__(self, store: CacheStore, check: Callable[[], None] | None) -> None:
        self._store = store
        self._check = check
        self.__exit__ = store.lock.leave

    def __enter__(self) -> None:
        store = self._store
        try:
            store.lock.acquire(self._check)
            store._finish()
        except LockHeldError:
            raise
        except BaseException:
            store.lock.let_go()
            raise
