"""Copies windows of frames out of the cache into owned tensors. The only module here that needs torch.

Letters: ``B`` batch, ``L`` frames per window, ``W`` elements per frame of a block.

A block is seen as an overlapping view of all its windows, ``[windows, L, W]`` with strides ``(W, W, 1)``; selecting
from it along the first axis copies each window in one piece, at the speed of memory.
"""

from __future__ import annotations

import mmap
import weakref
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from odstream.cache.layout import Block, Field
from odstream.cache.store import CacheStore

__all__ = ["BufferPool", "FrameGather"]

# torch copies these dtypes but cannot index them; a signed integer of the same width carries the bits.
_CARRIERS: dict[str, type[np.generic]] = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}
_POOLED_BYTES = 16 * 2**20


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
        self.width = block.width
        self.dtype = torch.from_numpy(np.empty(0, block.dtype)).dtype
        self.frames = torch.from_numpy(frames.view(_CARRIERS.get(block.dtype.name, block.dtype)))
        padding = np.concatenate([np.full(field.size, field.padding) for field, _ in block.members])
        self.padding = torch.from_numpy(padding.astype(block.dtype).view(_CARRIERS.get(block.dtype.name, block.dtype)))

    def windows(self, length: int) -> torch.Tensor:
        count = len(self.frames) - length + 1
        return self.frames.as_strided((count, length, self.width), (self.width, self.width, 1))


class FrameGather:
    """Reads windows from a store. Call it under the store's lock."""

    def __init__(self, store: CacheStore) -> None:
        self._views = [_BlockView(store, block) for block in store.layout.blocks]
        self._frames = store.layout.frames
        self._order = [field.key for field in store.layout.fields]
        self._pool = BufferPool()

    def copy(self, first_frame: NDArray[np.integer], length: int) -> list[torch.Tensor]:
        """Copy the windows ``[first_frame, first_frame + length)``.

        Args:
            first_frame: ``[B]`` positions in the blocks; may lie outside of them, for windows that `pad` repairs.
            length: L.

        Returns:
            Per block an owned tensor ``[B, L, W]``.
        """
        index = torch.from_numpy(np.clip(first_frame, 0, self._frames - length))
        copies = []
        for view in self._views:
            shape = (len(first_frame), length, view.width)
            out = self._pool.empty(prod(shape), view.frames.dtype).view(shape)
            copies.append(torch.index_select(view.windows(length), 0, index, out=out))
        return copies

    def repair(
        self,
        copies: list[torch.Tensor],
        first_frame: NDArray[np.integer],
        real: NDArray[np.bool_],
        lines: NDArray[np.integer],
    ) -> None:
        """Rewrite windows that the plain copy got wrong: real frames from their place, padding elsewhere.

        Args:
            copies: What `copy` returned.
            first_frame: ``[n]`` positions of the windows to rewrite, as given to `copy`.
            real: ``[n, L]`` which of their positions are frames of the window.
            lines: ``[n]`` their places in the batch.
        """
        length = real.shape[1]
        offsets = np.arange(length)
        target = lines[:, None] * length + offsets
        moved = first_frame != np.clip(first_frame, 0, self._frames - length)
        displaced = real & moved[:, None]
        padded = torch.from_numpy(target[~real])
        wanted, source = (torch.from_numpy(x[displaced]) for x in (target, first_frame[:, None] + offsets))
        for view, copied in zip(self._views, copies, strict=True):
            flat = copied.view(-1, view.width)
            flat[wanted] = view.frames[source]
            flat[padded] = view.padding

    def batch(self, copies: list[torch.Tensor]) -> TensorDict:
        """Arrange the copied blocks as one TensorDict ``[B, L]`` with the fields' names. Copies nothing."""
        leaves: dict[tuple[str, ...], torch.Tensor] = {}
        for view, copied in zip(self._views, copies, strict=True):
            for field, offset in view.members:
                leaves[field.key] = _as_field(copied.view(view.dtype), field, offset)
        size = copies[0].shape[:2]
        return _nested({key: leaves[key] for key in self._order}, size)


def _as_field(copied: torch.Tensor, field: Field, offset: int) -> torch.Tensor:
    if not field.shape:
        return copied[..., offset]
    part = copied[..., offset : offset + field.size]
    return part if len(field.shape) == 1 else part.view(*copied.shape[:-1], *field.shape)


def _nested(leaves: dict[tuple[str, ...], torch.Tensor], size: torch.Size) -> TensorDict:
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
