"""Every selection of every trajectory is counted once, whatever becomes of it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from odstream.perf.exposure import ExposureRecorder, read_trajectories
from tests.fakes.clock import FakeClock


def batch(episodes: list[int], frames: list[int], supervised: list[int], length: int = 4) -> dict[str, torch.Tensor]:
    ids = torch.full((len(episodes), length, 3), -1)
    ids[:, 1, 0], ids[:, 1, 1], ids[:, 1, 2] = 7, torch.tensor(episodes), torch.tensor(frames)
    mask = torch.arange(length)[None] < torch.tensor(supervised)[:, None]
    return {"frame_ids": ids, "loss_mask": mask}


def event(kind: str, episode: int, at_ns: int) -> dict[str, object]:
    return {
        "kind": kind, "run_id": 7, "episode_id": episode, "generation": 2, "monotonic_ns": at_ns, "valid_frames": 9,
    }  # fmt: skip


@pytest.mark.spec("APP-03")
def test_completed_failed_and_in_flight_selections_are_told_apart() -> None:
    recorder = ExposureRecorder(assigned_chunks=10)
    recorder.delivered(batch([3, 3, 5], [0, 0, 8], [4, 4, 1]), current=1)
    recorder.completed()
    recorder.delivered(batch([3, 5], [1, 2], [2, 2]), current=1)
    recorder.failed()
    recorder.delivered(batch([5], [2], [2]), current=1)
    found = recorder.trajectories()
    three, five = found.episodes
    assert (three.episode_id, three.delivered, three.completed) == (3, 3, 2)
    assert (five.episode_id, five.delivered, five.completed) == (5, 3, 1)
    assert found.totals == {"delivered": 6, "completed": 3, "failed": 2, "in_flight": 1}


def test_an_episode_that_is_long_gone_costs_little_memory() -> None:
    """Field case M10: a day of ten episodes per second."""
    import tracemalloc

    recorder, frames = ExposureRecorder(), list(range(300))
    tracemalloc.start()
    for episode in range(300):
        recorder.delivered(batch([episode] * 300, frames, [1] * 300, length=2), current=1)
        recorder.completed()
    recorder.trajectories()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / 300 < 600
    assert {one.anchors for one in recorder.trajectories().episodes} == {300}


@pytest.mark.spec("APP-03")
def test_anchors_are_distinct_frames_and_supervised_frames_are_appearances() -> None:
    recorder = ExposureRecorder()
    for _ in range(3):
        recorder.delivered(batch([3, 3], [4, 6], [3, 2]), current=1)
        recorder.completed()
    (three,) = recorder.trajectories().episodes
    assert (three.anchors, three.supervised_frames) == (2, 15)


def test_episodes_whose_publication_nobody_saw_have_a_length_all_the_same() -> None:
    recorder = ExposureRecorder()
    recorder.add_episodes([{"episode_id": 3, "generation": -1, "valid_frames": 9}])
    recorder.delivered(batch([3], [4], [3]), current=1)
    recorder.completed()
    (three,) = recorder.trajectories().episodes
    assert (three.length, three.generation, three.published_s, three.completed) == (9, None, None, 1)


def test_publication_and_eviction_are_timed_from_the_recorder_on() -> None:
    clock = FakeClock()
    origin_ns = clock()
    recorder = ExposureRecorder(clock_ns=clock)
    recorder.on_events([event("published", 1, origin_ns - 500_000_000), event("evicted", 1, origin_ns + 2_000_000_000)])
    (one,) = recorder.trajectories().episodes
    assert (one.published_s, one.evicted_s, one.generation, one.length) == (-0.5, 2.0, 2, 9)
    assert one.delivered == 0


def test_a_document_reads_back_as_it_was() -> None:
    recorder = ExposureRecorder(assigned_chunks=3)
    recorder.on_events([event("published", 1, 5)])
    recorder.delivered(batch([1], [0], [1]), current=1)
    recorder.completed()
    assert read_trajectories(recorder.to_json()) == recorder.trajectories()


@pytest.mark.parametrize("text", ["", "[]", '{"format": "odstream.trajectories", "version": 2}', "{"])
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"document|columns"):
        read_trajectories(text)


def test_a_batch_without_provenance_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(KeyError, match="include_provenance"):
        ExposureRecorder().delivered({"obs": torch.zeros(1, 1), "loss_mask": torch.ones(1, 1)}, current=0)


def test_a_padded_current_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="padding"):
        ExposureRecorder().delivered(batch([1], [0], [1]), current=0)


def test_the_engines_own_provenance_fields_are_read_too() -> None:
    found = {
        "ods_episode_id": torch.full((2, 3), 4),
        "ods_frame_index": torch.tensor([[0, 1, 2], [5, 6, 7]]),
        "loss_mask": torch.ones(2, 3, dtype=torch.bool),
    }
    recorder = ExposureRecorder()
    recorder.delivered(found, current=1)
    recorder.completed()
    (four,) = recorder.trajectories().episodes
    assert (four.anchors, four.supervised_frames, four.completed) == (2, 6, 2)


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), min_size=1, max_size=6),
            st.sampled_from(["completed", "failed", "kept"]),
        ),
        max_size=200,
    )
)
@pytest.mark.spec("APP-03")
def test_counts_equal_those_of_a_slow_and_simple_count(steps: list[tuple[list[tuple[int, int]], str]]) -> None:
    recorder = ExposureRecorder()
    completed: Counter[int] = Counter()
    delivered: Counter[int] = Counter()
    anchors: set[tuple[int, int]] = set()
    held: list[tuple[int, int]] = []
    for draws, outcome in steps:
        recorder.delivered(batch([e for e, _ in draws], [f for _, f in draws], [1] * len(draws)), current=1)
        held += draws
        delivered.update(episode for episode, _ in draws)
        if outcome == "kept":
            continue
        if outcome == "completed":
            recorder.completed()
            completed.update(episode for episode, _ in held)
            anchors.update(held)
        else:
            recorder.failed()
        held = []
    found = recorder.trajectories()
    assert {e.episode_id: e.delivered for e in found.episodes} == dict(delivered)
    assert {e.episode_id: e.completed for e in found.episodes if e.completed} == dict(completed)
    seen = Counter(episode for episode, _ in anchors)
    assert {e.episode_id: e.anchors for e in found.episodes if e.anchors} == dict(seen)
    assert found.totals["delivered"] == sum(delivered.values())
    assert found.totals["in_flight"] == len(held)


def test_numbers_from_numpy_are_read_like_those_from_torch() -> None:
    found = {key: value.numpy() for key, value in batch([2], [3], [2]).items()}
    recorder = ExposureRecorder()
    recorder.delivered(found, current=1)
    recorder.completed()
    assert recorder.trajectories().episodes[0].anchors == 1
