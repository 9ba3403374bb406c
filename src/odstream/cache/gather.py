"""Copies windows of frames out of the cache into owned tensors. The only module here that needs torch.

Letters: ``B`` batch, ``L`` frames per window, ``W`` elements per frame of a block.

A block is seen as an overlapping view of all its windows, ``[windows, L, W]`` with strides ``(W, W, 1)``; selecting
from it along the first axis copies each window in one piece, at the speed of memory.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from odstream.cache.layout import Block, Field, FieldKey
from odstream.cache.store import CacheStore

__all__ = ["PADDING_FRAME", "BufferPool", "FrameGather"]

# torch copies these dtypes but cannot index them; a signed integer of the same width carries the bits.
_CARRIERS: dict[str, type[np.generic]] = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}
_POOLED_BYTES = 16 * 2**20

PADDING_FRAME = 0
"""Position of a frame that always holds canonical padding: the first guard frame."""


class BufferPool:
    """Memory for large batches, reused once the caller has dropped every tensor on it.

    Fresh pages cost more than the copy into them. A buffer comes back only when the last tensor, view or array that
    uses it is gone, so a batch that is still held is never touched. Used by one process; a forked child starts empty.
    """

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self._free: dict[int, list[mmap.mmap]] = {}

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised flat tensor."""
        nbytes = count * dtype.itemsize
        if nbytes < _POOLED_BYTES:
            return torch.empty(count, dtype=dtype)
        size = -(-nbytes // _POOLED_BYTES) * _POOLED_BYTES
        free = self._free.setdefault(size, [])
        memory = free.pop() if free else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        array = np.frombuffer(memory, np.uint8)
        # The tensor keeps the array alive; the array's end is the moment at which nobody uses the memory any more.
        weakref.finalize(array, self._give_back, size, memory).atexit = False
        return torch.from_numpy(array)[:nbytes].view(dtype)

    def _give_back(self, size: int, memory: mmap.mmap) -> None:
        free = self._free[size]
        if len(free) < self._keep:
            free.append(memory)

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferPool, (self._keep,)


class _BlockView:
    def __init__(self, store: CacheStore, block: Block) -> None:
        frames = store.array(f"block:{block.name}")
        self.members = block.members
        self.keys = [field.key for field, _ in block.members]
        self.all_scalars = all(field.shape == () for field, _ in block.members)
        self.width = block.width
        self.dtype = torch.from_numpy(np.empty(0, block.dtype)).dtype
        self.frames = torch.from_numpy(frames.view(_CARRIERS.get(block.dtype.name, block.dtype)))

    def fields(self, copied: torch.Tensor) -> Iterable[tuple[FieldKey, torch.Tensor]]:
        """Split a copy ``[B, L, W]`` into its fields."""
        copied = copied.view(self.dtype)
        if self.all_scalars:
            return zip(self.keys, copied.unbind(-1), strict=True)
        return ((field.key, _part(copied, field, offset)) for field, offset in self.members)

    def windows(self, length: int) -> torch.Tensor:
        count = len(self.frames) - length + 1
        return self.frames.as_strided((count, length, self.width), (self.width, self.width, 1))


def _part(copied: torch.Tensor, field: Field, offset: int) -> torch.Tensor:
    if not field.shape:
        return copied[..., offset]
    return copied[..., offset : offset + field.size].view(*copied.shape[:-1], *field.shape)


class FrameGather:
    """Reads windows from a store. Call it under the store's lock."""

    def __init__(self, store: CacheStore) -> None:
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
        out = self._pool.empty(prod(shape) * view.width, view.frames.dtype)
        torch.index_select(source, 0, index, out=out.view(len(index), *source.shape[1:]))
        return out.view(*shape, view.width)

    def batch(self, copies: list[torch.Tensor]) -> TensorDict:
        """Arrange the copied blocks as one TensorDict ``[B, L]`` with the fields' names. Copies nothing."""
        leaves: dict[FieldKey, torch.Tensor] = {}
        for view, copied in zip(self._views, copies, strict=True):
            leaves.update(view.fields(copied))
        return _nested({key: leaves[key] for key in self._order}, copies[0].shape[:2])


def _nested(leaves: dict[FieldKey, torch.Tensor], size: torch.Size) -> TensorDict:
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        branch = tree
        for name in key[:-1]:
            branch = branch.setdefault(name, {})
        branch[key[-1]] = value
    return _tensordict(tree, size)


def _tensordict(tree: dict[str, Any], size: torch.Size) -> TensorDict:
    source = {key: _tensordict(value, size) if isinstance(value, dict) else value for key, value in tree.items()}
    return TensorDict(source, batch_size=size)
