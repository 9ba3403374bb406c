"""Where a source stands: saved, loaded, refused."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from odstream.datasets import SequenceSpecCfg, TensorDataSource
from odstream.errors import DataBudgetExhaustedError, SourceOwnershipError
from tests.fakes.cache import seeded
from tests.unit.datasets.test_tensor_source import SIMPLE, plain, resident

pytestmark = pytest.mark.spec("QUOTA-08")

SPEC = SequenceSpecCfg(2, 3)


def source(budget: int | None = 20, **more: Any) -> TensorDataSource:
    settings = {"episode_sample_budget": budget, "episode_sample_hard_limit": budget, "schema": SIMPLE}
    return resident([plain(length, row) for row, length in enumerate((4, 9, 2))], **(settings | more))


def stored(state: dict[str, Any]) -> Any:
    """A state that was written to a file and read again."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("budget", [20, None])
@pytest.mark.parametrize("explicit", [False, True], ids=["own generator", "generator of the caller"])
def test_a_run_that_is_restored_goes_on_as_if_it_had_not_stopped(budget: int | None, explicit: bool) -> None:
    def generator(seed: int) -> torch.Generator | None:
        return seeded(seed) if explicit else None

    first, generators = source(budget), [generator(1), generator(2)]
    for _ in range(3):
        first.sample_context(4, SPEC, generator=generators[0])
    state = stored(first.state_dict(generator=generators[0]))
    second = source(budget, seed=8)
    second.load_state_dict(state, generator=generators[1])
    for _ in range(10):
        left, right = (
            one.sample_context(4, SPEC, generator=generator)
            for one, generator in zip((first, second), generators, strict=True)
        )
        assert torch.equal(left["frame_ids"], right["frame_ids"])
    assert first.get_sampling_budget_snapshot() == second.get_sampling_budget_snapshot()
    again = [one.state_dict(generator=generator) for one, generator in zip((first, second), generators, strict=True)]
    assert again[0]["total_delivered"] == again[1]["total_delivered"] == 52


def test_a_state_that_is_spent_stays_spent() -> None:
    first = source(1)
    first.sample_context(3, SPEC)
    second = source(1)
    second.load_state_dict(first.state_dict())
    with pytest.raises(DataBudgetExhaustedError):
        second.sample_context(1, SPEC)


def without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: without(state, "budget"), "state must have the keys"),
        (lambda state: {**state, "extra": 1}, "state must have the keys"),
        (lambda state: [], "state must have the keys .*, got list"),
        (lambda state: {**state, "format": 2}, "state has the format 2, this version reads 1"),
        (lambda state: {**state, "identity": None}, "its source_id is None, here 'tests'"),
        (lambda state: {**state, "budget": [5, 20]}, r"budget and limit \[5, 20\], here they are \[20, 20\]"),
        (lambda state: {**state, "delivered": state["delivered"].int()}, r"delivered must be an int64 tensor \[3\]"),
        (lambda state: {**state, "delivered": state["delivered"][:2]}, r"delivered must be an int64 tensor \[3\]"),
        (lambda state: {**state, "delivered": state["delivered"] - 100}, "must lie between 0 and what is assigned"),
        (lambda state: {**state, "delivered": state["delivered"] + 20}, "must lie between 0 and what is assigned"),
        (lambda state: {**state, "total_delivered": 7}, "sum to 4, its total_delivered is 7"),
        (lambda state: {**state, "generator": torch.zeros(3)}, "is no position of a torch.Generator"),
        (lambda state: {**state, "generator_of": "me"}, "generator_of must be one of 'source', 'caller', got 'me'"),
        (lambda state: {**state, "generator_of": "caller"}, "the position of the caller's generator: pass generator="),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: Callable[[Any], Any], message: str) -> None:
    first = source()
    first.sample_context(4, SPEC)
    second = source(seed=3)
    before = copy.deepcopy(second.state_dict())
    with pytest.raises(ValueError, match=message):
        second.load_state_dict(change(first.state_dict()))
    after = second.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in ("delivered", "generator"))


def other_data() -> TensorDataSource:
    episodes = [plain(length, row) for row, length in enumerate((4, 9, 2))]
    episodes[1]["obs"][3] += 1e-3
    return resident(episodes, schema=SIMPLE, episode_sample_budget=20, episode_sample_hard_limit=20)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda: source(source_id="else"), "source_id is 'tests', here 'else'"),
        (lambda: source(schema={**SIMPLE, "version": 2}), "schema is"),
        (other_data, "data is"),
        (lambda: source(21), "budget and limit"),
        (lambda: source(None), "budget and limit"),
    ],
)
def test_a_state_of_other_data_is_refused(other: Callable[[], TensorDataSource], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        other().load_state_dict(source().state_dict())


def test_loading_never_gives_a_selection_back() -> None:
    used = source()
    state = used.state_dict()
    used.sample_context(4, SPEC)
    with pytest.raises(RuntimeError, match="has delivered 4 contexts; create a new one"):
        used.load_state_dict(state)
    assert used.get_sampling_budget_snapshot()["total_delivered_chunks"] == 4


def test_a_generator_that_the_state_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="the position of the source's generator: do not pass generator="):
        source().load_state_dict(source().state_dict(), generator=seeded(0))


@pytest.mark.spec("DATA-04")
def test_a_source_with_budgets_cannot_be_copied() -> None:
    with pytest.raises(SourceOwnershipError, match="its ledger would be doubled"):
        pickle.dumps(source())
