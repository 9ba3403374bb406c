"""A LeRobot dataset as a source of contexts. Its numbers are read once, with the official SDK, and stay in memory.

Letters as in `sequence`; ``E`` episodes, ``N`` frames.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from odstream.cache.layout import FieldKey
from odstream.datasets.episode_checks import check_episodes
from odstream.datasets.lerobot_fields import Column, LeRobotFieldMappingCfg, columns_of, left_out
from odstream.datasets.lerobot_files import (
    DatasetMetadata,
    count_frames,
    read_frames,
    read_metadata,
    select_episodes,
)
from odstream.datasets.lerobot_sidecar import read_sidecar
from odstream.datasets.resident import ResidentLayout, ResidentStore, resident_fields
from odstream.datasets.resident_source import ResidentSource, check_budget, check_source_id, source_run_id
from odstream.datasets.schema import check_features, scalar_fields, validate_data_schema
from odstream.datasets.source_language import SourceLanguage
from odstream.datasets.sources import check_step
from odstream.validation import check_int

__all__ = ["TIMESTAMP_TOLERANCE", "LeRobotDataSource", "LeRobotFieldMappingCfg"]

TIMESTAMP_TOLERANCE = 0.01
"""How far a timestamp may lie from the grid of the frame rate, in periods (plus what its float32 cannot tell)."""

_IDENTITY = tuple((name,) for name in ("ods_run_id", "ods_episode_id", "ods_frame_index"))
_INDEX_FEATURES = ("episode_index", "frame_index", "timestamp")
_LOG = logging.getLogger("odstream")


class LeRobotDataSource(ResidentSource):
    """Contexts of the episodes of a local LeRobot dataset (version 3), under the contract of `BatchSource`.

    The folder is only read. The SDK keeps a copy of the frames in its own cache on disk, as it does for everyone;
    that copy, what is staged while reading and the SDK itself do not count against the limit.

    Images and videos are not loaded: they are left out, with a line in the log, and refused if the mapping asks for
    one. ``task_index`` and `resolve_language` give the dataset's task texts; frames whose task is blank get -1.
    ``frame_ids`` are (a number that follows from the source id, the dataset's episode number, the frame's number
    there), also if only some episodes are loaded; or the recording's own, if the mapping names them.

    A dataset that `odstream.recording` wrote says itself what its features are: for it the mapping can be left out.

    Args:
        root: The dataset's folder.
        schema: What observations and actions mean; see `odstream.datasets.schema`. Its ``step_dt`` must be one
            period of the dataset's frame rate.
        source_id: Identity of the data: the same for the same data, also in the next process.
        memory_limit_bytes: Most that the frames may take in memory. What they would take is computed from the
            metadata, for the selected episodes, before anything large is allocated.
        mapping: Which features are what; None for ``observation.state`` and ``action``.
        episodes: Numbers of the episodes to load; None for all.
        repo_id: The dataset's name for the SDK; None for the folder's name.
        episode_sample_budget: How often each episode may be selected; None, together with the limit: as often as one
            likes.
        episode_sample_hard_limit: Ceiling for the budget.
        seed: Of the source's own generator; None for a fresh one.

    Raises:
        MissingExtraError: If the SDK is not installed.
        FileNotFoundError: If there is no such dataset.
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, a feature is missing, metadata and frames disagree, timestamps
            leave the frame rate's grid, or frames are not in order. The message names the episode.
        MemoryError: If the frames would take more than the limit; the message has both numbers.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        schema: Mapping[str, Any],
        source_id: str,
        memory_limit_bytes: int,
        mapping: LeRobotFieldMappingCfg | None = None,
        episodes: Sequence[int] | None = None,
        repo_id: str | None = None,
        episode_sample_budget: int | None = None,
        episode_sample_hard_limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        checked = validate_data_schema(schema)
        check_source_id(source_id)
        check_int("memory_limit_bytes", memory_limit_bytes, 1)
        if mapping is not None and not isinstance(mapping, LeRobotFieldMappingCfg):
            raise TypeError(f"mapping must be a LeRobotFieldMappingCfg or None, got {type(mapping).__name__}")
        meta = read_metadata(Path(root), repo_id)
        numbers = select_episodes(episodes, len(meta.lengths))
        budget = check_budget(episode_sample_budget, episode_sample_hard_limit, len(numbers))
        check_step("the dataset's frame rate", 1 / meta.fps, checked)
        sidecar = read_sidecar(meta.root) if mapping is None else None
        if mapping is None:
            mapping = LeRobotFieldMappingCfg() if sidecar is None else sidecar.mapping
        columns = columns_of(mapping, meta.features, scalar_fields(checked))
        _check_schema(checked, columns)
        layout = _layout(meta, numbers, columns)
        if layout.nbytes > memory_limit_bytes:
            raise MemoryError(
                f"{len(numbers)} episodes of {sum(layout.lengths)} frames need {layout.nbytes} bytes in memory, "
                f"memory_limit_bytes={memory_limit_bytes} allows less; select fewer episodes or raise the limit"
            )
        self.episodes = numbers
        self.fps = meta.fps
        own_tasks = mapping.targets()["task_index",] == "task_index"
        store = _load(meta, numbers, columns, layout, source_run_id(source_id), own_tasks=own_tasks)
        if left := left_out(meta.features):
            _LOG.warning("%s: only numbers are loaded; these features are left out: %s", root, ", ".join(left))
        texts = {"task": dict(_texts(meta))} if sidecar is None or own_tasks else sidecar.language
        super().__init__(
            store,
            schema=checked,
            source_id=source_id,
            budget=budget,
            seed=seed,
            language=SourceLanguage({kind: of_kind for kind, of_kind in texts.items() if of_kind}),
        )


