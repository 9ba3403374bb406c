"""Drawing within budgets has exactly the distribution of drawing one by one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import lcm

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from odstream.cache.ledger import draw_within_budget

Sequence = tuple[int, ...]


def one_by_one(remaining: Sequence, batch_size: int) -> dict[Sequence, Fraction]:
    """The distribution of drawing each selection uniformly among the episodes that still have budget."""
    if not batch_size:
        return {(): Fraction(1)}
    alive = [place for place, left in enumerate(remaining) if left]
    result: dict[Sequence, Fraction] = {}
    for place in alive:
        left = tuple(number - (place == other) for other, number in enumerate(remaining))
        for rest, probability in one_by_one(left, batch_size - 1).items():
            result[place, *rest] = probability / len(alive)
    return result


class Undecided(Exception):
    """The draw asks for more numbers than were decided so far."""


def all_outcomes(remaining: Sequence, batch_size: int) -> Iterator[tuple[Sequence, Fraction]]:
    """Run the implementation on every possible sequence of random numbers, as far as it can tell them apart.

    With ``n`` at most ``len(remaining)`` the numbers matter only by which of ``lcm(1..n)`` equal parts they lie in.
    """
    parts = lcm(*range(1, len(remaining) + 1))
    open_paths: list[Sequence] = [()]
    while open_paths:
        path = open_paths.pop()
        used, asked = 0, 0

        def uniforms(count: int, path: Sequence = path) -> NDArray[np.float64]:
            nonlocal used, asked
            if used + count > len(path):
                asked = count
                raise Undecided
            used += count
            return (np.array(path[used - count : used]) + 0.5) / parts

        try:
            picks, counts = draw_within_budget(np.array(remaining), batch_size, uniforms)
        except Undecided:
            open_paths += [path + more for more in product(range(parts), repeat=asked)]
            continue
        assert counts.tolist() == np.bincount(picks, minlength=len(remaining)).tolist()
        yield tuple(picks.tolist()), Fraction(1, parts ** len(path))


@pytest.mark.spec("QUOTA-07")
@pytest.mark.parametrize(
    ("remaining", "batch_size"),
    [((1, 1), 2), ((2, 1), 3), ((3, 0, 1), 4), ((1, 2, 3), 4), ((5, 5, 5), 3), ((1, 1, 1), 3), ((0, 0, 4), 4)],
)
def test_depletion_does_not_change_what_is_drawn(remaining: Sequence, batch_size: int) -> None:
    drawn: dict[Sequence, Fraction] = defaultdict(Fraction)
    for picks, probability in all_outcomes(remaining, batch_size):
        drawn[picks] += probability
    assert drawn == one_by_one(remaining, batch_size)


@pytest.mark.spec("QUOTA-02", "QUOTA-03")
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40).filter(any), st.data())
def test_a_draw_takes_what_was_asked_for_and_nobody_gives_more_than_it_has(
    remaining: list[int], data: st.DataObject
) -> None:
    batch_size = data.draw(st.integers(1, sum(remaining)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    picks, counts = draw_within_budget(np.array(remaining), batch_size, rng.random)
    assert len(picks) == batch_size == counts.sum()
    assert Counter(picks.tolist()) == Counter({place: n for place, n in enumerate(counts.tolist()) if n})
    assert (counts <= np.array(remaining)).all()
    assert remaining == np.array(remaining).tolist()


@pytest.mark.spec("QUOTA-07")
def test_rows_are_drawn_alike_until_they_are_used_up_then_those_left_alike() -> None:
    """Statistical, at the size of a real batch: 5 standard deviations, a fixed seed."""
    rng = np.random.default_rng(20)
    remaining = np.array([10, 400, 400, 400, 0])
    totals = np.zeros(5)
    for _ in range(400):
        totals += draw_within_budget(remaining, 400, rng.random)[1]
    assert totals[4] == 0 and totals[0] == 10 * 400  # used up every time, the chance of fewer than 10 is nil
    share = totals[1:4] / totals[1:4].sum()
    assert np.abs(share - 1 / 3).max() < 5 * np.sqrt(2 / 9 / totals[1:4].sum())


def test_everything_that_is_left_can_be_drawn_at_once() -> None:
    remaining = np.array([0, 1, 300, 0, 7])
    picks, counts = draw_within_budget(remaining, 308, np.random.default_rng(1).random)
    assert counts.tolist() == remaining.tolist()
    assert len(picks) == 308


def test_budgets_of_any_size_are_drawn_from() -> None:
    huge = np.array([2**61, 2**61])
    _, counts = draw_within_budget(huge, 1000, np.random.default_rng(1).random)
    assert counts.sum() == 1000 and counts.min() > 300
