"""Publication: what a record must say, which rows are whose, what every frame holds afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from odstream.cache.layout import Word
from odstream.cache.publish import FrameSegment, RowRecord
from tests.fakes.cache import RUN_ID, Cache, Row, chunk, context, seeded

STEPS = 8
WHOLE = (FrameSegment(start=0, end=6),)


def record(row: int, **changes: Any) -> RowRecord:
    return replace(RowRecord(row=row, length=6, segments=WHOLE), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 0}, "length must be between 1 and max_episode_steps=8, got 0"),
        ({"length": -1}, "length must be between 1 and max_episode_steps=8, got -1"),
        ({"length": 9}, "length must be between 1 and max_episode_steps=8, got 9"),
        ({"segments": ()}, "segments must .* cover frames 0 to 6"),
        ({"segments": (FrameSegment(start=1, end=6),)}, r"segments must .* got \[\(1, 6\)\]"),
        ({"segments": (FrameSegment(start=0, end=5),)}, "segments must"),
        ({"segments": (FrameSegment(start=0, end=7),)}, "segments must"),
        ({"segments": (FrameSegment(start=0, end=2), FrameSegment(start=3, end=6))}, "segments must"),
        ({"segments": (FrameSegment(start=0, end=3), FrameSegment(start=2, end=6))}, "segments must"),
        ({"segments": (FrameSegment(start=0, end=0), FrameSegment(start=0, end=6))}, "segments must .* not empty"),
        ({"segments": (FrameSegment(start=0, end=7), FrameSegment(start=7, end=6))}, "segments must .* not empty"),
        ({"valid": np.ones(5, bool)}, r"valid must be an array \[6\] of bool"),
        ({"valid": np.ones(6, np.uint8)}, "valid must be"),
        ({"continuity_id": np.zeros(7, np.int64)}, r"continuity_id must be an array \[6\] of int"),
        ({"continuity_id": np.zeros(6, np.float32)}, "continuity_id must be"),
        ({"row": -1}, "row must be a claimed one"),
        ({"row": 99}, "row must be a claimed one"),
    ],
)
def test_a_record_that_does_not_describe_every_frame_is_refused_and_changes_nothing(
    changes: dict[str, Any], message: str
) -> None:
    cache = Cache(slots=1, max_episode_steps=STEPS, event_capacity=2)
    cache.publish(Row(length=6))
    before = cache.store.words.copy()
    row = cache.publisher.claim()
    with pytest.raises(ValueError, match=message):
        cache.publisher.publish(replace(record(row), **changes), slot=0, generation=2)
    assert np.array_equal(cache.store.words, before) and cache.events.free() == 1
    cache.events.drain()
    assert cache.publisher.publish(record(row), slot=0, generation=2) == 1


def test_a_row_belongs_to_one_owner_at_a_time() -> None:
    cache = Cache(slots=2, spare_rows=2, max_episode_steps=STEPS)
    rows = [cache.publisher.claim() for _ in range(4)]
    assert sorted(rows) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="all 4 free rows are claimed"):
        cache.publisher.claim()
    cache.publisher.recycle(rows[0])
    for give_away in (
        cache.publisher.recycle,
        lambda row: cache.publisher.publish(record(row), slot=0, generation=1),
    ):
        with pytest.raises(ValueError, match="row must be a claimed one that was not given away yet"):
            give_away(rows[0])
    cache.publisher.publish(record(rows[1]), slot=0, generation=1)
    with pytest.raises(ValueError, match="claimed"):
        cache.publisher.recycle(rows[1])
    assert cache.publisher.claim() == rows[0]


@pytest.mark.spec("ENG-10", "ENG-17")
def test_replacing_every_episode_for_ever_needs_no_more_rows() -> None:
    """Field case Q15: as many slots as environments; all previous episodes stay readable until they are replaced."""
    cache = Cache(slots=3, spare_rows=3, max_episode_steps=STEPS)
    cache.fill(*[Row(length=4)] * 3)
    sampler = cache.sampler()
    for generation in range(2, 12):
        claimed = [cache.publisher.claim() for _ in range(3)]
        assert not set(claimed) & set(cache.store.row_of_slot.tolist())
        for slot, row in enumerate(claimed):
            readable = set(sampler.draw(chunk(50, 1), seeded(1))["ods_generation"].ravel().tolist())
            assert readable == ({generation - 1} if slot == 0 else {generation - 1, generation})
            cache.publisher.publish(record(row), slot=slot, generation=generation)
    assert set(sampler.draw(chunk(50, 1), None)["ods_generation"].ravel().tolist()) == {11}
    assert cache.store.episode_id[cache.store.row_of_slot].tolist() == [30, 31, 32]


@pytest.mark.spec("ENG-10")
def test_rows_that_are_being_recorded_cannot_be_seen() -> None:
    cache = Cache(slots=1, spare_rows=2, max_episode_steps=STEPS)
    published = cache.publish(Row(length=STEPS))
    sampler = cache.sampler()
    for _ in range(2):
        row = cache.publisher.claim()
        for item in cache.fields:
            cache.rows[item.key][row] = 66
    batch = sampler.draw(context(64, STEPS, STEPS), seeded(1))
    assert set(batch["obs"].ravel().tolist()) == {0.0, *published.frames["obs",].ravel().tolist()}


@pytest.mark.spec("ENG-11")
def test_every_frame_says_where_in_its_episode_it_is() -> None:
    cache = Cache(slots=1, max_episode_steps=STEPS)
    row = cache.publisher.claim()
    segments = (
        FrameSegment(start=0, end=2, subtask_index=4, attempt=0),
        FrameSegment(start=2, end=3, subtask_index=5, attempt=2, accepted=False),
        FrameSegment(start=3, end=6, subtask_index=-1, attempt=1),
    )
    cache.publisher.publish(record(row, segments=segments, truncated=True, task_index=7), slot=0, generation=3)
    batch = cache.sampler().draw(chunk(1, 6), None)[0]
    expected = {
        "valid": [1, 1, 1, 1, 1, 1],
        "episode_step": [0, 1, 2, 3, 4, 5],
        "segment_id": [0, 0, 1, 2, 2, 2],
        "segment_step": [0, 1, 0, 0, 1, 2],
        "segment_start": [1, 0, 1, 1, 0, 0],
        "segment_end": [0, 1, 1, 0, 0, 1],
        "segment_accepted": [1, 1, 0, 1, 1, 1],
        "segment_attempt_id": [0, 0, 2, 1, 1, 1],
        "continuity_id": [0, 0, 0, 0, 0, 0],
        "terminated": [0, 0, 0, 0, 0, 0],
        "truncated": [0, 0, 0, 0, 0, 1],
        "task_index": [7, 7, 7, 7, 7, 7],
        "subtask_index": [4, 4, 5, -1, -1, -1],
    }
    assert {name: batch[name].int().tolist() for name in expected} == expected


@pytest.mark.spec("ENG-21")
def test_provenance_is_stamped_per_episode_and_the_clocks_stay_apart() -> None:
    cache = Cache(slots=1, max_episode_steps=STEPS)
    for episode in range(3):
        cache.publish(Row(length=6, gaps=(2,)), generation=episode + 1)
        batch = cache.sampler().draw(context(40, 6, 6), seeded(1))
        valid = batch["valid"]
        expected = {
            "ods_run_id": RUN_ID,
            "ods_episode_id": episode,
            "ods_generation": episode + 1,
            "ods_accepted_at_ns": cache.unix_ns.now,
            "ods_published_at_monotonic_ns": cache.monotonic_ns.now,
        }
        for name, value in expected.items():
            assert set(batch[name][valid].tolist()) == {value}
            assert set(batch[name][~valid].tolist()) == {-1}
        assert torch_equal_where(batch["ods_frame_index"], batch["episode_step"], valid)
    assert cache.unix_ns.now == 1_700_000_000_000_000_003 and cache.monotonic_ns.now == 5_000_000_000_003


def torch_equal_where(one: Any, other: Any, where: Any) -> bool:
    return bool((one[where] == other[where]).all())


@pytest.mark.spec("ENG-12", "ENG-21")
@pytest.mark.parametrize("gaps", [(), (0,), (5,), (1, 2, 4)])
def test_a_frame_that_is_not_real_holds_padding_in_the_cache_itself(gaps: tuple[int, ...]) -> None:
    """Not only where a window shows it, and also behind the end, whatever an earlier episode left there."""
    cache = Cache(slots=1, spare_rows=1, max_episode_steps=STEPS)
    cache.fail(STEPS)
    for length in (STEPS, STEPS, 6):
        published = cache.publish(Row(length=length, gaps=gaps, task=2))
    row = int(cache.store.row_of_slot[0])
    for key, expected in cache.window(published, [*range(6), -1, -1]).items():
        assert cache.rows[key][row].tobytes() == expected.tobytes(), key


@pytest.mark.spec("ENG-21")
def test_publication_is_stamped_under_the_lock() -> None:
    cache = Cache(slots=1, max_episode_steps=STEPS)
    locked = []

    def clock() -> int:
        try:
            with cache.store.transaction():
                locked.append(False)
        except RuntimeError:  # this thread holds it already
            locked.append(True)
        return 1

    cache.publisher._monotonic_ns = clock
    cache.publish(Row(length=3))
    assert locked == [True]


@pytest.mark.parametrize("gaps", [(), (0,), (5,), (0, 1, 2, 3, 4, 5)])
def test_readable_frames_and_anchors_are_counted(gaps: tuple[int, ...]) -> None:
    cache = Cache(slots=1, max_episode_steps=STEPS)
    cache.publish(Row(length=6, gaps=gaps, continuity=(0, 0, 0, -1, -1, 0)))
    row = cache.store.row_of_slot[0]
    assert cache.store.valid_frames[row] == 6 - len(gaps)
    assert cache.store.anchors[row] == 4 - len({0, 1, 2, 5} & set(gaps))
    assert cache.store.words[Word.SUCCESSFUL_EPISODES] == 1
