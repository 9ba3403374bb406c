"""What an engine's fields become in a dataset, decided without the SDK."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from odstream.cache.layout import ANNOTATIONS, PROVENANCE, Field
from odstream.datasets.lerobot_fields import columns_of
from odstream.recording.features import plan_features

ENGINE = (*ANNOTATIONS, *PROVENANCE)


def field(*key: str, shape: tuple[int, ...] = (), dtype: str = "float32") -> Field:
    return Field(key, shape, np.dtype(dtype))


FLAT = (field("obs", shape=(3,)), field("actions", shape=(2,)), field("rewards"))


def test_fields_become_the_features_that_lerobot_users_expect() -> None:
    plan = plan_features((*FLAT, field("extra", "angle", dtype="float64"), *ENGINE), {("obs",): ["a", "b", "c"]})
    assert plan.features["observation.state"] == {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]}
    assert plan.features["action"] == {"dtype": "float32", "shape": (2,), "names": None}
    assert plan.features["next.reward"]["shape"] == plan.features["extra.angle"]["shape"] == (1,)
    assert plan.features["ods.annotations"]["names"] == [item.key[0] for item in ANNOTATIONS]
    assert plan.features["ods.provenance"]["dtype"] == "int64"
    assert plan.left_out == ()


def test_the_mapping_finds_every_field_again() -> None:
    nested = (field("obs", "arm", "q", shape=(2,)), field("obs", "time"), field("actions"), field("rewards"))
    fields = (*nested, field("extra", "deep", "flag", dtype="bool"), *ENGINE)
    plan = plan_features(fields, {})
    found = columns_of(plan.mapping, plan.features, frozenset())
    assert {column.key: (column.shape, column.dtype) for column in found} == {
        item.key: (item.shape, item.dtype) for item in fields
    }


def test_columns_hold_every_number_of_an_episode() -> None:
    plan = plan_features((*FLAT, *ENGINE), {})
    frames: dict[tuple[str, ...], Any] = {
        item.key: (np.arange(4 * max(1, int(np.prod(item.shape)))) % 2).reshape(4, *item.shape).astype(item.dtype)
        for item in (*FLAT, *ENGINE)
    }
    frames["ods_run_id",] = np.full(4, 2**62 - 1)
    columns = plan.columns(frames)
    assert {name: values.shape for name, values in columns.items()} == {
        name: (4, *feature["shape"]) for name, feature in plan.features.items()
    }
    assert columns["ods.provenance"][:, 0].tolist() == [2**62 - 1] * 4
    assert columns["ods.annotations"][:, 0].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [
        (field("camera", shape=(4, 4, 3), dtype="uint8"), r"camera \(an image; only numbers are recorded\)"),
        (field("phase", dtype="complex64"), r"phase \(LeRobot has no complex64\)"),
        (field("tensor", shape=(1, 1, 1, 1, 1, 1)), r"tensor \(more than 5 axes\)"),
    ],
)
def test_what_lerobot_cannot_hold_is_left_out_with_the_reason(unfit: Field, reason: str) -> None:
    plan = plan_features((*FLAT, unfit, *ENGINE), {})
    assert unfit.key not in plan.sources.values()
    with pytest.raises(ValueError, match=rf"nothing is left to record of observations or actions: \['{reason}'\]"):
        plan_features((unfit, field("actions", shape=(2,)), *ENGINE), {})


def test_a_run_without_provenance_and_names_that_lerobot_refuses_are_refused() -> None:
    with pytest.raises(ValueError, match="needs include_provenance=True; it is False"):
        plan_features((*FLAT, *ANNOTATIONS), {})
    for name in ("a/b", "a.b"):
        with pytest.raises(ValueError, match="cannot be recorded: names in LeRobot must not hold"):
            plan_features((*FLAT, field(name), *ENGINE), {})
