"""Chunks against plain loops over frames: which exist, how likely each is, what each holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odstream.cache.windows import SAMPLING_MODES, Intervals, draw_starts, intervals_of, starts_per_interval
from odstream.errors import DataUnavailableError
from tests.fakes.cache import Cache, Row, chunk, draw_all, starts_of
from tests.property.episodes import STEPS, episodes

MODES = st.sampled_from(SAMPLING_MODES)


def lengths(mode: str, steps: int) -> st.SearchStrategy[int]:
    return st.integers(2 if mode == "boundary" else 1, max(steps, 2))


def tables_of(row: Row, mode: str) -> tuple[Intervals, int]:
    frames = range(row.length)
    return intervals_of(
        mode,  # type: ignore[arg-type]
        np.array([row.valid(t) for t in frames]),
        np.array([row.continuity_of(t) for t in frames]),
        np.array([row.segment_of(t) for t in frames]),
        np.array([row.accepted_at(t) for t in frames]),
    )


@pytest.mark.spec("ENG-12", "ENG-15")
@settings(max_examples=300)
@given(st.data(), STEPS, MODES)
def test_the_tables_allow_exactly_the_windows_of_real_joined_frames(data: st.DataObject, steps: int, mode: str) -> None:
    row = data.draw(episodes(steps))
    length = data.draw(lengths(mode, steps))
    intervals, longest = tables_of(row, mode)
    first, count = starts_per_interval(intervals, length)
    starts = [start + k for start, n in zip(first.tolist(), count.tolist(), strict=True) for k in range(n)]
    assert starts == starts_of(row, length, mode)  # each once, in order: also those that contain several boundaries
    assert (length <= longest) == bool(starts)


@pytest.mark.spec("ENG-13")
@settings(max_examples=200)
@given(st.data(), STEPS, MODES)
def test_every_start_of_a_row_is_equally_likely(data: st.DataObject, steps: int, mode: str) -> None:
    row = data.draw(episodes(steps))
    length = data.draw(lengths(mode, steps))
    wanted = starts_of(row, length, mode)
    if not wanted:
        return
    intervals, _ = tables_of(row, mode)
    lines = Intervals(*(None if column is None else np.tile(column, (3 * len(wanted), 1)) for column in intervals))
    edges = np.arange(len(wanted)) / len(wanted)
    uniforms = np.stack([edges, edges + 0.5 / len(wanted), np.nextafter(edges + 1 / len(wanted), 0) - 1e-12], axis=1)
    starts, interval = draw_starts(lines, length, np.abs(uniforms.ravel()))
    assert starts.reshape(-1, 3)[:, 1:].tolist() == [[start, start] for start in wanted]
    assert (intervals.first[interval] <= starts).all() and (starts + length <= intervals.end[interval]).all()


@pytest.mark.spec("ENG-10", "ENG-11", "ENG-12", "ENG-15", "ENG-21")
@settings(max_examples=60, deadline=None)
@given(st.data(), STEPS, MODES)
def test_every_chunk_holds_its_frames_and_no_other(data: st.DataObject, steps: int, mode: str) -> None:
    """Rows are reused by shorter and longer episodes and by failed attempts; all chunks of the last ones are drawn."""
    cache = Cache(slots=2, spare_rows=1, max_episode_steps=steps)
    for generation in (1, 2):
        for slot in range(2):
            cache.fail(data.draw(st.integers(0, steps)))
            cache.publish(data.draw(episodes(steps)), slot=slot, generation=generation)
    length = data.draw(lengths(mode, steps))
    wanted = [(published, starts_of(published.row, length, mode)) for _, published in sorted(cache.slots.items())]
    wanted = [(published, starts) for published, starts in wanted if starts]
    sampler = cache.sampler()
    if not wanted:
        with pytest.raises(DataUnavailableError):
            sampler.draw(chunk(1, length, mode), None)
        return
    batch = draw_all(sampler, chunk(1, length, mode), [len(starts) for _, starts in wanted])
    assert "loss_mask" not in batch.keys() and bool(batch["valid"].all())
    lines = iter(range(len(batch)))
    for published, starts in wanted:
        for start in starts:
            line = next(lines)
            for key, expected in cache.window(published, range(start, start + length)).items():
                assert batch[key][line].numpy().tobytes() == expected.tobytes(), (key, start)
