"""Reads a LeRobot dataset on disk with the official SDK. Nothing in the dataset's folder is changed.

Letters: ``E`` episodes, ``N`` frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.datasets.lerobot_import import import_lerobot
from odstream.validation import check_int

__all__ = ["DatasetMetadata", "count_frames", "read_frames", "read_metadata", "select_episodes"]

_NEEDED = ("meta/info.json", "meta/tasks.parquet", "meta/episodes/*/*.parquet", "data/*/*.parquet")
_READ_ROWS = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetMetadata:
    """What a dataset says of itself."""

    root: Path
    repo_id: str
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    lengths: tuple[int, ...]
    """``[E]`` frames per episode."""
    tasks: Mapping[int, str]
    listed: int
    """Episodes that are listed: more than E, where a recording is being written or was interrupted."""


def read_metadata(root: Path, repo_id: str | None) -> DatasetMetadata:
    """Read and check what the dataset says of itself, without touching its frames.

    Raises:
        FileNotFoundError: If the folder or one of the files of a version 3 dataset is not there.
        ValueError: If the metadata contradicts itself; the message names the episode.
        MissingExtraError: If the SDK is not installed.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    missing = [pattern for pattern in _NEEDED if not any(root.glob(pattern))]
    if missing:
        raise FileNotFoundError(f"{root} is no LeRobot dataset of version 3: it has no {', '.join(missing)}")
    _, metadata_class = import_lerobot()
    repo_id = f"local/{root.name}" if repo_id is None else repo_id
    meta = metadata_class(repo_id, root=root)
    total = int(meta.total_episodes)
    numbers = [int(number) for number in meta.episodes["episode_index"]]
    if numbers != list(range(len(numbers))) or len(numbers) < total or not total:
        raise ValueError(
            f"the metadata of {root} counts {total} episodes, but lists {len(numbers)}, from {numbers[:1]} to "
            f"{numbers[-1:]}"
        )
    # A recording that is interrupted between two files leaves more episodes listed than counted: what counts is there.
    lengths = tuple(int(length) for length in meta.episodes["length"])[:total]
    begins, ends = ([int(at) for at in meta.episodes[f"dataset_{side}_index"]][:total] for side in ("from", "to"))
    for number, (length, begin, end) in enumerate(zip(lengths, begins, ends, strict=True)):
        if length < 1 or end - begin != length:
            raise ValueError(
                f"the metadata of episode {number} says {length} frames, and that they are frames {begin} to {end}: "
                f"{end - begin} of them"
            )
    if len(numbers) > total and sum(lengths) != meta.total_frames:
        raise ValueError(
            f"the metadata of {root} counts {total} episodes of {meta.total_frames} frames, but lists {len(numbers)}"
        )
    tasks = {int(number): str(text) for text, number in meta.tasks["task_index"].items()}
    return DatasetMetadata(
        root=root,
        repo_id=repo_id,
        fps=float(meta.fps),
        features=dict(meta.features),
        lengths=lengths,
        tasks=tasks,
        listed=len(numbers),
    )


def select_episodes(episodes: Sequence[int] | None, total: int) -> tuple[int, ...]:
    """Return the numbers of the episodes to load, in the order given; all for None.

    Raises:
        TypeError: If a number is no int.
        ValueError: If there is none, one is not in the dataset, or one is given twice.
    """
    if episodes is None:
        return tuple(range(total))
    numbers = tuple(episodes)
    if not numbers:
        raise ValueError("episodes must be None or list at least one episode, got none")
    for index, number in enumerate(numbers):
        check_int(f"episodes[{index}] of a dataset with {total} episodes", number, 0, total - 1)
    twice = (
        sorted({number for number in numbers if numbers.count(number) > 1}) if len(set(numbers)) < len(numbers) else []
    )
    if twice:
        raise ValueError(f"episodes must be different, these are given more than once: {twice}")
    return numbers


def count_frames(meta: DatasetMetadata, episodes: Sequence[int]) -> None:
    """Compare how many frames the files hold with what the metadata says, for the selected episodes.

    Raises:
        ValueError: If they differ, or a file cannot be read; the message names the episode or the file.
    """
    import pyarrow
    import pyarrow.parquet

    found = np.zeros(len(meta.lengths), np.int64)
    for path in sorted(meta.root.glob("data/*/*.parquet")):
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=["episode_index"], batch_size=1 << 16):
                    numbers = batch.column(0).to_numpy()
                    known = numbers[(numbers >= 0) & (numbers < len(found))]
                    found += np.bincount(known, minlength=len(found))
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{path} cannot be read; was its recording interrupted? ({error})") from error
    for number in episodes:
        if found[number] != meta.lengths[number]:
            raise ValueError(
                f"the metadata says that episode {number} has {meta.lengths[number]} frames, the files hold "
                f"{found[number]} of it"
            )


def read_frames(
    meta: DatasetMetadata, episodes: Sequence[int], features: Sequence[str]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the frames of the selected episodes in pieces: per feature ``[n, ...]``, flattened behind the first axis.

    Raises:
        ValueError: If a frame lacks a number.
    """
    dataset_class, _ = import_lerobot()
    everything = len(episodes) == meta.listed
    dataset = dataset_class(
        meta.repo_id, root=meta.root, episodes=None if everything else sorted(episodes), download_videos=False
    )
    table = dataset.hf_dataset.with_format("arrow").select_columns(list(features))
    for begin in range(0, len(table), _READ_ROWS):
        piece = table[begin : begin + _READ_ROWS]
        yield {name: _numbers(name, piece.column(name), piece.num_rows) for name in features}


def _numbers(name: str, column: Any, rows: int) -> NDArray[Any]:
    """Return a column as ``[rows, numbers per row]``."""
    import pyarrow

    parts = []
    for chunk in column.chunks:
        if isinstance(chunk, pyarrow.ExtensionArray):
            chunk = chunk.storage
        while pyarrow.types.is_list(chunk.type) or pyarrow.types.is_fixed_size_list(chunk.type):
            if chunk.null_count:
                raise ValueError(f"the feature {name!r} has frames without a value")
            chunk = chunk.flatten()
        if chunk.null_count:
            raise ValueError(f"the feature {name!r} has frames without a value")
        parts.append(chunk.to_numpy(zero_copy_only=False))
    numbers = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if len(numbers) % rows:
        raise ValueError(f"the frames of the feature {name!r} have different widths")
    return numbers.reshape(rows, -1)
