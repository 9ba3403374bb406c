"""Episodes of every kind: short, full-length, with gaps, jumps of time, segments accepted and not."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fakes.cache import Row

STEPS = st.one_of(st.integers(1, 12), st.integers(60, 80))
"""Frames per row: below and above the largest number of guard frames, which is 64."""


@st.composite
def episodes(draw: st.DrawFn, steps: int) -> Row:
    """An episode of at most ``steps`` frames."""
    length = draw(st.one_of(st.just(steps), st.integers(1, steps)))
    frames = st.integers(0, length - 1)
    segments = tuple(sorted(draw(st.sets(st.integers(1, length - 1), max_size=4)))) if length > 1 else ()
    accepted = tuple(draw(st.booleans()) or draw(st.booleans()) for _ in range(len(segments) + 1))
    jumps = draw(st.sets(frames, max_size=3))
    ids = draw(st.lists(st.integers(-2, 3), min_size=len(jumps) + 1, max_size=len(jumps) + 1))
    return Row(
        length=length,
        segments=segments,
        accepted=accepted if draw(st.booleans()) else (),
        gaps=tuple(sorted(draw(st.sets(frames, max_size=3)))),
        continuity=tuple(ids[sum(jump <= t for jump in jumps)] for t in range(length)) if draw(st.booleans()) else (),
        task=draw(st.integers(-1, 2)),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
    )
