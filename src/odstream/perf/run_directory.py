"""The folder of one run: its metrics and the environment it ran in. Nothing of an earlier run is overwritten."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["RunDirectory", "describe_environment"]

_OF_A_RUN = ("run.json", "metrics.jsonl", "trajectories.json", "tensorboard", "wandb", "report.html", "report-plots")
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
        for name in _OF_A_RUN:
            _remove(self.path / name)
        (self.path / "run.json").write_text(text + "\n", encoding="utf-8")

    @property
    def trajectories_path(self) -> Path:
        """What became of every trajectory."""
        return self.path / "trajectories.json"

    @property
    def records_path(self) -> Path:
        """The JSON lines."""
        return self.path / "metrics.jsonl"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
