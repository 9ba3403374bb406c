"""What a producer reports against what the engine was configured for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from odstream.cache.layout import ANNOTATIONS, PROVENANCE, CacheLayout
from odstream.engine import OnlineDataEngineCfg
from odstream.engine.contract import layout_for
from odstream.errors import EnvironmentContractError
from odstream.producers.base import FieldKey, FieldSpec, RolloutSpec

FLOAT32 = np.dtype(np.float32)
OBS, ACTIONS, REWARDS = ("obs",), ("actions",), ("rewards",)


def field(*shape: int, dtype: Any = FLOAT32) -> FieldSpec:
    return FieldSpec(shape=shape, dtype=np.dtype(dtype))


def layout(
    extra: dict[Any, FieldSpec] | None = None, *, without: FieldKey = (), spec: dict[str, Any] | None = None, **cfg: Any
) -> CacheLayout:
    fields = {OBS: field(5), ACTIONS: field(7), REWARDS: field()} | (extra or {})
    fields.pop(without, None)
    report = {"num_envs": 2, "fields": fields, "state_dim": 5, "action_dim": 7} | (spec or {})
    return layout_for(OnlineDataEngineCfg(**({"buffer_size": 4} | cfg)), RolloutSpec(**report))


@pytest.mark.spec("ENG-03", "ENG-11", "ENG-25")
def test_the_cache_holds_what_is_recorded_and_the_annotations() -> None:
    made = layout(max_episode_steps=30, lifecycle_event_capacity=9, language_buffer_bytes=77)
    assert (made.slots, made.spare_rows, made.max_episode_steps) == (4, 2, 30)
    assert (made.event_capacity, made.language_bytes) == (9, 77)
    assert [item.key for item in made.fields[:3]] == [OBS, ACTIONS, REWARDS]
    assert made.fields[3:] == ANNOTATIONS
    assert layout(include_provenance=True).fields[3:] == (*ANNOTATIONS, *PROVENANCE)


@pytest.mark.spec("ENG-19")
@pytest.mark.parametrize(
    ("cfg", "spec", "message"),
    [
        ({"state_dim": 6}, {}, "state_dim is configured as 6, the environment has a state of width 5"),
        ({"state_dim": 5, "action_dim": 7}, {"state_dim": None}, "state_dim is .* 5, .* has no flat state vector"),
        ({"action_dim": 6}, {}, "^action_dim is configured as 6, the environment's actions have width 7"),
        ({"state_dim": 5}, {}, r"action_dim \(by default state_dim\) is configured as 5, .* width 7"),
    ],
)
def test_widths_are_checked_against_the_live_environment(
    cfg: dict[str, Any], spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvironmentContractError, match=message):
        layout(spec=spec, **cfg)


@pytest.mark.spec("ENG-19")
@pytest.mark.parametrize("cfg", [{}, {"state_dim": 5, "action_dim": 7}, {"action_dim": 7}])
def test_widths_that_agree_or_are_not_given_pass(cfg: dict[str, int]) -> None:
    layout(**cfg)
    layout(state_dim=5, spec={"action_dim": 5})


@pytest.mark.parametrize(
    ("spec", "cfg", "message"),
    [
        ({"num_envs": 5}, {}, "buffer_size must be at least the producer's num_envs=5, got 4"),
        ({"num_envs": 0}, {}, "at least one environment, it reports 0"),
        ({"num_envs": -1}, {}, "at least one environment, it reports -1"),
        ({"num_envs": 2}, {"gym_config": {"num_envs": 3}}, r"gym_config\['num_envs'\] is 3, .* runs 2 at once"),
    ],
)
def test_the_number_of_environments_must_fit(spec: dict[str, Any], cfg: dict[str, Any], message: str) -> None:
    """Field case Q15."""
    with pytest.raises(EnvironmentContractError, match=message):
        layout(spec=spec, **cfg)


@pytest.mark.parametrize("num_envs", [1, 2, 4])
def test_as_many_slots_as_environments_are_enough(num_envs: int) -> None:
    """Field case Q15."""
    assert layout(spec={"num_envs": num_envs}, gym_config={"num_envs": num_envs}).rows == 4 + num_envs


@pytest.mark.parametrize(
    ("extra", "without", "message"),
    [
        ({}, OBS, "must record 'obs'"),
        ({}, ACTIONS, "must record 'actions'"),
        ({}, REWARDS, "must record 'rewards'"),
        ({("actions", "arm"): field(2)}, ACTIONS, "must record 'actions'"),
        ({("actions", "arm"): field(2)}, (), "actions.arm lies below another field"),
        ({("obs", "arm"): field(2)}, (), "obs.arm lies below another field"),
        ({("obs", "a", "b", "c"): field(2), ("obs", "a"): field(2)}, OBS, "obs.a.b.c lies below another field"),
        ({("valid",): field()}, (), "valid is a name the engine fills itself"),
        ({("segment_id", "mine"): field()}, (), "segment_id.mine is a name"),
        ({("loss_mask",): field()}, (), "loss_mask is a name"),
        ({("ods_run_id",): field()}, (), "ods_run_id is a name"),
        ({("obs", "empty"): field(3, 0)}, OBS, r"obs.empty must not be empty, got shape \(3, 0\)"),
        ({OBS: field(-1)}, (), r"obs must not be empty, got shape \(-1,\)"),
        ({ACTIONS: field(0)}, (), r"actions must not be empty, got shape \(0,\)"),
    ],
)
def test_fields_that_cannot_be_stored_are_refused_by_name(
    extra: dict[FieldKey, FieldSpec], without: FieldKey, message: str
) -> None:
    """Field case N07."""
    with pytest.raises(EnvironmentContractError, match=message):
        layout(extra, without=without)


def test_names_may_share_a_beginning_and_contain_dots() -> None:
    """Field case L07: a width of one stays a width of one, a scalar a scalar."""
    keys: dict[FieldKey, FieldSpec] = {
        ("obs", "a"): field(1),
        ("obs", "ab"): field(),
        ("obs", "a.b"): field(8),
        ("obs", "c", "b"): field(8),
        ("observed",): field(3),
        ("small",): field(8),
    }
    made = layout(keys, without=OBS)
    shapes = {item.key: item.shape for item in made.fields}
    assert {key: shapes[key] for key in keys} == {key: spec.shape for key, spec in keys.items()}
    assert len({array.offset for array in made.arrays.values()}) == len(made.arrays)


@pytest.mark.parametrize("code", "?bBhHiIlLqQefdFD")
def test_every_dtype_that_torch_has_is_stored_as_it_is(code: str) -> None:
    made = layout({OBS: field(2, dtype=code)})
    assert made.fields[0].dtype == np.dtype(code)


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble", ">f4", ">i8", "O", "S4", "U4", "M8[ns]", "m8[s]", "V4"])
def test_every_other_dtype_is_refused_before_anything_is_recorded(dtype: str) -> None:
    with pytest.raises(EnvironmentContractError, match="obs must be bool, integer, float or complex .* got dtype"):
        layout({OBS: field(2, dtype=dtype)})
