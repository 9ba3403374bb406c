"""Which features an engine's fields become in a LeRobot dataset, and how they are found again. Pure.

Observations become ``observation.state``, or ``observation.NAME`` where they are nested; actions ``action``; rewards
``next.reward``; further fields keep their names. The engine's annotations are one vector of integers, and so is the
provenance: a dozen features of one number each would be a dozen entries in all of LeRobot's statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.cache.layout import ANNOTATIONS, PROVENANCE, Field, FieldKey
from odstream.datasets.lerobot_fields import LeRobotFieldMappingCfg

__all__ = ["FeaturePlan", "plan_features"]

ANNOTATIONS_FEATURE, PROVENANCE_FEATURE = "ods.annotations", "ods.provenance"
_PACKED: dict[str, tuple[Field, ...]] = {ANNOTATIONS_FEATURE: ANNOTATIONS, PROVENANCE_FEATURE: PROVENANCE}
_MAX_AXES = 5
_IMAGE_AXES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class FeaturePlan:
    """What is written."""

    features: Mapping[str, dict[str, Any]]
    """LeRobot's declarations."""
    sources: Mapping[str, FieldKey]
    """The field that each feature holds, except the packed ones."""
    mapping: LeRobotFieldMappingCfg
    """How `LeRobotDataSource` finds everything again."""
    left_out: tuple[str, ...]
    """Fields that are not written, with the reason."""

    def columns(self, frames: Mapping[FieldKey, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the features of an episode, ``[length, *shape]`` each."""
        columns = {
            name: frames[key].reshape(len(frames[key]), *self.features[name]["shape"])
            for name, key in self.sources.items()
        }
        for name, fields in _PACKED.items():
            columns[name] = np.stack([frames[field.key].astype(np.int64) for field in fields], -1)
        return columns


def plan_features(fields: Sequence[Field], names: Mapping[FieldKey, Sequence[str]]) -> FeaturePlan:
    """Return what to write for an engine's fields.

    Args:
        fields: Those of the engine's cache, with provenance.
        names: Names of the numbers of flat vectors, where they are known.

    Raises:
        ValueError: If there is no provenance, a name cannot be used, or nothing is left of observations or actions.
    """
    here = {field.key for field in fields}
    if PROVENANCE[0].key not in here:
        raise ValueError("recording keeps where frames come from, which needs include_provenance=True; it is False")
    features: dict[str, dict[str, Any]] = {}
    sources: dict[str, FieldKey] = {}
    left_out: list[str] = []
    packed = {field.key for group in _PACKED.values() for field in group}
    for field in fields:
        if field.key in packed:
            continue
        reason = _unfit(field)
        if reason is not None:
            left_out.append(f"{'.'.join(field.key)} ({reason})")
            continue
        name = _feature_name(field.key)
        sources[name] = field.key
        features[name] = {
            "dtype": field.dtype.name,
            "shape": field.shape or (1,),
            "names": list(names[field.key]) if field.key in names else None,
        }
    for name, group in _PACKED.items():
        features[name] = {"dtype": "int64", "shape": (len(group),), "names": [field.key[0] for field in group]}
    return FeaturePlan(
        features=features, sources=sources, mapping=_mapping(sources, fields, left_out), left_out=tuple(left_out)
    )


def _unfit(field: Field) -> str | None:
    if field.dtype.kind not in "biuf":
        return f"LeRobot has no {field.dtype}"
    if field.dtype == np.uint8 and len(field.shape) == _IMAGE_AXES:
        return "an image; only numbers are recorded"
    if len(field.shape) > _MAX_AXES:
        return f"more than {_MAX_AXES} axes"
    return None


def _feature_name(key: FieldKey) -> str:
    if any("/" in part or "." in part for part in key):
        raise ValueError(f"{key} cannot be recorded: names in LeRobot must not hold '/', nor '.' within one level")
    if key[0] == "obs":
        return ".".join(("observation", *key[1:])) if len(key) > 1 else "observation.state"
    return {"actions": "action", "rewards": "next.reward"}.get(".".join(key), ".".join(key))


def _mapping(sources: Mapping[str, FieldKey], fields: Iterable[Field], left_out: list[str]) -> LeRobotFieldMappingCfg:
    observations = {".".join(key[1:]): name for name, key in sources.items() if key[0] == "obs"}
    if not observations or "action" not in sources:
        raise ValueError(f"nothing is left to record of observations or actions: {left_out}")
    further = {".".join(key): name for name, key in sources.items() if key[0] not in ("obs", "actions")}
    packed = {field.key[0]: f"{name}:{field.key[0]}" for name, group in _PACKED.items() for field in group}
    shapes = {field.key: field.shape for field in fields}
    return LeRobotFieldMappingCfg(
        observation=observations[""] if "" in observations else observations,
        action="action",
        fields={**further, **packed},
        scalars=tuple(".".join(key) for key in sources.values() if shapes[key] == ()),
    )
