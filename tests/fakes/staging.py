"""A plain, in-memory stand-in for the rows that an engine would offer a producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from odstream.producers.base import Episode, FieldKey, Producer, RolloutSpec, Staging, never

STALE = 77
"""What unwritten memory holds, so that a frame nobody wrote is noticed."""


class MemoryStaging:
    """Arrays for a `RolloutSpec`, a free list, and copies of every episode that was given away."""

    def __init__(self, spec: RolloutSpec, max_episode_steps: int, rows: int | None = None) -> None:
        count = spec.num_envs if rows is None else rows
        self.limit = spec.num_envs
        self.free = list(range(count))
        self.claimed: set[int] = set()
        self.arrays: dict[FieldKey, np.ndarray] = {
            key: np.full((count, max_episode_steps, *field.shape), STALE, field.dtype)
            for key, field in spec.fields.items()
        }
        self.staging = Staging(arrays=self.arrays, claim=self.claim)

    def claim(self) -> int:
        """Hand out a free row; at most P at a time."""
        assert len(self.claimed) < self.limit, "more than P rows are claimed"
        row = self.free.pop(0)
        self.claimed.add(row)
        return row

    def take(self, episode: Episode) -> dict[FieldKey, np.ndarray]:
        """Return copies of an episode's frames ``[length, ...]``, then spoil and recycle its row."""
        self.claimed.remove(episode.row)
        frames = {key: array[episode.row, : episode.length].copy() for key, array in self.arrays.items()}
        for array in self.arrays.values():
            array[episode.row] = STALE
        self.free.append(episode.row)
        return frames


class Recorded:
    """Everything one call of `Producer.produce` yielded, in order."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.frames: list[dict[FieldKey, np.ndarray]] = []

    @property
    def accepted(self) -> list[tuple[Episode, dict[FieldKey, np.ndarray]]]:
        """The accepted episodes with their frames."""
        pairs = zip(self.episodes, self.frames, strict=True)
        return [(episode, frames) for episode, frames in pairs if episode.accepted]

    @property
    def failures(self) -> list[str]:
        """Why the others were not accepted."""
        return [str(episode.failure) for episode in self.episodes if not episode.accepted]


def record(
    producer: Producer,
    count: int,
    *,
    max_episode_steps: int = 20,
    should_stop: Callable[[], bool] = never,
    into: Recorded | None = None,
) -> Recorded:
    """Produce ``count`` episodes into fresh memory; ``into`` keeps what was yielded before an error."""
    recorded = Recorded() if into is None else into
    memory = MemoryStaging(producer.spec, max_episode_steps)
    for episode in producer.produce(count, memory.staging, should_stop=should_stop):
        recorded.episodes.append(episode)
        recorded.frames.append(memory.take(episode))
    return recorded


def column(frames: dict[FieldKey, Any], key: FieldKey, index: int = 0) -> list[float]:
    """One component of one field over time, as plain numbers."""
    return [float(value) for value in np.asarray(frames[key]).reshape(len(frames[key]), -1)[:, index]]
