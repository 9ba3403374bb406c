"""Copies windows of frames out of the cache into owned tensors. The only module here that needs torch.

Letters: ``B`` batch, ``L`` frames per window, ``W`` bytes per frame of a block.

A block is seen as an overlapping view of all its windows, ``[windows, L * W]`` with strides ``(W, 1)``; selecting from
it along the first axis copies each window in one piece, at the speed of memory. Bytes are copied, whatever the dtype.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from odstream.cache.layout import Block, FieldKey, Member
from odstream.cache.readable import FrameStore

__all__ = ["PADDING_FRAME", "BufferPool", "FrameGather"]

_POOLED_BYTES = 16 * 2**20

PADDING_FRAME = 0
"""Position of a frame that always holds canonical padding: the first guard frame."""


class BufferPool:
    """Memory for large batches, reused once the caller has dropped every tensor on it.

    Fresh pages cost more than the copy into them. A buffer comes back only when the last tensor, view or array that
    uses it is gone, so a batch that is still held is never touched. The last ``keep`` buffers that came back wait
    for a batch of about their size. The pages are private: a forked child writes to copies of its own.
    """

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self._free: list[mmap.mmap] = []

    def empty(self, nbytes: int) -> torch.Tensor:
        """Return uninitialised bytes."""
        if nbytes < _POOLED_BYTES:
            return torch.empty(nbytes, dtype=torch.uint8)
        size = -(-nbytes // _POOLED_BYTES) * _POOLED_BYTES
        memory = self._reusable(size) or mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        array = np.frombuffer(memory, np.uint8)
        # The tensor keeps the array alive; the array's end is the moment at which nobody uses the memory any more.
        weakref.finalize(array, self._give_back, memory).atexit = False
        return torch.from_numpy(array)[:nbytes]

    def _reusable(self, size: int) -> mmap.mmap | None:
        for memory in tuple(self._free):
            if size <= len(memory) <= 2 * size:
                with suppress(ValueError):  # another thread's batch has come back, and pushed this one out
                    self._free.remove(memory)
                    return memory
        return None

    def _give_back(self, memory: mmap.mmap) -> None:
        self._free.append(memory)
        del self._free[: -self._keep]

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferPool, (self._keep,)


class _BlockView:
    """A block as torch sees it, and how a copy of it falls into fields."""

    def __init__(self, store: FrameStore, block: Block) -> None:
        self.frames = torch.from_numpy(store.array(f"block:{block.name}"))
        self.width = block.width_bytes
        self.parts = [_Part(list(members)) for _, members in groupby(block.members, key=_kind)]

    def windows(self, length: int) -> torch.Tensor:
        count, size = len(self.frames) - length + 1, length * self.width
        return self.frames.as_strided((count, size), (self.width, 1))

    def fields(self, copied: torch.Tensor) -> Iterator[tuple[FieldKey, torch.Tensor]]:
        """Split a copy ``[B, L, W]`` into its fields."""
        for part in self.parts:
            yield from part.split(copied)


class _Part:
    """Neighbours in a block that have one dtype and are all scalars, or one field alone."""

    def __init__(self, members: list[Member]) -> None:
        self._keys = [field.key for field, _ in members]
        self._shape = members[0].field.shape
        first, last = members[0], members[-1]
        self._from, self._bytes = first.offset_bytes, last.offset_bytes + last.field.nbytes - first.offset_bytes
        self._dtype = torch.from_numpy(np.empty(0, members[0].field.dtype)).dtype

    def split(self, copied: torch.Tensor) -> Iterable[tuple[FieldKey, torch.Tensor]]:
        values = copied.narrow(-1, self._from, self._bytes).view(self._dtype)
        if self._shape == ():
            return zip(self._keys, values.unbind(-1), strict=True)
        if len(self._shape) > 1:
            values = values.view(*copied.shape[:-1], *self._shape)
        return ((self._keys[0], values),)


def _kind(member: Member) -> object:
    return member.field.dtype if member.field.shape == () else member.field.key


class FrameGather:
    """Reads windows from a store. Call it under the store's lock."""

    def __init__(self, store: FrameStore) -> None:
        self._views = [_BlockView(store, block) for block in store.layout.blocks]
        self._frames = store.layout.frames
        self._order = [field.key for field in store.layout.fields]
        self._pool = BufferPool()

    def copy_windows(self, first_frame: NDArray[np.integer], length: int) -> list[torch.Tensor]:
        """Copy the windows ``[first_frame, first_frame + length)``, each in one piece.

        Args:
            first_frame: ``[B]`` positions in the blocks; every window lies within them.
            length: L.

        Returns:
            Per block an owned tensor ``[B, L, W]``.
        """
        index = torch.from_numpy(first_frame)
        shape = (len(first_frame), length)
        return [self._select(view, view.windows(length), index, shape) for view in self._views]

    def copy_frames(self, frame: NDArray[np.integer]) -> list[torch.Tensor]:
        """Copy single frames: for windows that stored padding does not complete.

        Args:
            frame: ``[B, L]`` positions in the blocks; `PADDING_FRAME` where there is no frame.

        Returns:
            Per block an owned tensor ``[B, L, W]``.
        """
        index = torch.from_numpy(frame.reshape(-1))
        shape = (frame.shape[0], frame.shape[1])
        return [self._select(view, view.frames, index, shape) for view in self._views]

    def _select(
        self, view: _BlockView, source: torch.Tensor, index: torch.Tensor, shape: tuple[int, int]
    ) -> torch.Tensor:
        out = self._pool.empty(prod(shape) * view.width)
        torch.index_select(source, 0, index, out=out.view(len(index), -1))
        return out.view(*shape, view.width)

    def batch(self, copies: list[torch.Tensor], **more: torch.Tensor) -> TensorDict:
        """Arrange the copied blocks as one TensorDict ``[B, L]`` with the fields' names. Copies nothing.

        Args:
            copies: What a copy returned.
            more: Further entries ``[B, L, ...]``.
        """
        leaves: dict[FieldKey, torch.Tensor] = {}
        for view, copied in zip(self._views, copies, strict=True):
            leaves.update(view.fields(copied))
        tree: dict[str, Any] = {}
        for key in self._order:
            branch = tree
            for name in key[:-1]:
                branch = branch.setdefault(name, {})
            branch[key[-1]] = leaves[key]
        return _tensordict({**tree, **more}, copies[0].shape[:2])


def _tensordict(tree: dict[str, Any], size: torch.Size) -> TensorDict:
    source = {key: _tensordict(value, size) if isinstance(value, dict) else value for key, value in tree.items()}
    return TensorDict(source, batch_size=size)
