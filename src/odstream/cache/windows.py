"""Which windows of a stored episode may be sampled, and how they are drawn. Pure functions on arrays.

Letters: ``T`` frames per row, ``R`` rows, ``B`` batch, ``N`` runs or boundaries of one row, ``c`` window length.

A *run* is a maximal range ``[start, end)`` of frames that a window may span: all valid, one continuity, and in
segment mode one accepted segment. A *boundary* is the first frame of a new segment inside a run. Both are
computed once, when a row is published; a draw then only looks at them.

A table of *intervals* has up to three columns: ``first`` (earliest start), ``end`` (a window must not reach beyond)
and, for boundaries, ``pivot`` (a frame that the window must contain together with its predecessor). The starts
of one boundary are cut off at the previous boundary, so the intervals of a row are disjoint and a start that
contains several boundaries is counted once. Cells that hold zeros allow no start.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SAMPLING_MODES",
    "Intervals",
    "SamplingMode",
    "context_bounds_mask",
    "draw_rows",
    "draw_starts",
    "intervals_of",
    "runs_of",
    "starts_per_interval",
]

SamplingMode = Literal["episode", "segment", "boundary"]
SAMPLING_MODES: tuple[SamplingMode, ...] = ("episode", "segment", "boundary")

Ints = NDArray[np.integer]
Floats = NDArray[np.float64]


class Intervals(NamedTuple):
    """Where windows may start; arrays of one shape, whose last axis runs over the intervals of a row."""

    first: Ints
    end: Ints
    pivot: Ints | None = None


def runs_of(usable: NDArray[np.bool_], *labels: Ints) -> Intervals:
    """Return the runs of one row.

    Args:
        usable: ``[T]`` frames that a window may contain.
        labels: ``[T]`` each; a change in any of them ends a run.
    """
    change = np.zeros(max(len(usable) - 1, 0), np.bool_)
    for label in labels:
        change |= label[1:] != label[:-1]
    starts, ends = usable.copy(), usable.copy()
    starts[1:] &= ~usable[:-1] | change
    ends[:-1] &= ~usable[1:] | change
    return Intervals(np.flatnonzero(starts), np.flatnonzero(ends) + 1)


def intervals_of(
    mode: SamplingMode, valid: NDArray[np.bool_], continuity_id: Ints, segment_id: Ints, accepted: NDArray[np.bool_]
) -> tuple[Intervals, int]:
    """Return the intervals of one row in ``mode``, and the longest window that any of them allows (0: none).

    Args:
        mode: In segment and boundary mode only frames of accepted segments are usable.
        valid: ``[T]`` real frames.
        continuity_id: ``[T]`` changes where time jumps; frames with a negative id are not usable.
        segment_id: ``[T]`` segment of each frame.
        accepted: ``[T]`` whether the frame's segment was accepted.
    """
    usable = valid & (continuity_id >= 0)
    if mode == "episode":
        runs = runs_of(usable, continuity_id)
        return runs, _longest(runs)
    usable &= accepted
    if mode == "segment":
        runs = runs_of(usable, continuity_id, segment_id)
        return runs, _longest(runs)
    return _boundaries(runs_of(usable, continuity_id), segment_id)


def _boundaries(runs: Intervals, segment_id: Ints) -> tuple[Intervals, int]:
    change = np.flatnonzero(segment_id[1:] != segment_id[:-1]) + 1
    run = np.searchsorted(runs.first, change, side="left") - 1  # the last run that begins before the change
    inside = run >= 0
    inside[inside] = change[inside] < runs.end[run[inside]]
    pivot, run = change[inside], run[inside]
    first, end = runs.first[run], runs.end[run]
    longest = int((end - first).max()) if len(pivot) else 0
    first[1:] = np.maximum(first[1:], pivot[:-1])
    return Intervals(first, end, pivot), longest


def _longest(runs: Intervals) -> int:
    return int((runs.end - runs.first).max()) if len(runs.end) else 0


def starts_per_interval(intervals: Intervals, length: int) -> tuple[Ints, Ints]:
    """Return the first start and the number of starts of windows of ``length`` frames, per interval."""
    first, last = intervals.first, intervals.end - length
    if intervals.pivot is not None:
        first = np.maximum(first, intervals.pivot - length + 1)
        last = np.minimum(last, intervals.pivot - 1)
    return first, np.maximum(last - first + 1, 0)


def draw_rows(eligible: Ints, uniforms: Floats) -> Ints:
    """Draw rows uniformly, with replacement.

    Args:
        eligible: ``[n]`` row numbers, n >= 1.
        uniforms: ``[B]`` in ``[0, 1)``.
    """
    return eligible[(uniforms * len(eligible)).astype(np.int64)]


def draw_starts(intervals: Intervals, length: int, uniforms: Floats) -> tuple[Ints, Ints]:
    """Draw one start per row, uniformly over all starts of that row.

    Args:
        intervals: Arrays ``[B, N]``, one line per drawn row; every line allows at least one start.
        length: Frames of a window.
        uniforms: ``[B]`` in ``[0, 1)``.

    Returns:
        ``[B]`` starts, and ``[B]`` the interval each lies in.
    """
    first, count = starts_per_interval(intervals, length)
    if first.shape[1] == 1:
        return first[:, 0] + (uniforms * count[:, 0]).astype(np.int64), np.zeros(len(first), np.int64)
    total = count.cumsum(axis=1)
    pick = (uniforms * total[:, -1]).astype(np.int64)
    interval = (total <= pick[:, None]).sum(axis=1)
    line = np.arange(len(first))
    return first[line, interval] + pick - (total - count)[line, interval], interval


def context_bounds_mask(start: Ints, low: Ints, high: Ints, length: int) -> NDArray[np.bool_]:
    """Return ``[B, length]``: which positions of windows from ``start`` lie within ``[low, high)``."""
    position = start[:, None] + np.arange(length)
    return (position >= low[:, None]) & (position < high[:, None])
