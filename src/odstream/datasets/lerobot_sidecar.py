"""What a dataset recorded here says of itself, beside what LeRobot's own metadata says: ``meta/odstream.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odstream.datasets.lerobot_fields import LeRobotFieldMappingCfg

__all__ = ["SIDECAR_PATH", "Sidecar", "read_sidecar", "write_sidecar"]

SIDECAR_PATH = Path("meta/odstream.json")
_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Sidecar:
    """The mapping and the texts of a recording."""

    mapping: LeRobotFieldMappingCfg
    language: Mapping[str, Mapping[int, str]]
    """Texts of the recorded ``task_index`` and ``subtask_index``."""
    recording: Mapping[str, Any]
    """Where the data comes from: the engine's run, its settings, what was left out."""


def read_sidecar(root: Path) -> Sidecar | None:
    """Return what was written, or None if the dataset was not recorded here.

    Raises:
        ValueError: If the file is damaged or of a newer format.
    """
    path = root / SIDECAR_PATH
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"{path} has the format {content['format']!r}, this version reads {_FORMAT}")
        return Sidecar(
            mapping=_mapping(content["mapping"]),
            language={
                kind: {int(number): text for number, text in texts.items()}
                for kind, texts in content["language"].items()
            },
            recording=content["recording"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _mapping(content: dict[str, Any]) -> LeRobotFieldMappingCfg:
    return LeRobotFieldMappingCfg(**{**content, "scalars": tuple(content["scalars"])})


def write_sidecar(root: Path, sidecar: Sidecar) -> None:
    """Write the file as a whole: readers see the old or the new content."""
    mapping = sidecar.mapping
    content = {
        "format": _FORMAT,
        "mapping": {
            "observation": dict(mapping.observation)
            if isinstance(mapping.observation, Mapping)
            else mapping.observation,
            "action": mapping.action,
            "fields": dict(mapping.fields),
            "scalars": list(mapping.scalars),
        },
        "language": {kind: {str(n): text for n, text in texts.items()} for kind, texts in sidecar.language.items()},
        "recording": dict(sidecar.recording),
    }
    path = root / SIDECAR_PATH
    draft = path.with_suffix(".json.new")
    draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(draft, path)
