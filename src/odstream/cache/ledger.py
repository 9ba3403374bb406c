"""Budgets per episode: how often each may still be selected. Pure functions on arrays.

Letters: ``B`` batch, ``n`` eligible episodes, ``R`` rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_within_budget"]

Ints = NDArray[np.int64]


def draw_within_budget(
    remaining: Ints, batch_size: int, uniforms: Callable[[int], NDArray[np.float64]]
) -> tuple[Ints, Ints]:
    """Draw ``batch_size`` episodes one after the other, each uniformly among those that still have budget.

    Proposals are drawn for the whole batch at once; one that hits an episode whose budget earlier proposals of the
    batch have used up is rejected and drawn anew among the episodes left. The accepted sequence has the same
    distribution as drawing one by one.

    Args:
        remaining: ``[n]`` selections left, at least ``batch_size`` in all.
        batch_size: B.
        uniforms: Returns that many fresh draws in ``[0, 1)``.

    Returns:
        ``[B]`` indices into ``remaining``, and ``[n]`` how often each occurs.
    """
    alive = np.flatnonzero(remaining > 0) if not remaining.all() else None
    picks = _propose(alive, len(remaining), uniforms(batch_size))
    counts = np.bincount(picks, minlength=len(remaining))
    if (counts <= remaining).all():
        return picks, counts
    accepted = [picks[_rank_within_value(picks) < remaining[picks]]]
    missing = batch_size - len(accepted[0])
    while missing:
        left = remaining - np.bincount(np.concatenate(accepted), minlength=len(remaining))
        picks = _propose(np.flatnonzero(left > 0), len(remaining), uniforms(missing))
        accepted.append(picks[_rank_within_value(picks) < left[picks]])
        missing -= len(accepted[-1])
    picks = np.concatenate(accepted)
    return picks, np.bincount(picks, minlength=len(remaining))


def _propose(alive: Ints | None, count: int, uniforms: NDArray[np.float64]) -> Ints:
    if alive is None:
        return (uniforms * count).astype(np.int64)
    return alive[(uniforms * len(alive)).astype(np.int64)]


def _rank_within_value(picks: Ints) -> Ints:
    """Return for each pick how many equal ones precede it."""
    order = np.argsort(picks, kind="stable")
    ordered = picks[order]
    is_first = np.r_[True, ordered[1:] != ordered[:-1]]
    position = np.arange(len(picks))
    rank = np.empty_like(position)
    rank[order] = position - np.maximum.accumulate(np.where(is_first, position, 0))
    return rank
