"""Iteration over contexts, in this process."""

from __future__ import annotations

import copy
import pickle
from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from odstream.datasets import OfflineDataset, SequenceDataset, SequenceSpecCfg
from odstream.errors import DataBudgetExhaustedError, SourceOwnershipError
from tests.fakes.cache import seeded
from tests.unit.datasets.test_tensor_source import resident, simple

pytestmark = pytest.mark.spec("DATA-01")

SPEC = SequenceSpecCfg(2, 3)


def test_item_mode_yields_single_contexts() -> None:
    items = list(islice(SequenceDataset(simple(9), SPEC), 3))
    assert [tuple(item.batch_size) for item in items] == [(4,)] * 3
    assert tuple(items[0]["frame_ids"].shape) == (4, 3)


def test_batch_mode_yields_whole_batches() -> None:
    batches = list(islice(SequenceDataset(simple(9), SPEC, batch_size=5), 2))
    assert [tuple(batch.batch_size) for batch in batches] == [(5, 4)] * 2


def test_a_limit_bounds_one_iterator_and_resets_nothing() -> None:
    source = simple(9, episode_sample_budget=25, episode_sample_hard_limit=25)
    dataset = SequenceDataset(source, SPEC, batch_size=2, max_batches=10)
    assert len(list(dataset)) == 10
    iterator = iter(dataset)
    assert len(list(islice(iterator, 2))) == 2
    with pytest.raises(DataBudgetExhaustedError):
        next(iterator)
    assert source.get_sampling_budget_snapshot()["total_delivered_chunks"] == 24
    assert len(list(SequenceDataset(simple(9), SPEC, max_batches=7))) == 7


def test_a_data_loader_passes_batches_on_and_stacks_items() -> None:
    batch = next(iter(DataLoader(SequenceDataset(simple(9), SPEC, batch_size=5), batch_size=None, num_workers=0)))
    assert tuple(batch["obs"].shape) == (5, 4, 1) and batch["valid"].dtype == torch.bool
    loader = DataLoader(SequenceDataset(simple(9), SPEC), batch_size=3, collate_fn=SequenceDataset.collate_fn)
    assert tuple(next(iter(loader)).batch_size) == (3, 4)


def test_nested_batches_pass_through_a_data_loader_unchanged() -> None:
    nested = TensorDict({"arm": {"q": torch.ones(5, 2)}, "image": torch.ones(5, 3)}, batch_size=(5,))
    data = TensorDict({"obs": nested, "actions": torch.ones(5)}, batch_size=(5,))
    schema = {
        "observation": {"fields": {"arm": {"fields": {"q": {"shape": [2]}}}, "image": {"shape": [3]}}},
        "action": {"shape": [], "semantics": "x", "step_dt": 1},
    }
    dataset = SequenceDataset(resident([data], schema=schema), SPEC, batch_size=3)
    direct, loaded = next(iter(dataset)), next(iter(DataLoader(dataset, batch_size=None)))
    assert list(direct) == list(direct.keys()) and isinstance(direct, TensorDict)
    parts = (loaded, loaded["obs"], loaded["obs", "arm"])
    assert [(type(part), tuple(part.batch_size)) for part in parts] == [(TensorDict, (3, 4))] * 3
    assert (loaded["obs", "arm", "q"][loaded["valid"]] == 1).all()
    assert tuple(next(iter(loaded)).batch_size) == (4,)


def test_a_limit_holds_in_a_data_loader_without_workers() -> None:
    """Field case S01."""
    loader = DataLoader(SequenceDataset(simple(9), SPEC, batch_size=2, max_batches=10), batch_size=None)
    assert len(list(loader)) == 10


def test_a_generator_makes_iteration_repeat() -> None:
    first, second = (
        [batch["frame_ids"] for batch in SequenceDataset(simple(99), SPEC, 4, generator=seeded(7), max_batches=20)]
        for _ in range(2)
    )
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))


def test_a_transform_gets_owned_samples() -> None:
    dataset = SequenceDataset(simple(9), SPEC, batch_size=2, transform=lambda batch: batch["obs"].mul_(0).sum())
    assert [float(value) for value in islice(dataset, 3)] == [0.0] * 3


def test_the_older_name_is_the_same_class() -> None:
    assert OfflineDataset is SequenceDataset


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"generator": torch.Generator()},
            "explicit generator iterates only in the process that created it.*num_workers=0",
        ),
        ({"max_batches": 3}, "max_batches=3 iterates only in the process that created it.*num_workers=0"),
    ],
)
def test_what_cannot_be_shared_is_not_copied(more: dict[str, Any], message: str) -> None:
    """Field case S10."""
    with pytest.raises(SourceOwnershipError, match=message):
        pickle.dumps(SequenceDataset(simple(9), SPEC, **more))


def test_a_dataset_without_limits_can_be_copied() -> None:
    dataset = copy.copy(SequenceDataset(simple(9), SPEC, batch_size=2))
    assert tuple(next(iter(dataset)).batch_size) == (2, 4)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"source": 3}, TypeError, "source must have a method sample_context, got 3"),
        ({"sequence": (2, 3)}, TypeError, "spec must be a SequenceSpecCfg"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"max_batches": 0}, ValueError, "max_batches must be at least 1, got 0"),
        ({"generator": 1}, TypeError, "generator must be a torch.Generator or None, got 1"),
        ({"transform": 1}, TypeError, "transform must be callable or None, got 1"),
    ],
)
def test_arguments_out_of_range_are_refused(more: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        SequenceDataset(**({"source": simple(9), "sequence": SPEC} | more))
