"""Writes episodes into a LeRobot dataset with the official SDK, so that what can be read is always complete.

The SDK finishes a file only when it is told to, and what it has not finished cannot be read: not by anybody, and not in
part. So it never works in the dataset itself. (a) A small working copy holds the dataset's counters and its last
files, which is what the SDK needs to go on. (b) It writes a few episodes there and finishes the files. (c) They are
linked into the dataset: data first, what counts it last. A reader finds the dataset as it was before or after.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from odstream.datasets.lerobot_fields import LeRobotFieldMappingCfg
from odstream.datasets.lerobot_import import import_lerobot
from odstream.datasets.lerobot_sidecar import Sidecar, read_sidecar, write_sidecar
from odstream.recording.spool import RecordingPlan, SpooledEpisode

__all__ = ["LeRobotWriter"]

_INFO = Path("meta/info.json")
_REWRITTEN = ("meta/stats.json", "meta/tasks.parquet")
_IMAGE_PASS = ("lerobot.datasets.dataset_writer", "lerobot.datasets.lerobot_dataset")


class LeRobotWriter:
    """Appends episodes to one dataset. One writer at a time.

    Args:
        root: The dataset's folder; made with the first episodes.
        work: Folder for working copies, on the same file system.
        plan: Features, frame rate and origin.

    Raises:
        MissingExtraError: If the SDK is not installed.
    """

    def __init__(self, root: Path, work: Path, plan: RecordingPlan) -> None:
        self.root, self._plan = root, plan
        self._copy, self._cache = work / "dataset", work / "cache"
        self._sdk, _ = import_lerobot()
        _discard_uncounted(root)

    @property
    def episodes(self) -> int:
        """Episodes that the dataset counts."""
        return _counted(self.root)

    def append(self, episodes: Sequence[SpooledEpisode]) -> None:
        """Write ``episodes``, one or more, into a file of their own, and make them readable.

        Raises:
            Exception: What the SDK raises. The dataset is as it was before.
        """
        self._clean()
        with _cache_at(self._cache), _without_image_pass():
            dataset = self._open()
            for episode in episodes:
                dataset.save_episode(self._buffer(episode, dataset.meta.total_episodes))
            dataset.finalize()
        self._publish(episodes)
        self._clean()

    def _open(self) -> Any:
        repo_id, counted = f"local/{self.root.name}", self.episodes
        if not counted:
            features = {name: dict(feature) for name, feature in self._plan.features.items()}
            return self._sdk.create(repo_id, fps=self._plan.fps, features=features, root=self._copy, use_videos=False)
        self._copy_tail()
        if hasattr(self._sdk, "resume"):
            return self._sdk.resume(repo_id, root=self._copy)
        return self._sdk(repo_id, root=self._copy, episodes=[counted - 1], download_videos=False)

    def _copy_tail(self) -> None:
        """Make a copy that knows the dataset's counters and its last episode."""
        for name in (str(_INFO), *_REWRITTEN):
            (self._copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / name, self._copy / name)
        for folder in ("data", "meta/episodes"):
            last = max((self.root / folder).glob("*/*.parquet"))
            _link(last, self._copy / last.relative_to(self.root))

    def _buffer(self, episode: SpooledEpisode, number: int) -> dict[str, Any]:
        """Return an episode in the form in which the SDK collects one."""
        length = len(next(iter(episode.columns.values())))
        columns = {
            name: values[:, 0] if values.shape[1:] == (1,) else values for name, values in episode.columns.items()
        }
        frames = np.arange(length)
        return {
            **columns,
            "size": length,
            "task": [episode.task] * length,
            "episode_index": number,
            "frame_index": frames,
            "timestamp": (frames / self._plan.fps).astype(np.float32),
            "index": [],  # the SDK fills these
            "task_index": [],
        }

    def _publish(self, episodes: Sequence[SpooledEpisode]) -> None:
        for folder in ("data", "meta/episodes"):
            for path in sorted((self._copy / folder).glob("*/*.parquet")):
                target = self.root / path.relative_to(self._copy)
                if not target.exists():
                    _link(path, target)
        for name in _REWRITTEN:
            _replace(self._copy / name, self.root / name)
        self._describe(episodes)
        _replace(self._copy / _INFO, self.root / _INFO)

    def _describe(self, episodes: Sequence[SpooledEpisode]) -> None:
        """Write what the recording says of itself, with the texts of the new episodes."""
        before = read_sidecar(self.root)
        language: dict[str, dict[int, str]] = {"task": {}, "subtask": {}}
        for texts in [*([] if before is None else [before.language]), *(episode.language for episode in episodes)]:
            for kind, of_kind in texts.items():
                language[kind].update(of_kind)
        mapping = LeRobotFieldMappingCfg(**{**self._plan.mapping, "scalars": tuple(self._plan.mapping["scalars"])})
        write_sidecar(self.root, Sidecar(mapping=mapping, language=language, recording=self._plan.recording))

    def _clean(self) -> None:
        for folder in (self._copy, self._cache):
            if folder.exists():
                shutil.rmtree(folder)


def _counted(root: Path) -> int:
    path = root / _INFO
    return int(json.loads(path.read_text())["total_episodes"]) if path.exists() else 0


def _discard_uncounted(root: Path) -> None:
    """Remove files that an interrupted writer linked into the dataset, but did not get to count."""
    import pyarrow.parquet

    counted = _counted(root)
    kept: set[str] = set()
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        table = pyarrow.parquet.read_table(path, columns=["episode_index", "data/chunk_index", "data/file_index"])
        if any(number >= counted for number in table.column("episode_index").to_pylist()):
            path.unlink()
            continue
        places = zip(
            table.column("data/chunk_index").to_pylist(), table.column("data/file_index").to_pylist(), strict=True
        )
        kept.update(f"data/chunk-{chunk:03d}/file-{file:03d}.parquet" for chunk, file in places)
    for path in (root / "data").glob("*/*.parquet"):
        if str(path.relative_to(root)) not in kept:
            path.unlink()


def _link(source: Path, target: Path) -> None:
    """Give a finished file, which nobody changes any more, a second name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        draft = target.with_suffix(".new")
        shutil.copyfile(source, draft)
        os.replace(draft, target)


def _replace(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)


@contextmanager
def _cache_at(folder: Path) -> Iterator[None]:
    """Keep what the SDK caches of a working copy out of the user's cache."""
    import datasets

    before, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, folder
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before


@contextmanager
def _without_image_pass() -> Iterator[None]:
    """Skip a pass over every single frame that embeds images, and takes five sixths of the time without finding any."""
    found = [
        (sys.modules[name], "embed_images") for name in _IMAGE_PASS if hasattr(sys.modules.get(name), "embed_images")
    ]
    before = [getattr(module, name) for module, name in found]
    for module, name in found:
        setattr(module, name, _unchanged)
    try:
        yield
    finally:
        for (module, name), function in zip(found, before, strict=True):
            setattr(module, name, function)


def _unchanged(dataset: Any) -> Any:
    return dataset
