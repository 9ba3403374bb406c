"""The engine in the workers of a ``DataLoader``, through a data set of a few lines."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from odstream.engine import OnlineDataEngine
from tests.fakes.producers import Script
from tests.process.chunks import Chunks, as_it_is
from tests.process.consumers import PATIENCE_S, running


def loader(engine: OnlineDataEngine, method: str) -> DataLoader[Any]:
    return DataLoader(
        Chunks(engine),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
        collate_fn=as_it_is,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.spec("DATA-04", "ENG-09", "QUOTA-03")
def test_two_workers_draw_different_whole_chunks_while_the_cache_is_refilled(method: str) -> None:
    """Field case S02."""
    budget = {"episode_sample_budget": 10_000, "episode_sample_hard_limit": 10_000}
    with running(Script(constant=True), buffer_size=64, **budget) as engine:
        batches = iter(loader(engine, method))
        received = [next(batches) for _ in range(4)]
        generation = engine.request_refill()
        engine.wait_for_generation(generation, timeout=PATIENCE_S)
        received += islice(batches, 8)
        for batch in received:
            assert torch.equal(batch["obs"], batch["actions"])
            assert torch.equal(batch["obs"][..., 0], batch["rewards"])
            assert torch.equal(batch["rewards"], batch["rewards"][:, :1].expand(-1, 5))
        assert {int(batch["worker"][0, 0]) for batch in received} == {0, 1}
        assert len({tuple(batch["rewards"][:, 0].tolist()) for batch in received}) == len(received)
        with suppress(RuntimeError):  # a worker that torch ends may abort on its way out; it has delivered by then
            batches._shutdown_workers()
        delivered = engine.get_stats()["sampled_chunks"]
        assert delivered >= 12 * 8  # and what was prefetched
        assert delivered % 8 == 0
