"""Runs, boundaries, draws and context masks, in numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from odstream.cache.windows import (
    Intervals,
    SamplingMode,
    context_bounds_mask,
    draw_rows,
    draw_starts,
    intervals_of,
    runs_of,
    starts_per_interval,
)
from tests.fakes.cache import Row

HALVES = Row(length=10, segments=(5,))
THIRDS = Row(length=9, segments=(3, 6))


def starts(row: Row, mode: SamplingMode, length: int) -> list[int]:
    intervals, _ = tables(row, mode)
    first, count = starts_per_interval(intervals, length)
    return [start + k for start, n in zip(first.tolist(), count.tolist(), strict=True) for k in range(n)]


def tables(row: Row, mode: SamplingMode) -> tuple[Intervals, int]:
    frames = range(row.length)
    return intervals_of(
        mode,
        np.array([row.valid(t) for t in frames], bool),
        np.array([row.continuity_of(t) for t in frames]),
        np.array([row.segment_of(t) for t in frames]),
        np.array([row.accepted_at(t) for t in frames], bool),
    )


@pytest.mark.spec("ENG-12", "ENG-15")
@pytest.mark.parametrize(
    ("row", "mode", "length", "wanted"),
    [
        (Row(length=2), "episode", 1, [0, 1]),
        (Row(length=4), "episode", 4, [0]),
        (Row(length=4), "episode", 5, []),
        (Row(length=8, gaps=(3,)), "episode", 3, [0, 4, 5]),
        (Row(length=5, continuity=(0, 0, 0, 1, 1)), "episode", 2, [0, 1, 3]),
        (Row(length=5, continuity=(0, 0, 0, 1, 1)), "episode", 1, [0, 1, 2, 3, 4]),
        (HALVES, "boundary", 4, [2, 3, 4]),
        (HALVES, "boundary", 2, [4]),
        (HALVES, "boundary", 10, [0]),
        (HALVES, "segment", 4, [0, 1, 5, 6]),
        (HALVES, "episode", 4, [0, 1, 2, 3, 4, 5, 6]),
        (Row(length=10), "boundary", 2, []),
    ],
)
def test_exactly_these_starts_exist(row: Row, mode: SamplingMode, length: int, wanted: list[int]) -> None:
    """Field cases W01 and W17."""
    assert starts(row, mode, length) == wanted


@pytest.mark.parametrize(
    ("row", "mode", "length", "wanted"),
    [
        (Row(length=6, continuity=(0, 0, -1, -1, 0, 0)), "episode", 2, [0, 4]),
        (Row(length=3, continuity=(-1, -1, -1)), "episode", 1, []),
        (Row(length=10, segments=(5,), accepted=(True, False)), "segment", 4, [0, 1]),
        (Row(length=10, segments=(5,), accepted=(True, False)), "boundary", 2, []),
        (Row(length=10, segments=(5,), accepted=(True, False)), "episode", 10, [0]),
        (Row(length=9, segments=(3, 6), accepted=(True, False, True)), "boundary", 2, []),
        (Row(length=9, segments=(3, 6), gaps=(3,)), "boundary", 2, [5]),
        (Row(length=9, segments=(3, 6), continuity=(0, 0, 0, 1, 1, 1, 1, 1, 1)), "boundary", 2, [5]),
    ],
)
def test_frames_of_no_use_end_every_window(row: Row, mode: SamplingMode, length: int, wanted: list[int]) -> None:
    assert starts(row, mode, length) == wanted


@pytest.mark.spec("ENG-15")
def test_a_window_over_several_boundaries_is_counted_once() -> None:
    assert starts(THIRDS, "boundary", 5) == [0, 1, 2, 3, 4]
    assert starts(THIRDS, "boundary", 2) == [2, 5]
    assert tables(THIRDS, "boundary")[1] == 9


@pytest.mark.parametrize("frames", [0, 1, 5])
def test_nothing_usable_means_no_run(frames: int) -> None:
    runs = runs_of(np.zeros(frames, bool), np.zeros(frames, int))
    assert len(runs.first) == len(runs.end) == 0


def test_cells_of_zeros_allow_no_start() -> None:
    zeros = np.zeros((1, 3), np.int32)
    for length in (1, 2, 100):
        assert not starts_per_interval(Intervals(zeros, zeros), length)[1].any()
        assert not starts_per_interval(Intervals(zeros, zeros, zeros), length)[1].any()


LARGEST_UNIFORM = np.nextafter(1.0, 0.0)


@pytest.mark.spec("ENG-13")
@pytest.mark.parametrize("count", [1, 2, 3, 7, 2048, 2**31 - 1])
def test_the_last_row_is_reachable_and_nothing_beyond_it(count: int) -> None:
    """Field case S07: also for the smallest and the largest number that a generator can return."""
    eligible = np.broadcast_to(np.int64(5), count) if count > 5000 else np.arange(count) + 5
    drawn = draw_rows(eligible, np.array([0.0, LARGEST_UNIFORM]))
    assert drawn.tolist() == [int(eligible[0]), int(eligible[-1])]


@pytest.mark.spec("ENG-13")
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("frames", [1, 2, 3, 300, 2**31 - 1])
def test_the_last_frame_is_reachable_and_nothing_beyond_it(columns: int, frames: int) -> None:
    """Field case W01."""
    first, end = np.zeros((2, columns), np.int32), np.zeros((2, columns), np.int32)
    end[:, -1] = frames
    start, interval = draw_starts(Intervals(first, end), 1, np.array([0.0, LARGEST_UNIFORM]))
    assert start.tolist() == [0, frames - 1]
    assert interval.tolist() == [columns - 1] * 2


def test_a_draw_never_lands_in_an_interval_that_is_too_short() -> None:
    intervals = Intervals(np.array([[0, 4, 7, 20]]), np.array([[3, 6, 17, 22]]))
    lines = Intervals(*(np.repeat(column, 1000, axis=0) for column in intervals[:2]))
    start, interval = draw_starts(lines, 4, np.arange(1000) / 1000)
    assert set(interval.tolist()) == {2}
    assert sorted(set(start.tolist())) == list(range(7, 14))


@pytest.mark.spec("CTX-02")
def test_a_context_is_bounded_on_both_sides() -> None:
    mask = context_bounds_mask(np.array([-2, 3]), np.array([0, 4]), np.array([2, 6]), 5)
    assert mask.tolist() == [[False, False, True, True, False], [False, True, True, False, False]]
