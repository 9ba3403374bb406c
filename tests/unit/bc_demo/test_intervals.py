"""Intervals of success rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.ods.simple_bc_demo.intervals import newcombe, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (99, 100, 0.9455, 0.9982)],
)
def test_wilsons_interval_is_the_tabulated_one(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_newcombes_interval_is_the_published_one() -> None:
    # Newcombe 1998, method 10, example (a): 56/70 against 48/80.
    assert newcombe((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)


@given(trials=st.integers(1, 2000), data=st.data())
def test_an_interval_holds_its_rate_and_stays_within_zero_and_one(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 3), (4, 3)])
def test_what_is_no_rate_is_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        wilson(successes, trials)
