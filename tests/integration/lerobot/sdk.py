"""LeRobot's SDK, or why it is not there; and datasets that are written with it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odstream.datasets.lerobot_import import import_lerobot

_INSTALLED = importlib.util.find_spec("lerobot") is not None

lerobot = [
    pytest.mark.lerobot,
    pytest.mark.skipif(not _INSTALLED, reason="LeRobot's SDK is not installed: pip install 'odstream[lerobot]'"),
    pytest.mark.timeout(300),
    # What the SDK and its dependencies warn of is theirs.
    pytest.mark.filterwarnings("default"),
]
"""Marks of every module that needs the SDK."""


FEATURES: dict[str, Any] = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
    "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
}
SCHEMA: dict[str, Any] = {
    "observation": {"names": ["a", "b", "c"], "dtype": "float32"},
    "action": {"names": ["x", "y"], "dtype": "float32", "semantics": "expert_controller_command", "step_dt": 0.1},
}


def frame(episode: int, step: int) -> dict[str, Any]:
    """Numbers that say where they are from: ``100 * episode + step``."""
    number = np.float32(100 * episode + step)
    return {"observation.state": np.full(3, number), "action": np.full(2, number + np.float32(0.5))}


def write_dataset(
    root: Path,
    lengths: Sequence[int],
    *,
    fps: int = 10,
    features: Mapping[str, Any] = FEATURES,
    make: Callable[[int, int], dict[str, Any]] = frame,
    tasks: Sequence[str] = ("pick", "place"),
) -> Path:
    """Write a dataset with LeRobot's own API."""
    dataset_class, _ = import_lerobot()
    dataset = dataset_class.create(f"local/{root.name}", fps=fps, features=dict(features), root=root, use_videos=False)
    for episode, length in enumerate(lengths):
        for step in range(length):
            dataset.add_frame({**make(episode, step), "task": tasks[episode % len(tasks)]})
        dataset.save_episode()
    dataset.finalize()
    return root


def change_metadata(root: Path, episode: int, **values: int) -> None:
    """Falsify what the metadata says of an episode."""
    import pyarrow
    import pyarrow.parquet

    (path,) = root.glob("meta/episodes/*/*.parquet")
    table = pyarrow.parquet.read_table(path)
    for name, value in values.items():
        column = table.column(name).to_pylist()
        column[episode] = value
        table = table.set_column(table.schema.get_field_index(name), name, pyarrow.array(column, pyarrow.int64()))
    pyarrow.parquet.write_table(table, path)


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
