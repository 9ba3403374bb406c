"""Contexts of any source as a PyTorch dataset.

Letters as in `sequence`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch.utils.data import IterableDataset

from odstream.datasets.online_data import OnlineDataset
from odstream.datasets.sequence import BatchSource, SequenceSpecCfg, check_spec
from odstream.engine.sampling import check_generator
from odstream.errors import SourceOwnershipError
from odstream.validation import check_int

__all__ = ["OfflineDataset", "SequenceBatch", "SequenceDataset"]


class SequenceBatch(TensorDict):  # type: ignore[no-untyped-call]
    """A TensorDict over which one iterates as over any mapping: by name.

    A ``DataLoader`` without a collate function takes what a dataset yields apart by name and puts it together again.
    A plain TensorDict, which iterates over its first axis, does not survive that; this one comes out as a TensorDict.
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __copy__(self) -> TensorDict:
        plain: TensorDict = self.copy()
        for part in (
            plain,
            *(value for value in plain.values(include_nested=True) if isinstance(value, SequenceBatch)),
        ):
            part.__class__ = TensorDict
        return plain


def _for_loaders(result: Any) -> Any:
    """Let a TensorDict, and what is nested in it, pass through a ``DataLoader``. Copies nothing."""
    if isinstance(result, TensorDict):
        for part in (result, *result.values(include_nested=True)):
            if type(part) is TensorDict:
                part.__class__ = SequenceBatch
    return result


class SequenceDataset(IterableDataset[TensorDictBase]):
    """Iteration over contexts that a source draws: endless, or a given number of them.

    In item mode (``batch_size=None``) an iteration yields one context, a TensorDict ``[L]``; let a ``DataLoader`` with
    ``collate_fn=SequenceDataset.collate_fn`` stack them. In batch mode it yields a `SequenceBatch` ``[B, L]``, drawn by
    one call of the source, which is the faster way; ``DataLoader(dataset, batch_size=None)`` passes it on.

    The dataset starts, waits for, retries and refills nothing, and a new iterator resets nothing: what the source
    raises reaches the caller, and what was yielded stays counted.

    Worker processes of a ``DataLoader`` draw for themselves, each differently. So a given number of batches would be
    yielded once per worker, and a given generator would be copied: with ``max_batches`` or ``generator`` only the
    process that created the dataset may iterate (``num_workers=0``). A source with budgets refuses workers as well.

    Args:
        source: Any `BatchSource`. The caller owns its life.
        sequence: Which contexts.
        batch_size: Contexts per batch, or None for item mode.
        transform: Applied to each item ``[L]`` or batch ``[B, L]`` in the process that drew it; what it returns is
            yielded. It gets an owned copy and may change it.
        generator: Source of randomness, on the CPU; None for the source's own.
        max_batches: How many batches (in item mode: items) one iterator yields; None for no end. It says nothing
            about how much data there is.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        source: BatchSource,
        sequence: SequenceSpecCfg,
        batch_size: int | None = None,
        transform: Callable[[TensorDictBase], Any] | None = None,
        *,
        generator: torch.Generator | None = None,
        max_batches: int | None = None,
    ) -> None:
        super().__init__()
        if not callable(getattr(source, "sample_context", None)):
            raise TypeError(f"source must have a method sample_context, got {source!r} ({type(source).__name__})")
        check_spec(sequence)
        check_generator(generator)
        if batch_size is not None:
            check_int("batch_size", batch_size, 1)
        if max_batches is not None:
            check_int("max_batches", max_batches, 1)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable or None, got {transform!r} ({type(transform).__name__})")
        self.source = source
        self.sequence = sequence
        self.batch_size = batch_size
        self.transform = transform
        self.generator = generator
        self.max_batches = max_batches
        self._owner_pid = os.getpid()

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over items or batches; see the class for what raises.

        Raises:
            SourceOwnershipError: If this process may not iterate. Nothing was drawn.
        """
        if os.getpid() != self._owner_pid:
            self._require_copyable()
        return self._samples()

    def _samples(self) -> Iterator[Any]:
        for _ in count() if self.max_batches is None else range(self.max_batches):
            batch = self.source.sample_context(self.batch_size or 1, self.sequence, generator=self.generator)
            sample = batch[0] if self.batch_size is None else batch
            result = sample if self.transform is None else self.transform(sample)
            yield result if self.batch_size is None else _for_loaders(result)

    def _require_copyable(self) -> None:
        if self.generator is not None:
            raise SourceOwnershipError(
                "a dataset with an explicit generator iterates only in the process that created it, since copies of "
                "the generator would repeat each other's draws; use num_workers=0, or leave generator out"
            )
        if self.max_batches is not None:
            raise SourceOwnershipError(
                f"a dataset with max_batches={self.max_batches} iterates only in the process that created it, since "
                "every worker would yield that many; use num_workers=0, or leave max_batches out"
            )

    def __getstate__(self) -> dict[str, Any]:
        self._require_copyable()
        return self.__dict__.copy()

    collate_fn = staticmethod(OnlineDataset.collate_fn)
    passthrough_collate_fn = staticmethod(OnlineDataset.passthrough_collate_fn)


OfflineDataset = SequenceDataset
"""The same class under its older name."""