def _check_schema(schema: Mapping[str, Any], columns: Sequence[Column]) -> None:
    for section, name in (("observation", "obs"), ("action", "actions")):
        found = {
            ".".join(column.key[1:]): (column.shape, torch.from_numpy(np.empty(0, column.dtype)).dtype)
            for column in columns
            if column.key[0] == name
        }
        check_features(schema, section, found)


def _layout(meta: DatasetMetadata, numbers: Sequence[int], columns: Sequence[Column]) -> ResidentLayout:
    recorded: dict[FieldKey, Any] = {column.key: (column.shape, column.dtype) for column in columns}
    return ResidentLayout(lengths=tuple(meta.lengths[number] for number in numbers), fields=resident_fields(recorded))


def _load(
    meta: DatasetMetadata,
    numbers: Sequence[int],
    columns: Sequence[Column],
    layout: ResidentLayout,
    run: int,
    *,
    own_tasks: bool,
) -> ResidentStore:
    count_frames(meta, numbers)
    store = ResidentStore(layout)
    timestamps = _fill(store, meta, numbers, columns, run)
    if own_tasks:
        _blank_tasks(store, meta, numbers)
    store.seal()
    _check_timestamps(store, timestamps, meta.fps, numbers)
    check_episodes(store, numbers)
    return store


def _fill(
    store: ResidentStore, meta: DatasetMetadata, numbers: Sequence[int], columns: Sequence[Column], run: int
) -> NDArray[np.float64]:
    """Write all frames into the store; return their timestamps, by position in its blocks."""
    views = store.frames()
    keys = {column.key for column in columns}
    row_of_episode = np.full(len(meta.lengths), -1, np.int64)
    row_of_episode[list(numbers)] = np.arange(len(numbers))
    at, _ = store.positions()
    if ("valid",) not in keys:
        views["valid",][at] = True
    timestamps = np.full(store.layout.frames, np.nan)
    features = list(dict.fromkeys([*_INDEX_FEATURES, *(column.feature for column in columns)]))
    for piece in read_frames(meta, numbers, features):
        episode, frame = piece["episode_index"][:, 0], piece["frame_index"][:, 0]
        place = _places(store, row_of_episode, episode, frame)
        timestamps[place] = piece["timestamp"][:, 0]
        for column in columns:
            views[column.key][place] = _values(column, piece[column.feature])
        if all(key in keys for key in _IDENTITY):
            views["frame_ids",][place] = np.stack([views[key][place] for key in _IDENTITY], -1)
        else:
            views["frame_ids",][place] = np.stack([np.full_like(episode, run), episode, frame], -1)
    missing = at[np.isnan(timestamps[at])]
    if len(missing):
        row_number = int(np.searchsorted(store.begin, missing[0], side="right")) - 1
        raise ValueError(
            f"episode {numbers[row_number]} has no frame with the frame_index {missing[0] - store.begin[row_number]} "
            "and a timestamp, or has one of them twice"
        )
    return timestamps


