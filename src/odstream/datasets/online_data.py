"""Chunks of a live engine as a PyTorch dataset.

Letters: ``B`` batch, ``c`` frames per chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDict, TensorDictBase
from torch.utils.data import IterableDataset

from odstream.cache.windows import SAMPLING_MODES, SamplingMode
from odstream.datasets.sampler import ChunkSizeSampler
from odstream.validation import check_choice, check_int

__all__ = ["ChunkEngine", "OnlineDataset"]


class ChunkEngine(Protocol):
    """What a dataset needs of an engine."""

    def sample_batch(self, batch_size: int, chunk_size: int, sampling_mode: SamplingMode) -> TensorDict:
        """Return an owned batch ``[B, c]``, or raise."""


class OnlineDataset(IterableDataset[TensorDictBase]):
    """Endless iteration over chunks of episodes that a live engine holds at that moment.

    In item mode (``batch_size=None``) an iteration yields one chunk, a TensorDict ``[c]``; let a ``DataLoader`` with
    ``collate_fn=OnlineDataset.collate_fn`` stack them. In batch mode it yields a TensorDict ``[B, c]``, drawn by one
    call of the engine, which is the faster way; use ``DataLoader(dataset, batch_size=None)`` with
    ``collate_fn=OnlineDataset.passthrough_collate_fn``.

    With a `ChunkSizeSampler` the length is drawn anew at every step: once per batch in batch mode, so that all chunks
    of a batch have one length, and once per item in item mode. Items of different length cannot be stacked, and
    `collate_fn` says so; use batch mode, or a collate function of your own that pads.

    Iteration ends by an error, or when the caller stops: there is no length and no epoch. The dataset starts, waits
    for, retries and refills nothing. What the engine raises reaches the caller, in a worker's case through the
    ``DataLoader``; every yielded chunk has been delivered and stays counted, prefetched ones included.

    Start the engine before workers of a ``DataLoader`` are created. Each worker, forked or spawned, holds a small
    handle on the same cache and draws chunks and lengths of its own.

    Args:
        engine: A started `OnlineDataEngine`. The caller owns its life.
        chunk_size: Frames per chunk, or a sampler of it.
        batch_size: Chunks per batch, or None for item mode.
        transform: Applied to each item ``[c]`` or batch ``[B, c]``, in the process that drew it; what it returns is
            yielded. It gets an owned copy and may change it.
        sampling_mode: Which chunks qualify: all within an episode (``"episode"``), those inside one segment
            (``"segment"``), or those with a change of segment in them (``"boundary"``, two frames at least).

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        engine: ChunkEngine,
        chunk_size: int | ChunkSizeSampler,
        batch_size: int | None = None,
        transform: Callable[[TensorDictBase], Any] | None = None,
        sampling_mode: SamplingMode = "episode",
    ) -> None:
        super().__init__()
        if not callable(getattr(engine, "sample_batch", None)):
            raise TypeError(f"engine must have a method sample_batch, got {engine!r} ({type(engine).__name__})")
        check_choice("sampling_mode", sampling_mode, SAMPLING_MODES)
        if not isinstance(chunk_size, ChunkSizeSampler):
            if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
                kind = type(chunk_size).__name__
                raise TypeError(f"chunk_size must be an int or a ChunkSizeSampler, got {chunk_size!r} ({kind})")
            check_int("chunk_size", chunk_size, _shortest_chunk(sampling_mode))
        if batch_size is not None:
            check_int("batch_size", batch_size, 1)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable or None, got {transform!r} ({type(transform).__name__})")
        self.engine = engine
        self.chunk_size = chunk_size
        self.batch_size = batch_size
        self.transform = transform
        self.sampling_mode = sampling_mode

    def __iter__(self) -> Iterator[Any]:
        """Yield items or batches without end; see the class for what raises."""
        while True:
            batch = self.engine.sample_batch(self.batch_size or 1, self._next_chunk_size(), self.sampling_mode)
            sample = batch[0] if self.batch_size is None else batch
            yield sample if self.transform is None else self.transform(sample)

    def _next_chunk_size(self) -> int:
        if not isinstance(self.chunk_size, ChunkSizeSampler):
            return self.chunk_size
        name = f"the chunk size drawn by {type(self.chunk_size).__name__}"
        return check_int(name, self.chunk_size(), _shortest_chunk(self.sampling_mode))

    @staticmethod
    def collate_fn(items: Sequence[TensorDictBase]) -> TensorDictBase:
        """Stack items ``[c]`` into a batch ``[B, c]`` of new memory.

        Raises:
            ValueError: If there is no item, or the items differ in keys, shapes or dtypes; the message names the key
                and both sides.
        """
        items = list(items)
        if not items:
            raise ValueError("items must hold at least one item to stack, got none")
        expected = _leaves(items[0])
        for index, item in enumerate(items[1:], start=1):
            _check_same(expected, _leaves(item), index)
        stacked: TensorDictBase = TensorDict.stack(items)
        return stacked

    @staticmethod
    def passthrough_collate_fn(batch: Any) -> Any:
        """Return the batch as it is: in batch mode there is nothing left to stack."""
        return batch


def _shortest_chunk(sampling_mode: SamplingMode) -> int:
    return 2 if sampling_mode == "boundary" else 1


def _leaves(item: TensorDictBase) -> dict[str, torch.Tensor]:
    """Return every tensor of an item under its dotted key."""
    if not isinstance(item, TensorDictBase):
        raise ValueError(f"items must be TensorDicts, got {type(item).__name__}")
    leaves: dict[str, Any] = {}
    for key, value in item.items(include_nested=True, leaves_only=True):
        leaves[key if isinstance(key, str) else ".".join(key)] = value
    return leaves


def _check_same(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], index: int) -> None:
    for key in [*expected, *(key for key in found if key not in expected)]:
        ours, theirs = expected.get(key), found.get(key)
        if ours is None or theirs is None:
            has, lacks = (index, 0) if ours is None else (0, index)
            raise ValueError(f"cannot stack {key}: item {has} has it, item {lacks} does not")
        if ours.shape != theirs.shape:
            shapes = f"{tuple(ours.shape)} in item 0 and {tuple(theirs.shape)} in item {index}"
            hint = "; for chunks of different length use batch mode (batch_size=N)" if ours.ndim == theirs.ndim else ""
            raise ValueError(f"cannot stack {key}: its shape is {shapes}{hint}")
        if ours.dtype != theirs.dtype:
            raise ValueError(
                f"cannot stack {key}: its dtype is {ours.dtype} in item 0 and {theirs.dtype} in item {index}"
            )
