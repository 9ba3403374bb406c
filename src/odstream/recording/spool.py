"""Episodes on their way into a dataset: one file each, complete or not there.

A recording works in a hidden folder beside the dataset. The recorder puts episodes into it, which takes milliseconds;
a converter, in a process of its own, takes them out in order. Whatever dies, what was put in is not lost.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RecordingPlan", "Spool", "SpooledEpisode", "spool_folder"]

_FORMAT = 1
_DESCRIPTION = "__episode__"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingPlan:
    """What the converter needs to know, beside the episodes."""

    features: Mapping[str, dict[str, Any]]
    """LeRobot's declarations of the columns."""
    fps: int
    mapping: Mapping[str, Any]
    """Fields of the `LeRobotFieldMappingCfg` that finds everything again."""
    recording: Mapping[str, Any]
    """Where the data comes from."""
    episodes_per_file: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SpooledEpisode:
    """A complete episode, as columns."""

    columns: Mapping[str, NDArray[Any]]
    task: str
    """Text of the episode's task; empty for none."""
    language: Mapping[str, Mapping[int, str]]
    """The texts that its ids mean, per kind."""


def spool_folder(root: Path) -> Path:
    """Return where a recording of the dataset ``root`` works: on the same file system, out of every reader's way."""
    return root.parent / f".{root.name}.recording"


class Spool:
    """The folder of one recording.

    Args:
        folder: As `spool_folder` returned it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._end = folder / "end"
        self._failure = folder / "failure.txt"

    @classmethod
    def create(cls, folder: Path, plan: RecordingPlan) -> Spool:
        """Make the folder.

        Raises:
            FileExistsError: If there is one: a recording that runs, or one that was interrupted.
        """
        folder.mkdir(parents=True)
        content = {
            "format": _FORMAT,
            "features": dict(plan.features),
            "fps": plan.fps,
            "mapping": dict(plan.mapping),
            "recording": dict(plan.recording),
            "episodes_per_file": plan.episodes_per_file,
        }
        _write_whole(folder / "plan.json", json.dumps(content).encode())
        return cls(folder)

    def plan(self) -> RecordingPlan:
        """Read the plan.

        Raises:
            ValueError: If it was written by another version.
        """
        content = json.loads((self.folder / "plan.json").read_text())
        if content.pop("format") != _FORMAT:
            raise ValueError(f"{self.folder} was written by another version of odstream")
        features = {
            name: {**feature, "shape": tuple(feature["shape"])} for name, feature in content["features"].items()
        }
        return RecordingPlan(**{**content, "features": features})

    def put(self, number: int, episode: SpooledEpisode) -> None:
        """Add an episode; its number is its place in the dataset."""
        description = {
            "task": episode.task,
            "language": {kind: {str(n): text for n, text in texts.items()} for kind, texts in episode.language.items()},
        }
        content: dict[str, Any] = {_DESCRIPTION: np.frombuffer(json.dumps(description).encode(), np.uint8)}
        content.update(episode.columns)
        draft = self._path(number).with_suffix(".new")
        with open(draft, "wb") as file:
            np.savez(file, **content)
        os.replace(draft, self._path(number))

    def pending(self) -> list[int]:
        """Return the numbers of the episodes that are there, in order."""
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.npz"))

    def get(self, number: int) -> SpooledEpisode:
        """Read an episode."""
        with np.load(self._path(number)) as content:
            columns = {name: content[name] for name in content.files}
        description = json.loads(columns.pop(_DESCRIPTION).tobytes())
        language = {
            kind: {int(n): text for n, text in texts.items()} for kind, texts in description["language"].items()
        }
        return SpooledEpisode(columns=columns, task=description["task"], language=language)

    def drop(self, number: int) -> None:
        """Remove an episode that is in the dataset."""
        self._path(number).unlink(missing_ok=True)

    def end(self) -> None:
        """Say that no further episode comes."""
        self._end.touch()

    @property
    def ended(self) -> bool:
        """Whether no further episode comes."""
        return self._end.exists()

    def fail(self, text: str) -> None:
        """Leave word of why the converter ended."""
        _write_whole(self._failure, text.encode())

    def failure(self) -> str | None:
        """Return why the converter ended, if it failed."""
        return self._failure.read_text() if self._failure.exists() else None

    def forget_failure(self) -> None:
        """Begin anew after a failure."""
        self._failure.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:09d}.npz"


def _write_whole(path: Path, content: bytes) -> None:
    draft = path.with_suffix(path.suffix + ".new")
    draft.write_bytes(content)
    os.replace(draft, path)
