"""Item mode, batch mode, chunk lengths and stacking, on an engine that answers from memory."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from odstream.datasets import ChunkSizeSampler, OnlineDataset, UniformChunkSampler
from odstream.errors import DataUnavailableError

pytestmark = pytest.mark.spec("DATA-02")


class MemoryEngine:
    """Answers every call with numbered chunks, and remembers the calls."""

    def __init__(self, longest: int = 100) -> None:
        self.longest = longest
        self.calls: list[tuple[int, int, str]] = []

    def sample_batch(self, batch_size: int, chunk_size: int, sampling_mode: str = "episode") -> TensorDict:
        self.calls.append((batch_size, chunk_size, sampling_mode))
        if chunk_size > self.longest:
            raise DataUnavailableError(f"no episode has {chunk_size} frames")
        number = torch.full((batch_size, chunk_size), len(self.calls))
        observation = TensorDict({"q": torch.zeros(batch_size, chunk_size, 6)}, batch_size=(batch_size, chunk_size))
        return TensorDict({"obs": observation, "actions": number}, batch_size=(batch_size, chunk_size))


class FixedSizes(ChunkSizeSampler):
    """Hands out the sizes it was given, in order."""

    def __init__(self, *sizes: Any) -> None:
        self.sizes = list(sizes)

    def __call__(self) -> int:
        return self.sizes.pop(0)


def item(width: int = 6, length: int = 4, **more: torch.Tensor) -> TensorDict:
    observation = TensorDict({"q": torch.zeros(length, width)}, batch_size=(length,))
    return TensorDict({"obs": observation, "actions": torch.zeros(length), **more}, batch_size=(length,))


def test_item_mode_yields_single_chunks() -> None:
    engine = MemoryEngine()
    items = list(islice(OnlineDataset(engine, chunk_size=8), 3))
    assert [tuple(chunk.batch_size) for chunk in items] == [(8,)] * 3
    assert tuple(items[0]["obs", "q"].shape) == (8, 6)
    assert engine.calls == [(1, 8, "episode")] * 3


def test_batch_mode_draws_a_whole_batch_with_one_call() -> None:
    engine = MemoryEngine()
    batches = list(islice(OnlineDataset(engine, 8, batch_size=5, sampling_mode="segment"), 2))
    assert [tuple(batch.batch_size) for batch in batches] == [(5, 8)] * 2
    assert engine.calls == [(5, 8, "segment")] * 2


def test_a_data_loader_stacks_items() -> None:
    loader = DataLoader(OnlineDataset(MemoryEngine(), 8), batch_size=3, collate_fn=OnlineDataset.collate_fn)
    batch = next(iter(loader))
    assert tuple(batch.batch_size) == (3, 8)
    assert batch["actions"][:, 0].tolist() == [1, 2, 3]


def test_a_data_loader_passes_whole_batches_through() -> None:
    dataset = OnlineDataset(MemoryEngine(), 8, batch_size=5)
    loader = DataLoader(dataset, batch_size=None, collate_fn=OnlineDataset.passthrough_collate_fn)
    assert [tuple(batch.batch_size) for batch in islice(loader, 2)] == [(5, 8)] * 2


@pytest.mark.spec("DATA-03")
def test_batch_mode_draws_one_length_per_batch() -> None:
    engine = MemoryEngine()
    dataset = OnlineDataset(engine, FixedSizes(3, 7, 5), batch_size=4)
    assert [tuple(batch.batch_size) for batch in islice(dataset, 3)] == [(4, 3), (4, 7), (4, 5)]


def test_item_mode_draws_one_length_per_item() -> None:
    assert [len(chunk) for chunk in islice(OnlineDataset(MemoryEngine(), FixedSizes(3, 7, 5)), 3)] == [3, 7, 5]


def test_each_iterator_goes_on_with_the_same_engine() -> None:
    engine = MemoryEngine()
    dataset = OnlineDataset(engine, 2)
    assert next(iter(dataset))["actions"][0] == 1
    assert next(iter(dataset))["actions"][0] == 2


def test_nothing_is_drawn_before_it_is_asked_for() -> None:
    engine = MemoryEngine()
    iterator = iter(OnlineDataset(engine, 2))
    assert engine.calls == []
    next(iterator)
    assert len(engine.calls) == 1


def test_a_dataset_without_end_has_no_length() -> None:
    with pytest.raises(TypeError):
        len(OnlineDataset(MemoryEngine(), 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch_size", "shape"), [(None, (8,)), (5, (5, 8))])
def test_the_transform_gets_what_would_be_yielded(batch_size: int | None, shape: tuple[int, ...]) -> None:
    dataset = OnlineDataset(
        MemoryEngine(), 8, batch_size, transform=lambda sample: (sample.batch_size, sample["actions"])
    )
    seen, actions = next(iter(dataset))
    assert tuple(seen) == shape
    assert tuple(actions.shape) == shape


def test_errors_of_the_engine_and_the_transform_reach_the_caller_at_once() -> None:
    engine = MemoryEngine(longest=4)
    with pytest.raises(DataUnavailableError, match="no episode has 5 frames"):
        next(iter(OnlineDataset(engine, 5)))
    assert len(engine.calls) == 1
    with pytest.raises(ZeroDivisionError):
        next(iter(OnlineDataset(engine, 4, transform=lambda _: 1 / 0)))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"engine": object()}, TypeError, "engine must have a method sample_batch"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
        ({"chunk_size": True}, TypeError, "chunk_size must be an int or a ChunkSizeSampler, got True"),
        ({"chunk_size": 8.0}, TypeError, "chunk_size must be an int or a ChunkSizeSampler, got 8.0"),
        ({"chunk_size": lambda: 8}, TypeError, "chunk_size must be an int or a ChunkSizeSampler"),
        ({"chunk_size": 1, "sampling_mode": "boundary"}, ValueError, "chunk_size must be at least 2, got 1"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": "4"}, TypeError, "batch_size must be an int, got '4'"),
        ({"transform": 3}, TypeError, "transform must be callable or None, got 3"),
        ({"sampling_mode": "frame"}, ValueError, "sampling_mode must be one of 'episode', 'segment', 'boundary'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_drawn(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        OnlineDataset(**({"engine": MemoryEngine(), "chunk_size": 8} | changed))


@pytest.mark.parametrize(
    ("size", "mode", "error", "message"),
    [
        (0, "episode", ValueError, "the chunk size drawn by FixedSizes must be at least 1, got 0"),
        (2.5, "episode", TypeError, "the chunk size drawn by FixedSizes must be an int, got 2.5"),
        (1, "boundary", ValueError, "the chunk size drawn by FixedSizes must be at least 2, got 1"),
    ],
)
def test_a_bad_drawn_length_is_refused_in_words(size: Any, mode: Any, error: type[Exception], message: str) -> None:
    engine = MemoryEngine()
    with pytest.raises(error, match=message):
        next(iter(OnlineDataset(engine, FixedSizes(size), sampling_mode=mode)))
    assert engine.calls == []


def test_a_stacked_batch_is_memory_of_its_own() -> None:
    first = item()
    batch = OnlineDataset.collate_fn([first, item()])
    batch["obs", "q"].fill_(9)
    assert float(first["obs", "q"].sum()) == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (item(width=7), r"cannot stack obs\.q: its shape is \(4, 6\) in item 0 and \(4, 7\) in item 1"),
        (item(length=5), r"its shape is \(4, 6\) in item 0 and \(5, 6\) in item 1; .* batch mode"),
        (item(extra=torch.zeros(4)), "cannot stack extra: item 1 has it, item 0 does not"),
        (item().exclude("actions"), "cannot stack actions: item 0 has it, item 1 does not"),
        (item().exclude(("obs", "q")), r"cannot stack obs\.q: item 0 has it, item 1 does not"),
        (
            item().set("actions", torch.zeros(4, dtype=torch.int64)),
            r"cannot stack actions: its dtype is torch\.float32 in item 0 and torch\.int64 in item 1",
        ),
    ],
)
def test_items_that_do_not_fit_name_the_key_and_both_sides(other: TensorDict, message: str) -> None:
    """Field case U08."""
    with pytest.raises(ValueError, match=message):
        OnlineDataset.collate_fn([item(), other])


def test_items_of_drawn_lengths_cannot_be_stacked_and_say_so() -> None:
    """Field case U08, for chunk lengths that vary in item mode."""
    dataset = OnlineDataset(MemoryEngine(), FixedSizes(3, 7))
    with pytest.raises(ValueError, match=r"its shape is \(3, 6\) in item 0 and \(7, 6\) in item 1; .* batch mode"):
        next(iter(DataLoader(dataset, batch_size=2, collate_fn=OnlineDataset.collate_fn)))


def test_what_is_no_item_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one item to stack, got none"):
        OnlineDataset.collate_fn([])
    with pytest.raises(ValueError, match="items must be TensorDicts, got dict"):
        OnlineDataset.collate_fn([{"obs": torch.zeros(3)}])  # type: ignore[list-item]


def test_collate_functions_travel_to_workers() -> None:
    """Field case U03."""
    for function in (OnlineDataset.collate_fn, OnlineDataset.passthrough_collate_fn):
        assert pickle.loads(pickle.dumps(function)) is function


def test_a_dataset_travels_as_a_small_handle() -> None:
    """Field case S12, as far as the dataset itself goes."""
    dataset = OnlineDataset(MemoryEngine(), UniformChunkSampler(2, 8), batch_size=4)
    iterator = iter(dataset)
    next(iterator)
    payload = pickle.dumps(dataset)
    assert len(payload) < 1000
    assert next(iter(pickle.loads(payload))).batch_size[0] == 4
