"""The one workload that every contestant is measured on: sizes, episodes, windows. Needs NumPy alone.

Shapes: ``N`` rows (episodes), ``T`` frames per row, ``B`` batch rows, ``L`` frames per chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SEGMENTS_PER_EPISODE = 3
EPISODE_POOL = 64
"""Distinct episode contents; further rows repeat them, so that large caches are built quickly."""

STEP_DT_S = 0.02
"""Control period that producers report and schemas declare."""

FLAGS = ("valid", "segment_start", "segment_end", "segment_accepted", "terminated", "truncated")
IDS = (
    "episode_step",
    "segment_id",
    "segment_step",
    "segment_attempt_id",
    "continuity_id",
    "task_index",
    "subtask_index",
)
PROVENANCE = (
    "ods_run_id",
    "ods_episode_id",
    "ods_generation",
    "ods_frame_index",
    "ods_accepted_at_ns",
    "ods_published_at_monotonic_ns",
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of a cache and of its frames."""

    rows: int
    """N: episodes in the cache."""
    steps: int
    """T: frames per row."""
    obs_dim: int = 54
    """Width of the float32 observation. 54 makes frames of 358 bytes, 988 makes frames of 4094 bytes."""
    action_dim: int = 7
    """Width of the float32 action."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame over its 22 fields: observation, action, reward, 13 annotations, 6 of provenance."""
        return 4 * (self.obs_dim + self.action_dim + 1) + len(FLAGS) + 8 * (len(IDS) + len(PROVENANCE))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measured call. Travels to other interpreters as JSON."""

    work: Literal["sample_batch", "sample_context"]
    shape: Shape
    mode: Literal["episode", "segment", "boundary"] = "episode"
    batch_size: int = 256
    """B."""
    horizon: int = 64
    """F: the chunk length of ``sample_batch``, the prediction horizon of ``sample_context``."""
    history: int = 2
    """H, of ``sample_context`` alone."""
    quota: bool = False
    """Whether every delivery is checked against and debited from per-episode budgets."""

    @property
    def chunk_length(self) -> int:
        """L: frames per returned row."""
        return self.horizon if self.work == "sample_batch" else self.history + self.horizon - 1

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Case:
        """The inverse of `to_json`."""
        return Case(**{**value, "shape": Shape(**value["shape"])})


EPISODE_BUDGET = 1 << 40
"""Deliveries each episode may make where a case has quotas: never exhausted, always accounted."""


def schema_of(shape: Shape) -> dict[str, Any]:
    """The declaration that sources ask for, the same for all."""
    return {
        "observation": {"names": [f"obs{index}" for index in range(shape.obs_dim)], "dtype": "float32"},
        "action": {
            "names": [f"action{index}" for index in range(shape.action_dim)],
            "dtype": "float32",
            "semantics": "expert_controller_command",
            "step_dt": STEP_DT_S,
        },
    }


def episode_lengths(shape: Shape) -> NDArray[np.int64]:
    """``[N]`` frames per episode, uniform between 70 % and 100 % of T, the same in every process."""
    return np.random.default_rng(7).integers(max(1, shape.steps * 7 // 10), shape.steps + 1, size=shape.rows)


def segment_bounds(length: int) -> list[tuple[int, int]]:
    """Half-open ranges of the segments that cover an episode, of nearly equal lengths."""
    edges = [length * index // SEGMENTS_PER_EPISODE for index in range(SEGMENTS_PER_EPISODE + 1)]
    return list(zip(edges[:-1], edges[1:], strict=True))


def recorded(shape: Shape, row: int) -> dict[str, NDArray[np.float32]]:
    """What a producer records in one row: obs ``[T, O]``, actions ``[T, A]``, rewards ``[T]``, all float32."""
    rng = np.random.default_rng(row % EPISODE_POOL)
    return {
        "obs": rng.standard_normal((shape.steps, shape.obs_dim), dtype=np.float32),
        "actions": rng.standard_normal((shape.steps, shape.action_dim), dtype=np.float32),
        "rewards": rng.standard_normal(shape.steps, dtype=np.float32),
    }


def recorded_pool(shape: Shape) -> list[dict[str, NDArray[np.float32]]]:
    """The distinct contents; row ``i`` of a cache holds entry ``i % len(pool)``."""
    return [recorded(shape, row) for row in range(min(EPISODE_POOL, shape.rows))]


def _annotations(shape: Shape, length: int, row: int) -> Iterator[tuple[str, Any]]:
    """Yield each annotation of one row, ``[T]`` or a scalar for all its real frames."""
    frame = np.arange(length)
    bounds = segment_bounds(length)
    segment = np.repeat(np.arange(len(bounds)), [end - start for start, end in bounds])
    first = np.array([start for start, _ in bounds])
    last = np.array([end - 1 for _, end in bounds])
    yield "valid", True
    yield "segment_start", np.isin(frame, first)
    yield "segment_end", np.isin(frame, last)
    yield "segment_accepted", True
    yield "terminated", frame == length - 1
    yield "truncated", False
    yield "episode_step", frame
    yield "segment_id", segment
    yield "segment_step", frame - first[segment]
    yield "segment_attempt_id", 0
    yield "continuity_id", 0
    yield "task_index", 0
    yield "subtask_index", segment
    yield "ods_run_id", 1
    yield "ods_episode_id", row
    yield "ods_generation", 1
    yield "ods_frame_index", frame
    yield "ods_accepted_at_ns", 1
    yield "ods_published_at_monotonic_ns", 1


def all_fields(shape: Shape) -> dict[str, NDArray[Any]]:
    """All 22 fields as ``[N, T, ...]`` arrays, padding after each episode: for contestants without a producer."""
    size = (shape.rows, shape.steps)
    fields: dict[str, NDArray[Any]] = {
        "obs": np.zeros((*size, shape.obs_dim), np.float32),
        "actions": np.zeros((*size, shape.action_dim), np.float32),
        "rewards": np.zeros(size, np.float32),
    }
    fields.update({name: np.zeros(size, np.bool_) for name in FLAGS})
    fields.update({name: np.full(size, -1, np.int64) for name in IDS + PROVENANCE})
    pool = recorded_pool(shape)
    for row, length in enumerate(episode_lengths(shape).tolist()):
        for name, value in pool[row % len(pool)].items():
            fields[name][row, :length] = value[:length]
        for name, annotation in _annotations(shape, length, row):
            fields[name][row, :length] = annotation
    return fields
