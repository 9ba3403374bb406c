"""Contexts against plain loops over frames: bounds, masks, and every field's frames and padding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odstream.errors import DataUnavailableError
from tests.fakes.cache import FIELDS, LANGUAGE_AND_PROVENANCE, Cache, Row, chunk, context, context_of, draw_all, usable
from tests.property.episodes import STEPS, episodes

MODES = st.sampled_from(["episode", "segment"])


def draw_all_contexts(cache: Cache, history: int, horizon: int, mode: str, generations: tuple[int, ...] | None) -> None:
    """Draw the context of every anchor there is, and compare every number with what it must be."""
    anchors = [
        (published, [t for t in range(published.row.length) if usable(published.row, t, mode)])
        for _, published in sorted(cache.slots.items())
        if generations is None or published.generation in generations
    ]
    anchors = [(published, found) for published, found in anchors if found]
    sampler = cache.sampler()
    if not anchors:
        with pytest.raises(DataUnavailableError):
            sampler.draw(context(1, history, horizon, mode, generations), None)
        return
    request = context(1, history, horizon, mode, generations)
    batch = draw_all(sampler, request, [len(found) for _, found in anchors])
    lines = iter(range(len(batch)))
    for published, found in anchors:
        for anchor in found:
            line = next(lines)
            frames = context_of(published.row, anchor, history, horizon, mode)
            valid = [frame >= 0 for frame in frames]
            assert frames[history - 1] == anchor
            assert batch["valid"][line].tolist() == valid
            if history + horizon > 2:
                mask = [real and place >= history - 1 for place, real in enumerate(valid)]
                assert batch["loss_mask"][line].tolist() == mask
            for key, expected in cache.window(published, frames).items():
                got = batch[key][line].numpy()
                assert got.dtype == expected.dtype and got.shape == expected.shape
                assert got.tobytes() == expected.tobytes(), (key, anchor)


@pytest.mark.spec("CTX-01", "CTX-02", "CTX-03", "CTX-04", "CTX-05", "ENG-17", "ENG-21")
@settings(max_examples=120, deadline=None)
@given(st.data(), STEPS, MODES)
def test_every_context_holds_its_frames_and_padding_around_them(data: st.DataObject, steps: int, mode: str) -> None:
    """Rows are reused by shorter and longer episodes and by failed attempts; all contexts are drawn."""
    cache = Cache(slots=2, spare_rows=1, max_episode_steps=steps)
    for generation in (1, 2):
        for slot in range(2 if generation == 1 else data.draw(st.integers(0, 2))):
            cache.fail(data.draw(st.integers(0, steps)))
            cache.publish(data.draw(episodes(steps)), slot=slot, generation=generation)
    history, horizon = data.draw(st.integers(1, steps)), data.draw(st.integers(1, steps))
    generations = data.draw(st.sampled_from([None, (1,), (2,), (1, 2), (7,)]))
    draw_all_contexts(cache, history, horizon, mode, generations)


@pytest.mark.spec("CTX-02")
@pytest.mark.parametrize("mode", ["episode", "segment"])
@pytest.mark.parametrize("length", [1, 65, 100])
@pytest.mark.parametrize(("history", "horizon"), [(100, 100), (100, 1), (1, 100), (65, 66)])
def test_a_window_may_reach_beyond_the_guard_frames_of_the_first_and_the_last_row(
    mode: str, length: int, history: int, horizon: int
) -> None:
    """Windows of up to 199 frames around rows of 100 with 64 guard frames, in all three rows of the memory."""
    cache = Cache(slots=3, spare_rows=1, max_episode_steps=100)
    for slot in range(3):
        cache.publish(Row(length=length, segments=(length // 2,) if length > 1 else ()), slot=slot)
    cache.publish(Row(length=length), slot=1)  # into the last row of the memory
    assert set(cache.store.row_of_slot.tolist()) == {0, 2, 3}
    draw_all_contexts(cache, history, horizon, mode, None)


def test_a_window_as_long_as_its_row_needs_no_padding() -> None:
    cache = Cache(slots=1, max_episode_steps=100)
    published = cache.publish(Row(length=100))
    batch = cache.sampler().draw(chunk(2, 100), None)
    for key, expected in cache.window(published, range(100)).items():
        assert batch[key][1].numpy().tobytes() == expected.tobytes()


def test_language_and_provenance_are_padded_with_minus_one_and_the_rest_with_zero() -> None:
    """Field cases W07 and N03."""
    cache = Cache(slots=1, max_episode_steps=4)
    cache.publish(Row(length=1, task=3))
    batch = cache.sampler().draw(context(1, 3, 3), None)
    keys = batch.keys(include_nested=True, leaves_only=True)
    names = {key if isinstance(key, str) else key[0] for key in keys}
    assert {field.key[0] for field in FIELDS} | LANGUAGE_AND_PROVENANCE < names
    for key in keys:
        padding = batch[key][0][[0, 1, 3, 4]]
        assert (padding == (-1 if key in LANGUAGE_AND_PROVENANCE else 0)).all(), key
