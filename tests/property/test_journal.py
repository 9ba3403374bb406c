"""A change of the control state happens as a whole or not at all, wherever its writer dies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odstream.cache.layout import Word
from tests.fakes.cache import Cache, Row, chunk, dying

WORDS = Cache(slots=3, spare_rows=2, max_episode_steps=1).layout.word_count
PLACES = st.integers(0, WORDS - 1).filter(lambda place: place != Word.JOURNAL_LENGTH)
CHANGES = st.dictionaries(PLACES, st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=WORDS - 1)


@pytest.mark.spec("QUOTA-03")
@given(CHANGES, st.lists(st.integers(0, 3 * WORDS + 2), min_size=1, max_size=4))
def test_whoever_takes_the_lock_next_sees_all_of_an_unfinished_change_or_none(
    change: dict[int, int], lives: list[int]
) -> None:
    """Field case C03: the first one dies while it writes, others die while they finish its work."""
    cache = Cache(slots=3, spare_rows=2, max_episode_steps=1)
    store = cache.store
    store.words[:] = np.arange(WORDS)
    store.words[Word.JOURNAL_LENGTH] = 0
    before = store.words.copy()
    after = before.copy()
    for place, value in change.items():
        after[place] = value
    with dying(store, lives[0]), store.transaction():
        store.commit(list(change), list(change.values()))
    for writes in lives[1:]:
        with dying(store, writes), store.transaction():
            pass
    with store.transaction():
        seen = store.words.copy()
    written_down = 2 * len(change) + 1
    assert np.array_equal(seen, after if lives[0] >= written_down else before)


@given(CHANGES, CHANGES)
def test_a_change_replaces_what_the_one_before_wrote_down(first: dict[int, int], second: dict[int, int]) -> None:
    cache = Cache(slots=3, spare_rows=2, max_episode_steps=1)
    for change in (first, second):
        with cache.store.transaction():
            cache.store.commit(list(change), list(change.values()))
    wanted = first | second
    assert {place: int(cache.store.words[place]) for place in wanted} == wanted


@pytest.mark.spec("ENG-10")
@pytest.mark.parametrize("writes", range(20))
def test_a_publication_that_dies_leaves_the_old_episode_or_the_new_one(writes: int) -> None:
    """Field case C01: payload, identity, budget, events and counters change together."""
    cache = Cache(slots=2, max_episode_steps=6, budget=5, event_capacity=4)
    old, kept = cache.fill(Row(length=4, mark=1), Row(length=2))
    cache.events.drain()
    with dying(cache.store, writes):
        cache.publish(Row(length=5, mark=2), slot=0, generation=2)
    batch = cache.sampler().draw(chunk(5, 4), None)  # takes the lock, finishes what was written down
    is_new = writes >= 2 * 6 + 1  # six words change: each is written down, by place and value, and then their number
    assert cache.published == 2 + is_new
    assert [event["kind"] for event in cache.events.drain()] == ["evicted", "published"] * is_new
    identity = kept.episode_id + 1 if is_new else old.episode_id
    assert set(batch["ods_episode_id"].ravel().tolist()) == {identity}
    assert set(batch["ods_generation"].ravel().tolist()) == {2 if is_new else 1}
    marks = {float(value) for value in old.frames["obs",].ravel()}
    assert set(batch["obs"].ravel().tolist()).issubset(marks) != is_new
    assert cache.delivered() == {identity: 5, kept.episode_id: 0}
