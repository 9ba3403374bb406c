"""`SequenceDataset` in the worker processes of a ``DataLoader``."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from odstream.datasets import OnlineDataSource, SequenceDataset, SequenceSpecCfg
from odstream.errors import SourceOwnershipError
from tests.fakes.producers import Script
from tests.fakes.sources import SCHEMA
from tests.process.consumers import running
from tests.process.resident_consumers import make_source

pytestmark = [pytest.mark.timeout(120), pytest.mark.spec("DATA-01", "DATA-04")]

SPEC = SequenceSpecCfg(2, 3)
METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


def batches(dataset: SequenceDataset, method: str, count: int) -> list[Any]:
    """Take some batches from a loader with two workers, and end these."""
    iterator: Any = iter(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method))
    try:
        return list(islice(iterator, count))
    finally:
        iterator._shutdown_workers()


@METHODS
def test_a_limit_is_refused_where_every_worker_would_reach_it(method: str) -> None:
    """Field case S01."""
    with pytest.raises(SourceOwnershipError, match="max_batches=10 .*num_workers=0"):
        batches(SequenceDataset(make_source(), SPEC, 4, max_batches=10), method, 1)


@METHODS
def test_a_generator_is_refused_where_it_would_be_copied(method: str) -> None:
    """Field case S10."""
    with pytest.raises(SourceOwnershipError, match="explicit generator .*num_workers=0"):
        batches(SequenceDataset(make_source(), SPEC, 4, generator=torch.Generator()), method, 1)


@METHODS
def test_a_source_with_budgets_is_refused_in_workers(method: str) -> None:
    with pytest.raises(SourceOwnershipError, match="num_workers=0"):
        batches(SequenceDataset(make_source(budget=5), SPEC, 4), method, 1)


@METHODS
def test_workers_draw_different_contexts_of_resident_frames(method: str) -> None:
    """Field case S02."""
    drawn = [
        tuple(batch["frame_ids"].flatten().tolist())
        for batch in batches(SequenceDataset(make_source(), SPEC, 4), method, 20)
    ]
    assert len(set(drawn)) == 20


@METHODS
@pytest.mark.spec("SRC-04")
def test_workers_draw_from_a_live_engine_through_its_source(method: str) -> None:
    schema = {**SCHEMA, "action": {**SCHEMA["action"], "names": ["x", "y", "z"]}}
    with running(Script(lengths=(20,)), include_provenance=True) as engine:
        source = OnlineDataSource(engine, schema=schema)
        found = batches(SequenceDataset(source, SPEC, 4), method, 10)
        assert engine.get_stats()["sampled_chunks"] >= 40
    for batch in found:
        real = batch["valid"]
        assert (batch["frame_ids"][real][:, 0] == engine.run_id).all()
        assert torch.equal(
            batch["obs"][real][:, 0], 1000.0 * batch["frame_ids"][real][:, 1] + batch["frame_ids"][real][:, 2]
        )
    assert len({tuple(batch["frame_ids"].flatten().tolist()) for batch in found}) == 10
