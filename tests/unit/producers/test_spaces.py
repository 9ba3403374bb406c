"""From spaces to fields, and what may be put into them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from odstream.errors import EnvironmentContractError
from odstream.producers.base import FieldSpec
from odstream.producers.spaces import (
    Leaf,
    action_leaf,
    action_width,
    check_keys,
    merge,
    observation_leaves,
    read,
    require_finite,
)
from tests.fakes.environments import NestedEnv


def box(shape: tuple[int, ...] = (2,), dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(0, 1, shape, dtype)


def leaf(shape: tuple[int, ...] = (2,), dtype: Any = np.float32) -> Leaf:
    return Leaf(("obs", "q"), (), FieldSpec(shape=shape, dtype=np.dtype(dtype)))


def test_a_flat_observation_is_one_field() -> None:
    (only,) = observation_leaves(box((3,), np.float64))
    assert (only.key, only.spec.shape, only.spec.dtype) == (("obs",), (3,), np.float64)


def test_nested_spaces_become_field_paths_and_every_dtype_is_kept() -> None:
    found = {
        leaf.key: (leaf.spec.shape, leaf.spec.dtype.name) for leaf in observation_leaves(NestedEnv().observation_space)
    }
    assert found == {
        ("obs", "arm", "q"): ((2,), "float64"),
        ("obs", "arm", "on"): ((2,), "int8"),
        ("obs", "camera"): ((4, 4, 3), "uint8"),
        ("obs", "pair", "0"): ((), "float32"),
        ("obs", "pair", "1"): ((), "int64"),
    }


def test_foreign_byte_order_becomes_native() -> None:
    assert observation_leaves(box(dtype=np.dtype(">f4")))[0].spec.dtype == np.dtype("=f4")


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (box((0,)), "obs has shape"),
        (spaces.Dict({"arm": spaces.Dict({"q": box((3, 0))})}), "obs.arm.q has shape"),
        (spaces.Dict({"arm": spaces.Dict({})}), "obs.arm is an empty Dict"),
        (spaces.Tuple(()), "obs is an empty Tuple"),
        (spaces.Dict({"say": spaces.Text(5)}), "obs.say is a Text space"),
        (spaces.Sequence(box()), "obs is a Sequence space"),
    ],
)
def test_a_field_that_cannot_be_stored_is_refused_by_name(space: gym.Space[Any], name: str) -> None:
    """Field case N07."""
    with pytest.raises(EnvironmentContractError, match=name):
        observation_leaves(space)


@pytest.mark.parametrize("space", [box((0,)), spaces.Dict({"a": box()}), spaces.Text(3)])
def test_an_action_that_cannot_be_stored_is_refused_by_name(space: gym.Space[Any]) -> None:
    """Field case N07."""
    with pytest.raises(EnvironmentContractError, match="actions"):
        action_leaf(space)


@pytest.mark.parametrize(
    ("space", "shape", "width"),
    [
        (box((7,)), (7,), 7),
        (box((2, 3)), (2, 3), 6),
        (spaces.Discrete(4), (), 1),
        (spaces.MultiDiscrete([3, 3]), (2,), 2),
    ],
)
def test_the_action_width_counts_numbers(space: gym.Space[Any], shape: tuple[int, ...], width: int) -> None:
    assert action_leaf(space).spec.shape == shape
    assert action_width(action_leaf(space)) == width


def test_a_fitting_array_is_not_copied() -> None:
    value = np.zeros(2, np.float32)
    assert read(leaf(), value) is value


def test_a_float_of_another_width_is_converted() -> None:
    assert read(leaf(), [0.5, 1.5]).dtype == np.float32
    assert read(leaf((), np.int64), 7) == 7


@pytest.mark.parametrize("value", [np.zeros(3), np.zeros((1, 2)), 0.0, [[1.0], [2.0, 3.0]]])
def test_nothing_is_broadcast(value: Any) -> None:
    with pytest.raises(EnvironmentContractError, match="the expert returned .*obs.q"):
        read(leaf(), value, whose="the expert")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.int64, [0.5, 0.0]), (np.uint8, [1.0, 2.0]), (np.float32, ["a", "b"]), (np.float32, [None, 1])],
)
def test_a_dtype_that_would_lose_its_meaning_is_refused(dtype: Any, value: Any) -> None:
    with pytest.raises(EnvironmentContractError, match="obs.q as"):
        read(leaf(dtype=dtype), value)


def test_an_integer_that_does_not_fit_is_refused_and_shown() -> None:
    assert read(leaf(dtype=np.uint8), [0, 255]).tolist() == [0, 255]
    with pytest.raises(EnvironmentContractError, match=r"256.*does not fit uint8"):
        read(leaf(dtype=np.uint8), [0, 256])


def test_a_part_that_is_missing_is_named() -> None:
    nested = Leaf(("obs", "arm", "q"), ("arm", "q"), FieldSpec(shape=(2,), dtype=np.dtype(np.float32)))
    with pytest.raises(EnvironmentContractError, match="returned no obs.arm.q"):
        read(nested, {"arm": {}})


def test_undeclared_and_missing_keys_are_refused() -> None:
    space = spaces.Dict({"arm": spaces.Dict({"q": box()}), "pair": spaces.Tuple((box(), box()))})
    good = {"arm": {"q": 0}, "pair": (0, 0)}
    check_keys(space, good)
    for bad, name in (
        ({**good, "extra": 1}, "obs has keys"),
        ({**good, "arm": {}}, "obs.arm has keys"),
        ({**good, "pair": (0,)}, "obs.pair must be a tuple of 2"),
        (np.zeros(2), "obs must be a mapping"),
    ):
        with pytest.raises(EnvironmentContractError, match=name):
            check_keys(space, bad)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_with_its_place(value: float) -> None:
    frames = np.zeros((4, 2), np.float32)
    frames[3, 1] = value
    with pytest.raises(EnvironmentContractError, match=rf"obs.q is {value} at element \(3, 1\) somewhere"):
        require_finite(leaf(), frames, "somewhere")


def test_integers_are_always_finite() -> None:
    require_finite(leaf(dtype=np.uint8), np.full(2, 255, np.uint8), "")


def test_merging_takes_only_the_rows_that_were_reset() -> None:
    space = spaces.Dict({"a": box((2,)), "b": spaces.Tuple((spaces.Discrete(9),))})
    old = {"a": np.zeros((3, 2)), "b": (np.array([1, 2, 3]),)}
    new = {"a": np.ones((3, 2)), "b": (np.array([7, 8, 9]),)}
    merged = merge(space, new, old, np.array([False, True, False]))
    assert merged["a"].tolist() == [[0, 0], [1, 1], [0, 0]]
    assert merged["b"][0].tolist() == [1, 8, 3]
