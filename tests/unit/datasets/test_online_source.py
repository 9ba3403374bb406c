"""A live engine under the contract of sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from odstream.datasets import BatchSource, OnlineDataSource, SequenceSpecCfg
from odstream.errors import DataBudgetExhaustedError, DataUnavailableError
from tests.fakes.cache import RUN_ID, Cache, Row, seeded
from tests.fakes.sources import SCHEMA, CacheEngine

pytestmark = pytest.mark.spec("SRC-04")


def source(*rows: Row, cache: dict[str, Any] | None = None, step_dt: float | None = 0.05, **more: Any) -> Any:
    stored = Cache(slots=max(len(rows), 1), **(cache or {}))
    stored.fill(*rows or (Row(8),))
    return OnlineDataSource(CacheEngine(stored, step_dt), **({"schema": SCHEMA} | more))  # type: ignore[arg-type]


@pytest.mark.spec("SRC-01", "SRC-07")
def test_a_batch_has_the_fields_of_the_contract() -> None:
    live = source(Row(3), Row(8))
    assert isinstance(live, BatchSource)
    assert live.source_id == str(RUN_ID)
    batch = live.sample_context(64, SequenceSpecCfg(3, 4), generator=seeded(0))
    assert tuple(batch.batch_size) == (64, 6)
    assert tuple(batch["obs"].shape) == (64, 6, 3) and tuple(batch["actions"].shape) == (64, 6, 2)
    assert batch["valid"].dtype == batch["loss_mask"].dtype == torch.bool
    ids = batch["frame_ids"]
    assert tuple(ids.shape) == (64, 6, 3) and ids.dtype == torch.int64
    assert (ids[~batch["valid"]] == -1).all()
    assert (ids[batch["valid"]][:, 0] == RUN_ID).all()
    assert set(ids[batch["valid"]][:, 1].tolist()) == {0, 1}
    assert torch.equal(ids[..., 2][batch["valid"]], batch["episode_step"][batch["valid"]])
    assert batch["valid"][:, 2].all() and not batch["loss_mask"][:, :2].any()


def test_the_same_generator_yields_the_same_as_the_engine() -> None:
    live = source(Row(5), Row(8), Row(2))
    through = live.sample_context(32, SequenceSpecCfg(2, 6), generator=seeded(3))
    direct = live.engine.sample_batch_with_context(32, 2, 6, generator=seeded(3))
    for key in direct.keys(include_nested=True, leaves_only=True):
        assert torch.equal(through[key], direct[key]), key


@pytest.mark.spec("CTX-03")
@pytest.mark.parametrize("transform", [torch.log, lambda x: 1 / x, lambda x: x * float("nan"), torch.exp])
def test_padding_is_exactly_zero_whatever_the_transform_made_of_it(transform: Any) -> None:
    """Field case N01."""
    seen: list[torch.Tensor] = []

    def observed(values: torch.Tensor) -> torch.Tensor:
        seen.append(values.clone())
        return transform(values)  # type: ignore[no-any-return]

    batch = source(Row(1), observation_transform=observed).sample_context(4, SequenceSpecCfg(3, 2), generator=seeded(0))
    assert not batch["valid"][:, :2].any() and batch["valid"][:, 2].all()
    assert torch.equal(batch["obs"][~batch["valid"]], torch.zeros(12, 3))
    assert torch.equal(batch["obs"][batch["valid"]].nan_to_num(7.0), transform(seen[0][batch["valid"]]).nan_to_num(7.0))


def test_a_transform_may_return_nested_features_of_another_width() -> None:
    declared = {
        **SCHEMA,
        "observation": {"fields": {"sum": {"shape": [], "dtype": "float32"}, "twice": {"shape": [6]}}},
    }

    def features(values: torch.Tensor) -> TensorDict:
        return TensorDict({"sum": values.sum(-1) + 1, "twice": torch.cat([values, values], -1) + 1}, batch_size=[])

    batch = source(Row(2), schema=declared, observation_transform=features).sample_context(5, SequenceSpecCfg(3, 3))
    assert tuple(batch["obs"].batch_size) == (5, 5)
    for leaf in (batch["obs", "sum"], batch["obs", "twice"]):
        assert (leaf[~batch["valid"]] == 0).all() and (leaf[batch["valid"]] > 1).all()


def test_a_transform_that_returns_what_it_keeps_finds_it_unchanged() -> None:
    kept = torch.ones(4, 3, 3)
    live = source(Row(1), observation_transform=lambda _values: kept)
    batch = live.sample_context(4, SequenceSpecCfg(3, 1))
    assert (kept == 1).all() and batch["obs"].sum() == 12


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (torch.zeros(4, 2, 3), ValueError, r"must keep the leading axes \(4, 3\), it returned \(4, 2, 3\)"),
        (torch.zeros(4), ValueError, r"must keep the leading axes \(4, 3\), it returned \(4,\)"),
        (torch.zeros(4, 3, 2), ValueError, r"obs has the shape \(2,\) per frame, its names .* \(3,\)"),
        (torch.zeros(4, 3, 3).double(), ValueError, "obs has the dtype torch.float64.*'float32'"),
        ([0.0], TypeError, r"must return a tensor or a TensorDict, got \[0.0\] \(list\)"),
    ],
)
def test_features_that_the_schema_does_not_declare_are_refused(result: Any, error: Any, message: str) -> None:
    live = source(Row(5), observation_transform=lambda _values: result)
    with pytest.raises(error, match=message):
        live.sample_context(4, SequenceSpecCfg(2, 2))


@pytest.mark.spec("SRC-02")
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"observation": {"names": ["a", "b"]}}, r"obs has the shape \(3,\)"),
        ({"action": {**SCHEMA["action"], "names": ["x"]}}, r"actions has the shape \(2,\)"),
        ({"action": {**SCHEMA["action"], "step_dt": 0.1}}, "step_dt is 0.1 s, the engine's environment has 0.05 s"),
    ],
)
def test_a_schema_that_contradicts_the_recording_is_refused_before_anything_is_drawn(
    schema: dict[str, Any], message: str
) -> None:
    live = source(schema={**SCHEMA, **schema})
    with pytest.raises(ValueError, match=message):
        live.sample_context(2, SequenceSpecCfg(1, 1))
    assert live.engine.calls == 0


def test_an_environment_without_a_step_time_accepts_every_declaration() -> None:
    source(step_dt=None, schema={**SCHEMA, "action": {**SCHEMA["action"], "step_dt": 0.1}}).sample_context(
        1, SequenceSpecCfg(1, 1)
    )


@pytest.mark.spec("SRC-07")
def test_frame_ids_need_provenance() -> None:
    with pytest.raises(ValueError, match="frame_ids, which need include_provenance=True"):
        source(cache={"provenance": False})


def test_arguments_of_the_wrong_type_are_refused() -> None:
    engine: Any = source().engine
    with pytest.raises(TypeError, match="engine must be an OnlineDataEngine, got 3"):
        OnlineDataSource(3, schema=SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="observation_transform must be callable or None, got 3"):
        OnlineDataSource(engine, schema=SCHEMA, observation_transform=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"spec must be a SequenceSpecCfg, got \(2, 4\)"):
        OnlineDataSource(engine, schema=SCHEMA).sample_context(1, (2, 4))  # type: ignore[arg-type]


@pytest.mark.spec("CTX-04", "QUOTA-05")
def test_errors_of_the_engine_reach_the_caller_and_filters_reach_the_engine() -> None:
    live = source(Row(4), cache={"budget": 3})
    with pytest.raises(DataBudgetExhaustedError):
        live.sample_context(4, SequenceSpecCfg(1, 1))
    with pytest.raises(DataUnavailableError, match="asked for generations"):
        live.sample_context(1, SequenceSpecCfg(1, 1, generations=(2,)))
    assert live.sample_context(3, SequenceSpecCfg(1, 1, generations=(1,))).batch_size[0] == 3
    assert live.engine.cache.delivered() == {0: 3}


@pytest.mark.spec("ENG-21")
def test_times_that_differ_by_one_nanosecond_stay_different() -> None:
    """Field case N03."""
    stored = Cache(slots=2)
    stored.unix_ns.now = 1_700_000_000_000_000_000
    stored.fill(Row(3), Row(3))
    batch = OnlineDataSource(CacheEngine(stored), schema=SCHEMA).sample_context(  # type: ignore[arg-type]
        64, SequenceSpecCfg(3, 1), generator=seeded(1)
    )
    times = torch.stack(list(batch["ods_accepted_at_ns"]))
    assert set(times[batch["valid"]].tolist()) == {1_700_000_000_000_000_001, 1_700_000_000_000_000_002}
    assert (times[~batch["valid"]] == -1).all() and times.dtype == torch.int64


def test_texts_are_resolved_by_the_engine() -> None:
    live = source(Row(4))
    assert live.resolve_language(live.sample_context(2, SequenceSpecCfg(1, 2))) == {"task": [(2, 2)]}
