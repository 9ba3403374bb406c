"""Which features of a LeRobot dataset become which fields of a batch. Pure: looks at declarations, not at data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from odstream.cache.layout import ANNOTATIONS, PROVENANCE, FieldKey

__all__ = ["Column", "LeRobotFieldMappingCfg", "columns_of", "left_out"]

_VISUAL = ("image", "video")
_SCALARS = {field.key[0]: field.dtype for field in (*ANNOTATIONS, *PROVENANCE)}
_DERIVED = ("obs", "actions", "frame_ids", "loss_mask")
_INDEX_FEATURES = ("timestamp", "frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeRobotFieldMappingCfg:
    """Names features of a dataset. ``"feature:name"`` picks the one number of a vector feature that has this name.

    Raises:
        TypeError: If a name is no string.
        ValueError: If a field is one that the source makes itself.
    """

    observation: str | Mapping[str, str] = "observation.state"
    """The feature that is ``obs``; or, for nested observations, features by dotted names (``{"arm.q": "..."}``)."""

    action: str = "action"
    """The feature that is ``actions``."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields of a batch by their names there: ``{"rewards": "next.reward", "continuity_id": "..."}``, dotted
    where they are nested. Names of the engine's annotations mean what they mean there. Without an entry ``task_index``
    is the dataset's own."""

    scalars: tuple[str, ...] = ()
    """Fields, by their dotted names in a batch, whose feature of the shape ``(1,)`` is one number without an axis."""

    def __post_init__(self) -> None:
        for place, name in self._all():
            if not isinstance(name, str) or not name:
                raise TypeError(f"{place} must be the name of a feature, got {name!r} ({type(name).__name__})")
        for name in self.fields:
            if not isinstance(name, str) or not name or name.partition(".")[0] in _DERIVED:
                raise ValueError(f"fields must not name {name!r}; {', '.join(_DERIVED)} are made by the source")

    def _all(self) -> Iterator[tuple[str, Any]]:
        if isinstance(self.observation, Mapping):
            if not self.observation:
                raise ValueError("observation must name at least one feature, got an empty mapping")
            yield from ((f"observation[{name!r}]", feature) for name, feature in self.observation.items())
        else:
            yield "observation", self.observation
        yield "action", self.action
        yield from ((f"fields[{name!r}]", feature) for name, feature in self.fields.items())
        yield from ((f"scalars[{index}]", name) for index, name in enumerate(self.scalars))

    def targets(self) -> dict[FieldKey, str]:
        """Return the feature of every field of a batch."""
        if isinstance(self.observation, Mapping):
            targets: dict[FieldKey, str] = {
                ("obs", *name.split(".")): feature for name, feature in self.observation.items()
            }
        else:
            targets = {("obs",): self.observation}
        targets["actions",] = self.action
        targets.update({tuple(name.split(".")): feature for name, feature in self.fields.items()})
        targets.setdefault(("task_index",), "task_index")
        return targets


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A field, and where it is read from."""

    key: FieldKey
    feature: str
    feature_shape: tuple[int, ...]
    component: int | None
    """Position within a vector feature; None for the whole feature."""
    shape: tuple[int, ...]
    """Per frame, as stored."""
    dtype: np.dtype[Any]
    """As stored."""


def columns_of(
    mapping: LeRobotFieldMappingCfg, features: Mapping[str, Mapping[str, Any]], scalars: frozenset[FieldKey]
) -> tuple[Column, ...]:
    """Return what to read.

    LeRobot has no scalars: one number per frame is a feature of the shape ``(1,)``, like a vector of width 1. Of
    observations and actions the schema decides which of the two it is (``shape: []`` or one name); rewards and
    annotations are scalars, and so is what the mapping calls one; anything else keeps its axis.

    Args:
        mapping: What is wanted.
        features: What the dataset declares: ``dtype``, ``shape`` and ``names`` of every feature.
        scalars: Fields that the schema declares with the shape ``[]``.

    Raises:
        ValueError: If a feature does not exist, is an image or text, or lacks the named number. The message lists what
            there is.
    """
    known = scalars | {tuple(name.split(".")) for name in mapping.scalars}
    return tuple(_column(key, name, features, known) for key, name in mapping.targets().items())


def left_out(features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the image and video features, which are never loaded."""
    return [name for name, feature in features.items() if feature["dtype"] in _VISUAL]


def _column(
    key: FieldKey, name: str, features: Mapping[str, Mapping[str, Any]], scalars: frozenset[FieldKey]
) -> Column:
    place = ".".join(key)
    feature_name, _, part = (name, "", "") if name in features else name.partition(":")
    if feature_name not in features:
        there = [each for each in features if each not in _INDEX_FEATURES]
        raise ValueError(f"{place} is mapped to the feature {name!r}, which the dataset does not have; it has {there}")
    feature = features[feature_name]
    kind, shape = feature["dtype"], tuple(feature["shape"])
    if kind in _VISUAL:
        raise ValueError(f"{place} is mapped to {name!r}, which is of dtype {kind!r}; only numbers can be loaded")
    dtype = _dtype(kind)
    if dtype is None:
        raise ValueError(f"{place} is mapped to {name!r}, whose dtype {kind!r} is no number")
    component = _component(place, feature_name, feature, part) if part else None
    wanted = () if component is not None else shape
    if shape == (1,) and (key in scalars or key[0] in _SCALARS or key == ("rewards",)):
        wanted = ()
    stored = _SCALARS.get(key[0], dtype) if component is not None else dtype
    return Column(
        key=key, feature=feature_name, feature_shape=shape, component=component, shape=wanted, dtype=np.dtype(stored)
    )


def _dtype(kind: str) -> np.dtype[Any] | None:
    try:
        dtype = np.dtype(kind)
    except TypeError:
        return None
    return dtype if dtype.kind in "biuf" else None


def _component(place: str, name: str, feature: Mapping[str, Any], part: str) -> int:
    names = feature.get("names")
    if not isinstance(names, (list, tuple)) or part not in names:
        raise ValueError(f"{place} is mapped to {part!r} of the feature {name!r}, whose names are {names}")
    return list(names).index(part)
