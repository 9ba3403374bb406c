"""What sampling needs of a store of frames. `CacheStore` is one; resident data is another.

Letters: ``R`` rows, ``B`` drawn rows, ``N`` intervals of a row. Frames lie in blocks as `layout` describes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from odstream.cache.layout import Block, Field

__all__ = ["FrameLayout", "FrameStore", "IntervalTable", "IntervalTables", "WindowStore"]

Ints = NDArray[np.integer]


class FrameLayout(Protocol):
    """Which fields there are, and in which blocks."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Everything a frame holds."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The fields, gathered into blocks."""

    @property
    def frames(self) -> int:
        """Frames in a block, guards included."""

    @property
    def guard_frames(self) -> int:
        """Frames of padding in front of every row and behind it."""


class FrameStore(Protocol):
    """Blocks of frames."""

    @property
    def layout(self) -> FrameLayout:
        """Where everything lies."""

    def array(self, name: str) -> NDArray[Any]:
        """Return the block ``block:NAME``, ``[frames, width]`` bytes."""


class IntervalTable(Protocol):
    """One column of the intervals of all rows."""

    def __getitem__(self, key: tuple[Ints, slice], /) -> NDArray[np.int32]:
        """Return ``[B, columns]`` for ``[rows, :columns]``; 0 where a row has fewer intervals."""


class IntervalTables(Protocol):
    """One column of the intervals, for every mode."""

    def __getitem__(self, mode: int, /) -> IntervalTable:
        """Return the table of a mode."""


class WindowStore(FrameStore, Protocol):
    """Blocks of frames, and the tables of the windows that may be drawn from them."""

    row_of_slot: NDArray[np.int64]
    """``[C]`` rows that can be read, in the order in which a draw numbers them."""
    generation: NDArray[np.int64]
    """``[R]``."""
    length: NDArray[np.int64]
    """``[R]`` frames of the episode."""
    longest: NDArray[np.int32]
    """``[modes, R]`` longest window; 0 for none."""
    intervals: NDArray[np.int32]
    """``[modes, R]`` intervals that a row has."""
    words: NDArray[np.int64]
    """Counters, and the ledger."""
    assigned: NDArray[np.int64]
    """``[R]`` view of `words`."""
    delivered: NDArray[np.int64]
    """``[R]`` view of `words`, from `delivered_at` on."""
    delivered_at: int

    @property
    def first(self) -> IntervalTables:
        """Per mode the earliest starts."""

    @property
    def end(self) -> IntervalTables:
        """Per mode the ends that no window reaches over."""

    @property
    def pivot(self) -> IntervalTable:
        """The boundaries; only of stores that are sampled in mode ``"boundary"``."""

    def first_frame(self, row: Ints) -> Ints:
        """Return the position of the rows' first frames in a block."""

    def stored_frames(self, row: Ints) -> Ints | int:
        """Return how many frames the rows have in a block: their episode, and padding up to the guard behind."""

    def transaction(self, *, check: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Hold the lock; ``check`` may end the wait for it."""

    def commit(self, at: NDArray[np.int64] | list[int], values: NDArray[np.int64] | list[int]) -> None:
        """Set ``words[at] = values`` as a whole, under the lock."""
