"""A data set of a few lines. Workers import this module, and nothing heavy beside torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tensordict import TensorDict
from torch.utils.data import IterableDataset, get_worker_info

from odstream.engine import OnlineDataEngine


class Chunks(IterableDataset[TensorDict]):
    """Batches of eight chunks, for ever."""

    def __init__(self, engine: OnlineDataEngine) -> None:
        self.engine = engine

    def __iter__(self) -> Iterator[TensorDict]:
        while True:
            batch = self.engine.sample_batch(8, 5)
            worker = get_worker_info()
            batch["worker"] = torch.full(batch.batch_size, worker.id if worker else -1)
            yield batch


def as_it_is(batch: TensorDict) -> TensorDict:
    return batch
