"""Draws windows from the cache: choose, copy and account for a whole batch under one lock.

Letters: ``B`` batch, ``c`` chunk length, ``H`` history, ``F`` horizon, ``L = H + F - 1``, ``C`` slots.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from odstream.cache.gather import PADDING_FRAME, FrameGather
from odstream.cache.layout import Word
from odstream.cache.ledger import draw_within_budget
from odstream.cache.readable import WindowStore
from odstream.cache.windows import SAMPLING_MODES, Intervals, SamplingMode, context_bounds_mask, draw_rows, draw_starts
from odstream.errors import DataBudgetExhaustedError, DataUnavailableError

__all__ = ["Sampler", "WindowRequest", "check_generator"]

Ints = NDArray[np.integer]
Uniforms = Callable[[int], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowRequest:
    """A batch to draw. Windows are chosen by their first ``anchor_frames`` frames, which are always real."""

    batch_size: int
    mode: SamplingMode
    anchor_frames: int
    """Frames that must lie within one run: the whole chunk, or 1 for the current frame of a context."""
    before: int = 0
    """Frames of history in front of the anchor, real or padding."""
    length: int
    """Frames per window in all."""
    padded: bool = False
    """Whether windows may reach over the ends of a run, and get a ``loss_mask``: contexts do."""
    generations: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Draw:
    rows: Ints
    start: Ints
    low: Ints
    high: Ints
    counts: Ints
    """Selections per eligible row."""
    eligible: Ints


class Sampler:
    """One process's sampling. Threads may share it; a forked child may use its parent's.

    Args:
        store: The cache.
        budgeted: Whether selections are debited.
        refill_after: Selections after which a refill is requested by itself; None for never.
        check: Raises if the engine does not serve; called while a call waits for the lock, and before a shortage is
            reported, without the lock.
    """

    def __init__(
        self, store: WindowStore, *, budgeted: bool, refill_after: int | None, check: Callable[[], None]
    ) -> None:
        self._store = store
        self._gather = FrameGather(store)
        self._budgeted = budgeted
        self._refill_after = refill_after
        self._check = check
        self._pid = -1
        self._rng = np.random.default_rng(0)

    def draw(self, request: WindowRequest, generator: torch.Generator | None) -> TensorDict:
        """Return an owned batch ``[B, length]``; a padded request also gets ``loss_mask``.

        The lock is held while rows are chosen, frames copied and selections debited. Nothing is debited when an error
        is raised.

        Raises:
            DataUnavailableError: If no row allows such a window.
            DataBudgetExhaustedError: If the eligible rows cannot fund the whole batch.
        """
        _use_one_thread_after_fork()
        try:
            with self._store.transaction(check=self._check):
                draw = self._choose(request, self._uniforms(generator))
                copies = self._copy(request, draw)
                self._account(request, draw)
        except (DataUnavailableError, DataBudgetExhaustedError):
            self._check()  # a producer that failed explains a shortage
            raise
        if not request.padded:
            return self._gather.batch(copies)
        return self._gather.batch(copies, loss_mask=_loss_mask(request, draw))

    def _choose(self, request: WindowRequest, uniforms: Uniforms) -> _Draw:
        store, mode = self._store, SAMPLING_MODES.index(request.mode)
        eligible = self._eligible(request, mode)
        if self._budgeted:
            remaining = store.assigned[eligible] - store.delivered[eligible]
            if int(remaining.sum()) < request.batch_size:
                raise DataBudgetExhaustedError(
                    f"{len(eligible)} eligible episodes have {int(remaining.sum())} selections left, the batch needs "
                    f"{request.batch_size}; wait for a refill, or stop"
                )
            picks, counts = draw_within_budget(remaining, request.batch_size, uniforms)
            rows = eligible[picks]
        else:
            rows, counts = draw_rows(eligible, uniforms(request.batch_size)), np.empty(0, np.int64)
        columns = int(store.intervals[mode][rows].max())
        tables = Intervals(
            store.first[mode][rows, :columns],
            store.end[mode][rows, :columns],
            store.pivot[rows, :columns] if request.mode == "boundary" else None,
        )
        start, interval = draw_starts(tables, request.anchor_frames, uniforms(request.batch_size))
        if not request.padded:
            return _Draw(rows, start, start, start + request.length, counts, eligible)
        line = np.arange(len(rows))
        low, high = tables.first[line, interval], tables.end[line, interval]
        return _Draw(rows, start - request.before, low, high, counts, eligible)

    def _eligible(self, request: WindowRequest, mode: int) -> Ints:
        store = self._store
        rows = store.row_of_slot
        allowed = store.longest[mode][rows] >= request.anchor_frames
        if request.generations is not None:
            allowed &= np.isin(store.generation[rows], request.generations)
        if allowed.all():
            return rows
        eligible: Ints = rows[allowed]
        if not len(eligible):
            raise DataUnavailableError(self._shortage(request, mode))
        return eligible

    def _shortage(self, request: WindowRequest, mode: int) -> str:
        store = self._store
        rows = store.row_of_slot
        longest = int(store.longest[mode, rows].max())
        text = (
            f"none of {len(rows)} episodes allows a window of {request.anchor_frames} frames in mode {request.mode!r}; "
            f"the longest possible is {longest}"
        )
        if request.generations is not None:
            there = np.unique(store.generation[rows]).tolist()
            text += f"; asked for generations {request.generations}, readable are {there}"
        return text

    def _copy(self, request: WindowRequest, draw: _Draw) -> list[torch.Tensor]:
        """Copy the drawn windows: in one piece where stored frames and stored padding are what they must hold."""
        first = self._store.first_frame(draw.rows) + draw.start
        if not request.padded or self._padding_is_stored(request, draw):
            return self._gather.copy_windows(first, request.length)
        real = context_bounds_mask(draw.start, draw.low, draw.high, request.length)
        return self._gather.copy_frames(np.where(real, first[:, None] + np.arange(request.length), PADDING_FRAME))

    def _padding_is_stored(self, request: WindowRequest, draw: _Draw) -> bool:
        """Return whether no window reaches over an inner end of a run, or beyond the guard frames of its row."""
        guard = self._store.layout.guard_frames
        start, end = draw.start, draw.start + request.length
        inner = ((start < draw.low) & (draw.low > 0)) | (
            (end > draw.high) & (draw.high < self._store.length[draw.rows])
        )
        beyond = (start < -guard) | (end > self._store.stored_frames(draw.rows) + guard)
        return not (inner | beyond).any()

    def _account(self, request: WindowRequest, draw: _Draw) -> None:
        words = self._store.words
        at = [Word.SAMPLED_CHUNKS]
        values = [int(words[Word.SAMPLED_CHUNKS]) + request.batch_size]
        if self._refill_after is not None:
            since = int(words[Word.SAMPLED_SINCE_REFILL]) + request.batch_size
            requested, completed = int(words[Word.REQUESTED_GENERATION]), int(words[Word.COMPLETED_GENERATION])
            if since >= self._refill_after and requested <= completed:
                since = 0
                at.append(Word.REQUESTED_GENERATION)
                values.append(completed + 1)
            at.append(Word.SAMPLED_SINCE_REFILL)
            values.append(since)
        if not self._budgeted:
            self._store.commit(at, values)
            return
        used = np.flatnonzero(draw.counts)
        rows = draw.eligible[used]
        self._store.commit(
            np.concatenate([np.array(at), self._store.delivered_at + rows]),
            np.concatenate([np.array(values), self._store.delivered[rows] + draw.counts[used]]),
        )

    def _uniforms(self, generator: torch.Generator | None) -> Uniforms:
        if generator is not None:
            return lambda count: torch.rand(count, dtype=torch.float64, generator=generator).numpy()
        if self._pid != os.getpid():
            self._pid, self._rng = os.getpid(), np.random.default_rng()
        return self._rng.random


def _use_one_thread_after_fork() -> None:
    """Let torch work with one thread in a forked process.

    Its pool of threads does not survive a fork: the first copy large enough to be shared between threads would wait for
    ever, here with the cache's lock in hand. Loader workers of torch do the same.
    """
    if os.getpid() != _ThreadPool.pid:
        torch.set_num_threads(1)
        _ThreadPool.pid = os.getpid()


class _ThreadPool:
    pid: ClassVar[int] = os.getpid()
    """The process whose pool torch has: this one, unless it was forked."""


def _loss_mask(request: WindowRequest, draw: _Draw) -> torch.Tensor:
    """Return ``[B, length]``: the real frames from the anchor on."""
    mask = np.arange(request.length) < (draw.high - draw.start)[:, None]
    mask[:, : request.before] = False
    return torch.from_numpy(mask)


def check_generator(generator: object) -> None:
    """Refuse anything but None or a generator on the CPU, where windows are drawn.

    Raises:
        TypeError: If it is no generator.
        ValueError: If it is on another device.
    """
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {generator!r} ({type(generator).__name__})")
    if generator.device.type != "cpu":
        raise ValueError(f"generator must be on the CPU, got one on {generator.device}")
