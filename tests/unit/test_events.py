"""The lifecycle log: complete, in order, bounded; a full one holds the producer back."""

from __future__ import annotations

import json
import threading
import time

import pytest

from odstream.cache.layout import Word
from odstream.engine.worker import WorkerSettings, _Production
from odstream.producers.base import ProducerContext
from tests.fakes.cache import FIELDS, RUN_ID, Cache, Row, dying
from tests.fakes.producers import Script


@pytest.mark.spec("ENG-23")
def test_an_event_says_what_came_or_went_and_when() -> None:
    cache = Cache(slots=2, max_episode_steps=6, event_capacity=4)
    cache.fill(Row(length=3), Row(length=5, gaps=(1,), continuity=(0, 0, 0, -1, 0)))
    first, second = cache.events.drain()
    assert first == {
        "kind": "published",
        "sequence": 0,
        "run_id": RUN_ID,
        "episode_id": 0,
        "generation": 1,
        "slot": 0,
        "monotonic_ns": 5_000_000_000_001,
        "valid_frame_indices": [0, 1, 2],
        "eligible_anchor_indices": [0, 1, 2],
        "valid_frames": 3,
        "eligible_anchors": 3,
    }
    assert second["valid_frame_indices"] == [0, 2, 3, 4] and second["valid_frames"] == 4
    assert second["eligible_anchor_indices"] == [0, 2, 4] and second["eligible_anchors"] == 3
    cache.publish(Row(length=1), slot=1, generation=2)
    evicted, published = cache.events.drain()
    assert evicted == second | {"kind": "evicted", "sequence": 2, "monotonic_ns": published["monotonic_ns"]}
    assert (published["sequence"], published["episode_id"], published["generation"]) == (3, 2, 2)
    assert published["monotonic_ns"] == 5_000_000_000_003
    assert json.loads(json.dumps([first, evicted])) == [first, evicted]
    assert cache.events.drain() == []


@pytest.mark.spec("ENG-23")
def test_a_log_that_is_full_has_no_room_until_it_is_drained() -> None:
    """Field case Q01: a first publication into a slot needs one record, a replacement two."""
    cache = Cache(slots=3, max_episode_steps=4, event_capacity=4)
    cache.fill(Row(length=1), Row(length=1))
    assert cache.publisher.has_room(2) and cache.publisher.has_room(0)
    cache.publish(Row(length=1), slot=2)
    assert cache.events.free() == 1 and not cache.publisher.has_room(0)
    assert len(cache.events.drain()) == 3
    assert cache.events.free() == 4 and cache.publisher.has_room(0)


@pytest.mark.spec("ENG-23")
def test_the_log_goes_round_and_round_and_forgets_nothing() -> None:
    cache = Cache(slots=1, max_episode_steps=9, event_capacity=5)
    events = []
    for number in range(60):
        if not cache.publisher.has_room(0):
            events += cache.events.drain()
        cache.publish(Row(length=1 + number % 9), generation=number + 1)
    events += cache.events.drain()
    assert [event["sequence"] for event in events] == list(range(119))
    published = [event for event in events if event["kind"] == "published"]
    evicted = [event for event in events if event["kind"] == "evicted"]
    assert [event["episode_id"] for event in published] == list(range(60))
    assert [event["valid_frames"] for event in published] == [1 + number % 9 for number in range(60)]
    times = ("kind", "sequence", "monotonic_ns")
    assert [{k: v for k, v in event.items() if k not in times} for event in evicted] == [
        {k: v for k, v in event.items() if k not in times} for event in published[:-1]
    ]


@pytest.mark.spec("ENG-25")
def test_without_a_capacity_nothing_is_recorded_and_nothing_is_held_back() -> None:
    cache = Cache(slots=1, max_episode_steps=4)
    cache.fill(Row(length=1))
    assert not cache.events.enabled and cache.publisher.has_room(0) and cache.events.drain() == []


def test_a_reader_that_dies_while_it_drains_loses_nothing() -> None:
    for writes in range(4):
        cache = Cache(slots=1, max_episode_steps=4, event_capacity=2)
        cache.publish(Row(length=2))
        with dying(cache.store, writes):
            cache.events.drain()
        with cache.store.transaction():
            pass
        assert len(cache.events.drain()) == (1 if writes < 3 else 0)


@pytest.mark.spec("ENG-23")
def test_a_producer_waits_for_a_late_reader_and_goes_on_and_no_event_is_lost() -> None:
    """Field case Q11: capacity 4, three refills of four episodes, drained only when nothing fits any more."""
    context = ProducerContext(max_episode_steps=6, max_generation_attempts=1)
    cache = Cache(slots=4, spare_rows=2, max_episode_steps=6, event_capacity=4, language_bytes=100)
    script = Script(lengths=(3, 5), extra_fields=tuple((item.key, item.shape, item.dtype.name) for item in FIELDS[3:]))
    words = cache.store.words
    words[Word.REQUESTED_GENERATION] = 4
    settings = WorkerSettings(context=context, run_id=RUN_ID, budget=0)
    production = _Production(script(context), cache.store, settings)
    thread = threading.Thread(target=production.run)
    thread.start()
    events, held_back = [], 0
    deadline = time.monotonic() + 30
    try:
        while words[Word.COMPLETED_GENERATION] < 4 and time.monotonic() < deadline:
            if cache.events.free() < 2:
                before = int(words[Word.EVENT_TAIL])
                assert before - int(words[Word.EVENT_HEAD]) <= 4
                held_back += 1
                events += cache.events.drain()
            time.sleep(0.0005)
    finally:
        words[Word.STOP] = 1
        thread.join(10)
    events += cache.events.drain()
    assert words[Word.COMPLETED_GENERATION] == 4 and held_back >= 6
    assert [event["sequence"] for event in events] == list(range(16 + 12))
    assert [event["episode_id"] for event in events if event["kind"] == "published"] == list(range(16))
    assert [event["episode_id"] for event in events if event["kind"] == "evicted"] == list(range(12))
    stamps = [event["monotonic_ns"] for event in events]
    assert stamps == sorted(stamps)
