"""Checks of single settings: what passes, what does not, and in which words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from odstream.validation import INT64_MAX, check_choice, check_finite, check_int


@pytest.mark.parametrize("value", [1, 2, INT64_MAX])
def test_an_int_in_range_is_returned_as_it_is(value: int) -> None:
    assert check_int("n", value, 1) == value


@pytest.mark.parametrize("value", [True, False, 1.0, math.nan, "1", None, [1], np.float64(1), 1 + 0j])
def test_only_an_int_is_an_int(value: object) -> None:
    with pytest.raises(TypeError, match=r"^n must be an int, got .+ \(.+\)$"):
        check_int("n", value, 1)


@pytest.mark.parametrize(
    ("value", "maximum", "message"),
    [
        (0, INT64_MAX, "n must be at least 1, got 0"),
        (-(2**70), INT64_MAX, f"n must be at least 1, got {-(2**70)}"),
        (2**63, INT64_MAX, f"n must be at least 1 and at most {INT64_MAX}, got {2**63}"),
        (0, 5, "n must be at least 1 and at most 5, got 0"),
        (6, 5, "n must be at least 1 and at most 5, got 6"),
    ],
)
def test_an_int_out_of_range_is_told_the_range(value: int, maximum: int, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_int("n", value, 1, maximum)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [1, 0.5, 5e-324, 1.7e308, np.float64(2)])
def test_a_finite_number_is_returned_as_a_float(value: float) -> None:
    assert check_finite("t", value) == value and isinstance(check_finite("t", value), float)


@pytest.mark.parametrize("value", [True, "1", None, 1j, [1.0]])
def test_only_a_number_is_a_number(value: object) -> None:
    with pytest.raises(TypeError, match="^t must be a number, got "):
        check_finite("t", value)


@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1, math.nan, math.inf, -math.inf, pytest.param(10**400, id="huge")])
def test_a_number_that_is_not_finite_or_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="^t must be finite and greater than 0, got "):
        check_finite("t", value)


def test_the_bound_itself_is_excluded() -> None:
    assert check_finite("t", 1.5, above=1) == 1.5
    with pytest.raises(ValueError, match="greater than 1, got 1"):
        check_finite("t", 1, above=1)


@pytest.mark.parametrize("value", ["c", "A", "", None, 1, ["a"], True])
def test_a_choice_is_one_of_those_offered(value: object) -> None:
    assert check_choice("mode", "a", ("a", "b")) == "a"
    with pytest.raises(ValueError, match="^mode must be one of 'a', 'b', got "):
        check_choice("mode", value, ("a", "b"))
