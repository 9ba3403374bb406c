"""What a schema must say, what it is compared with, and when two are the same."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from odstream.datasets import data_schema_fingerprint, require_same_schema, validate_data_schema
from odstream.datasets.schema import check_features, features_of

pytestmark = pytest.mark.spec("SRC-02")


def schema(**action: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "observation": {"names": ["a_rad", "b_rad"], "dtype": "float32"},
        "action": {"names": ["x_m"], "semantics": "policy_request", "step_dt": 0.05, **action},
    }


def changed(place: str, value: Any) -> dict[str, Any]:
    """Set or, for None, remove what lies at a dotted place."""
    result = copy.deepcopy(schema())
    *path, last = place.split(".")
    branch = result
    for name in path:
        branch = branch[name]
    if value is None:
        del branch[last]
    else:
        branch[last] = value
    return result


def test_a_checked_schema_is_a_detached_copy_in_plain_values() -> None:
    given = schema(limits=(-1, 1), unit="m")
    checked = validate_data_schema(given)
    given["action"]["names"].append("y_m")
    assert checked["action"] == {
        "names": ["x_m"],
        "semantics": "policy_request",
        "step_dt": 0.05,
        "limits": [-1, 1],
        "unit": "m",
    }


def test_a_representation_says_what_an_action_is_as_well() -> None:
    given = schema(representation="joint delta")
    del given["action"]["semantics"]
    assert validate_data_schema(given)["action"]["representation"] == "joint delta"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("observation", None, r"schema\.observation is missing"),
        ("action", None, r"schema\.action is missing"),
        ("action.semantics", None, r"by 'semantics' or 'representation'; got neither"),
        ("action.semantics", "  ", r"schema\.action\.semantics must be a non-blank string"),
        ("action.step_dt", 0, r"schema\.action\.step_dt \(seconds\) must be finite and greater than 0, got 0"),
        ("action.step_dt", -0.1, "greater than 0, got -0.1"),
        ("action.step_dt", math.inf, r"schema\.action\.step_dt must be finite, got inf"),
        ("action.names", ["x", "x"], r"schema\.action\.names must be unique, .*\['x'\]"),
        ("action.names", [], r"schema\.action\.names must be a list of at least one name"),
        ("action.names", {"x": 0}, r"schema\.action\.names must be a list"),
        ("action.names", ["x", ""], r"schema\.action\.names\[1\] must be a non-blank string"),
        ("action.names", None, "must declare its width by 'names', 'shape' or 'fields'"),
        ("action.shape", [2], "contradicts itself: 1 names, shape"),
        ("action.shape", [0], r"schema\.action\.shape\[0\] must be at least 1"),
        ("action.dtype", "float33", r"schema\.action\.dtype must be torch's name"),
        ("action.dtype", "nn", r"schema\.action\.dtype must be torch's name"),
        ("action.fields", {"q": {"names": ["a"]}}, "has 'fields', so names must stand in them"),
        ("action.limits", [1.0, math.nan], r"schema\.action\.limits\[1\] must be finite, got nan"),
        ("observation.timing", "post_action", "must be 'pre_action', got 'post_action'"),
        ("observation.version", 0, r"schema\.observation\.version must be at least 1"),
        ("version", "", r"schema\.version must be a non-blank string"),
    ],
)
def test_a_schema_that_does_not_say_enough_is_refused(place: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate_data_schema(changed(place, value))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("action.step_dt", True, r"step_dt \(seconds\) must be a number, got True"),
        ("action.step_dt", "0.05", "must be a number, got '0.05'"),
        ("action.terms", {1: "x"}, r"keys of schema\.action\.terms must be strings, got 1"),
        ("action.terms", {"x"}, r"schema\.action\.terms must be a plain JSON value"),
        ("observation", [1], r"schema\.observation must be a mapping"),
        ("version", True, r"schema\.version must be an int, got True"),
    ],
)
def test_values_of_the_wrong_type_are_refused(place: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        validate_data_schema(changed(place, value))


def test_what_is_no_mapping_is_no_schema() -> None:
    with pytest.raises(TypeError, match=r"schema must be a mapping, got \[1\]"):
        validate_data_schema([1])  # type: ignore[arg-type]


# ---------------------------------------------------------------- compared with data


def batch(observation: torch.Tensor | dict[str, Any]) -> TensorDict:
    if isinstance(observation, dict):
        observation = TensorDict(observation, batch_size=(2, 3))  # type: ignore[assignment]
    return TensorDict({"obs": observation}, batch_size=(2, 3))


def check(declaration: dict[str, Any], observation: torch.Tensor | dict[str, Any]) -> None:
    declared = validate_data_schema({**schema(), "observation": declaration})
    check_features(declared, "observation", features_of(batch(observation), "obs"))


def test_declarations_that_fit_are_accepted() -> None:
    check({"names": ["a", "b"], "dtype": "float32"}, torch.zeros(2, 3, 2))
    check({"shape": [], "dtype": "int64"}, torch.zeros(2, 3, dtype=torch.int64))
    check({"shape": [3, 8, 8]}, torch.zeros(2, 3, 3, 8, 8, dtype=torch.uint8))
    nested = {"arm": {"fields": {"q": {"names": ["a"]}}}, "image": {"shape": [2, 2]}}
    check({"fields": nested}, {"arm": {"q": torch.zeros(2, 3, 1)}, "image": torch.zeros(2, 3, 2, 2)})


@pytest.mark.parametrize(
    ("declaration", "observation", "message"),
    [
        ({"names": ["a", "b"]}, torch.zeros(2, 3, 3), r"obs has the shape \(3,\) per frame, its names .* \(2,\)"),
        ({"shape": [1]}, torch.zeros(2, 3), r"obs has the shape \(\) per frame, its shape .* \(1,\)"),
        ({"shape": []}, torch.zeros(2, 3, 1), r"obs has the shape \(1,\)"),
        ({"names": ["a"], "dtype": "float64"}, torch.zeros(2, 3, 1), "obs has the dtype torch.float32.*'float64'"),
        ({"names": ["a"]}, {"q": torch.zeros(2, 3, 1)}, r"declares the fields \['\(flat\)'\], obs has \['q'\]"),
        (
            {"fields": {"q": {"names": ["a"]}, "p": {"names": ["a"]}}},
            {"q": torch.zeros(2, 3, 1)},
            r"declares the fields \['p', 'q'\], obs has \['q'\]",
        ),
        ({"fields": {"q": {"names": ["a"]}}}, {"q": torch.zeros(2, 3, 2)}, r"obs\.q has the shape \(2,\)"),
    ],
)
def test_data_that_differs_from_its_declaration_is_refused(
    declaration: dict[str, Any], observation: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check(declaration, observation)


# ---------------------------------------------------------------- identity


@pytest.mark.spec("SRC-03")
def test_a_fingerprint_ignores_the_order_of_keys_and_nothing_else() -> None:
    given = schema(unit="m")
    reordered = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value for key, value in given.items()
    }
    assert data_schema_fingerprint(dict(reversed(reordered.items()))) == data_schema_fingerprint(given)
    different = [
        changed("version", 2),
        changed("version", "1"),
        changed("observation.names", ["b_rad", "a_rad"]),
        changed("observation.version", 1),
        changed("action.step_dt", 0.1),
        changed("action.semantics", "expert_controller_command"),
        schema(unit="mm"),
    ]
    assert len({data_schema_fingerprint(one) for one in [given, *different]}) == len(different) + 1


@pytest.mark.spec("SRC-03")
def test_a_fingerprint_is_the_same_in_every_version() -> None:
    assert data_schema_fingerprint(schema()) == "ce04e5643eba59d42637f2b5c812291332ef977666dc27ec8f324e262f69bc4c"
    assert data_schema_fingerprint(changed("action.step_dt", 1)) == data_schema_fingerprint(
        changed("action.step_dt", 1.0)
    )


@pytest.mark.spec("SRC-03")
def test_only_a_complete_schema_has_a_fingerprint() -> None:
    with pytest.raises(ValueError, match=r"schema\.action is missing"):
        data_schema_fingerprint(changed("action", None))


def test_mixing_sources_of_different_meaning_is_refused() -> None:
    """Field case X08."""
    require_same_schema(schema(), schema(), dict(reversed(schema().items())))
    other = changed("observation.names", ["a_rad", "b_deg"])
    with pytest.raises(ValueError, match=r"schema\.observation\.names\[1\]: 'b_rad' in the first, 'b_deg' in number 3"):
        require_same_schema(schema(), schema(), other)
    with pytest.raises(ValueError, match=r"schema\.action\.unit: nothing in the first, 'm' in number 2"):
        require_same_schema(schema(), schema(unit="m"))
    with pytest.raises(ValueError, match=r"schema\.version: 1 in the first, '1' in number 2"):
        require_same_schema(schema(), changed("version", "1"))