def _places(
    store: ResidentStore, row_of_episode: NDArray[np.int64], episode: NDArray[np.int64], frame: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where the frames lie in the store's blocks."""
    unknown = (episode < 0) | (episode >= len(row_of_episode))
    row = np.where(unknown, -1, row_of_episode[np.where(unknown, 0, episode)])
    wrong = (row < 0) | (frame < 0) | (frame >= store.length[row])
    if wrong.any():
        bad = int(np.flatnonzero(wrong)[0])
        expected = "no such episode is listed" if row[bad] < 0 else f"its metadata says {store.length[row[bad]]} frames"
        raise ValueError(f"episode {episode[bad]} has a frame with the frame_index {frame[bad]}, but {expected}")
    places: NDArray[np.int64] = store.begin[row] + frame
    return places


def _values(column: Column, numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the values of a field, ``[n, *shape]``, from those of its feature."""
    if column.component is None:
        whole: NDArray[Any] = numbers.reshape(len(numbers), *column.shape)
        return whole
    part: NDArray[Any] = numbers[:, column.component]
    if column.dtype.kind == "b" and part.dtype.kind != "b":
        if not np.isin(part, (0, 1)).all():
            raise ValueError(f"{'.'.join(column.key)} must be 0 or 1, {column.feature!r} holds {np.unique(part)[:5]}")
        part = part != 0
    return part


def _check_timestamps(
    store: ResidentStore, timestamps: NDArray[np.float64], fps: float, numbers: Sequence[int]
) -> None:
    """Compare the timestamps of each episode with the grid of the frame rate, anew wherever time is said to jump."""
    views = store.frames()
    at, row = store.positions()
    time_s, step = timestamps[at], at - store.begin[row]
    begins = np.r_[True, row[1:] != row[:-1]]
    if ("continuity_id",) in views:
        continuity = views["continuity_id",][at]
        begins |= np.r_[False, continuity[1:] != continuity[:-1]]
    origin = np.maximum.accumulate(np.where(begins, np.arange(len(at)), 0))
    expected = time_s[origin] + (step - step[origin]) / fps
    tolerance = TIMESTAMP_TOLERANCE / fps + 2 * np.spacing(np.abs(time_s).astype(np.float32)).astype(np.float64)
    wrong = ~(np.abs(time_s - expected) <= tolerance) & views["valid",][at]
    if wrong.any():
        bad = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"episode {numbers[int(row[bad])]}, frame {int(step[bad])} has the timestamp {time_s[bad]:.6f} s; at "
            f"{fps:g} frames per second {expected[bad]:.6f} s is expected, within {tolerance[bad]:.6f} s"
        )


def _blank_tasks(store: ResidentStore, meta: DatasetMetadata, numbers: Sequence[int]) -> None:
    """Give frames whose task has no text the number that means so."""
    at, row = store.positions()
    task = store.frames()["task_index",]
    unknown = ~np.isin(task[at], list(meta.tasks))
    if unknown.any():
        bad = int(np.flatnonzero(unknown)[0])
        raise ValueError(
            f"episode {numbers[int(row[bad])]} has the task_index {task[at[bad]]}, the metadata knows the tasks "
            f"{sorted(meta.tasks)}"
        )
    task[at[~np.isin(task[at], [number for number, _ in _texts(meta)])]] = -1


def _texts(meta: DatasetMetadata) -> list[tuple[int, str]]:
    return [(number, text) for number, text in meta.tasks.items() if text.strip()]
