"""Intervals of success rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.ods.simple_bc_demo.intervals import paired_t, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (99, 100, 0.9455, 0.9982)],
)
def test_wilsons_interval_is_the_tabulated_one(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_the_interval_of_paired_differences_is_students() -> None:
    interval = paired_t([0.08, 0.21, 0.25, 0.13, 0.43])
    assert interval == pytest.approx((0.0525, 0.3875), abs=1e-4)


def test_one_pair_has_no_interval_and_equal_ones_have_no_width() -> None:
    assert paired_t([0.5]) is None
    assert paired_t([0.25, 0.25]) == (0.25, 0.25)


def test_many_pairs_get_an_interval_that_is_rather_too_wide() -> None:
    interval = paired_t([0.0, 1.0] * 20)
    assert interval is not None
    assert interval[1] - interval[0] > 2 * 1.96 * 0.5064 / 40**0.5


@given(trials=st.integers(1, 2000), data=st.data())
def test_an_interval_holds_its_rate_and_stays_within_zero_and_one(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 3), (4, 3)])
def test_what_is_no_rate_is_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        wilson(successes, trials)
