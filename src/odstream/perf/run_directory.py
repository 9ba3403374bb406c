"""The folder of one run: its metrics and the environment it ran in. Nothing of an earlier run is overwritten."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["FILES_OF_A_RUN", "RunDirectory", "describe_environment", "starting_run", "write_whole"]

FILES_OF_A_RUN = (
    "run.json",
    "metrics.jsonl",
    "trajectories.json",
    "task.yaml",
    "plan.json",
    "comparison.json",
    "demo.json",
    "tensorboard",
    "wandb",
    "report.html",
    "report-plots",
)
"""What a run, its trainer's result and its report leave. Another run in the folder takes their place."""
_ASIDE = ".earlier-run"
_PACKAGES = ("odstream", "torch", "numpy", "tensordict", "gymnasium")


def describe_environment() -> dict[str, Any]:
    """Return interpreter, machine and versions of what matters; imports none of it."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": versions,
        "command": sys.argv,
    }


class RunDirectory:
    """Where a run writes: ``run.json``, ``metrics.jsonl`` and a folder per sink.

    Args:
        path: A folder that does not exist yet, or is empty.
        settings: Written to ``run.json``; must be JSON.
        replace: Take a folder that is not empty, and remove from it what a run directory has of an earlier run.

    Raises:
        FileExistsError: If there is something in it.
        TypeError: If ``settings`` cannot be written. Nothing is created then.
    """

    def __init__(self, path: Path | str, settings: Mapping[str, Any] | None = None, *, replace: bool = False) -> None:
        self.path = Path(path)
        text = json.dumps(
            {
                "started_unix_ns": time.time_ns(),
                "environment": describe_environment(),
                "settings": dict(settings or {}),
            },
            indent=2,
            sort_keys=True,
        )
        if self.path.exists() and (not self.path.is_dir() or (any(self.path.iterdir()) and not replace)):
            raise FileExistsError(f"the run directory must be new or empty, {self.path} is not; choose another")
        self.path.mkdir(parents=True, exist_ok=True)
        for name in FILES_OF_A_RUN:
            _remove(self.path / name)
        write_whole(self.path / "run.json", text + "\n")

    @property
    def trajectories_path(self) -> Path:
        """What became of every trajectory."""
        return self.path / "trajectories.json"

    @property
    def records_path(self) -> Path:
        """The JSON lines."""
        return self.path / "metrics.jsonl"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; text as UTF-8."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def starting_run(path: Path) -> Iterator[None]:
    """Leave everything as it was if the block, which makes a run directory and starts what writes there, fails.

    A folder that was not there is removed. Files of an earlier run lie aside meanwhile; afterwards they are deleted.
    """
    if not path.exists():
        try:
            yield
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return
    aside = path / _ASIDE
    _remove(aside)
    aside.mkdir()
    _move(path, aside)
    try:
        yield
    except BaseException:
        for name in FILES_OF_A_RUN:
            _remove(path / name)
        _move(aside, path)
        raise
    finally:
        _remove(aside)


def _move(source: Path, target: Path) -> None:
    for name in FILES_OF_A_RUN:
        if (source / name).exists():
            os.rename(source / name, target / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
