"""What the numbers of a source mean: a declaration that its owner makes, that is checked, compared and fingerprinted.

A schema is a mapping of plain JSON values with two declarations, ``observation`` and ``action``::

    {
        "version": 1,
        "observation": {"names": ["joint1_rad", "joint2_rad"], "dtype": "float32"},
        "action": {"names": ["dx_m", "dy_m"], "dtype": "float32", "semantics": "policy_request", "step_dt": 0.05},
    }

A declaration says how wide a frame of it is: by ``names`` (ordered, unique), by ``shape``, or, where the frames are
nested, by ``fields``, a mapping of names to further declarations. ``dtype`` is torch's name of it and may be left out.
``action`` also says what an action is, by ``semantics`` or ``representation``, and how long it acts, by ``step_dt`` in
seconds. ``version`` may stand anywhere. Any further key is kept and fingerprinted: units, frames, normalisation.

Whether a declaration is true nobody can check: two sources with one width may mean different joints. What is checked
is that it is complete, that it fits the data, and that two sources which are used together declare the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from tensordict import TensorDictBase

from odstream.validation import check_finite, check_int

__all__ = [
    "check_features",
    "data_schema_fingerprint",
    "features_of",
    "require_same_schema",
    "scalar_fields",
    "validate_data_schema",
]

Schema = Mapping[str, Any]
Feature = tuple[tuple[int, ...], torch.dtype]
"""Shape of one frame, and dtype."""

_SECTIONS = {"observation": "obs", "action": "actions"}
_WIDTHS = ("names", "shape", "fields")


def validate_data_schema(schema: Schema) -> dict[str, Any]:
    """Return a detached copy of ``schema`` in plain JSON values (tuples become lists).

    Raises:
        TypeError: If the schema, a declaration or a value in it has the wrong type.
        ValueError: If a declaration is missing, empty or contradicts itself. The message names its place.
    """
    if not isinstance(schema, Mapping):
        raise TypeError(f"schema must be a mapping, got {schema!r} ({type(schema).__name__})")
    plain: dict[str, Any] = _plain(schema, "schema")
    for section in _SECTIONS:
        if section not in plain:
            raise ValueError(f"schema.{section} is missing; a source needs the declarations {', '.join(_SECTIONS)}")
        _check_declaration(plain[section], f"schema.{section}")
    _check_versions(plain, "schema")
    timing = plain["observation"].get("timing", "pre_action")
    if timing != "pre_action":
        raise ValueError(
            f"schema.observation.timing must be 'pre_action', got {timing!r}: an observation is paired with the action "
            "that was chosen on it"
        )
    action = plain["action"]
    given = [name for name in ("semantics", "representation") if name in action]
    if not given:
        raise ValueError("schema.action must say what an action is, by 'semantics' or 'representation'; got neither")
    for name in given:
        _check_text(action[name], f"schema.action.{name}")
    action["step_dt"] = check_finite("schema.action.step_dt (seconds)", action.get("step_dt"))
    return plain


def data_schema_fingerprint(schema: Schema) -> str:
    """Return the SHA-256 of a schema as 64 hexadecimal digits.

    The order of keys in a mapping does not matter, the order of lists and every value does. It identifies the
    declaration: not the data, and not the code of a transformation.

    Raises:
        TypeError, ValueError: As `validate_data_schema`.
    """
    text = json.dumps(validate_data_schema(schema), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def require_same_schema(first: Schema, *others: Schema) -> None:
    """Return if all schemas declare the same. For whoever mixes batches of several sources.

    Raises:
        ValueError: If one differs from the first; the message names the place and both sides.
        TypeError: As `validate_data_schema`.
    """
    expected = validate_data_schema(first)
    for number, other in enumerate(others, start=2):
        difference = next(_differences(expected, validate_data_schema(other), "schema"), None)
        if difference is not None:
            place, ours, theirs = difference
            raise ValueError(f"schemas differ at {place}: {ours} in the first, {theirs} in number {number}")


def features_of(batch: TensorDictBase, key: str, batch_dims: int = 2) -> dict[str, Feature]:
    """Return shape per frame and dtype of ``batch[key]``: under ``""`` if it is flat, else under dotted names."""
    value = batch[key]
    if isinstance(value, torch.Tensor):
        return {"": (tuple(value.shape[batch_dims:]), value.dtype)}
    return {
        name if isinstance(name, str) else ".".join(name): (tuple(leaf.shape[batch_dims:]), leaf.dtype)
        for name, leaf in value.items(include_nested=True, leaves_only=True)
    }


def check_features(schema: Schema, section: str, found: Mapping[str, Feature]) -> None:
    """Compare recorded features with what a checked schema declares.

    Args:
        schema: As `validate_data_schema` returned it.
        section: ``"observation"`` or ``"action"``.
        found: As `features_of` returns it.

    Raises:
        ValueError: If they differ; the message names the field, what was declared and what was found.
    """
    field = _SECTIONS[section]
    declared = dict(_leaves(schema[section]))
    if declared.keys() != found.keys():
        wanted, there = (sorted(name or "(flat)" for name in names) for names in (declared, found))
        raise ValueError(f"schema.{section} declares the fields {wanted}, {field} has {there}")
    for name, declaration in declared.items():
        shape, dtype = found[name]
        place = f"{field}.{name}" if name else field
        expected = _shape(declaration)
        if shape != expected:
            by = "names" if "names" in declaration else "shape"
            raise ValueError(
                f"{place} has the shape {shape} per frame, its {by} in schema.{section} declare {expected}"
            )
        wanted_dtype = declaration.get("dtype")
        if wanted_dtype is not None and getattr(torch, wanted_dtype) is not dtype:
            raise ValueError(f"{place} has the dtype {dtype}, schema.{section} declares {wanted_dtype!r}")


def scalar_fields(schema: Schema) -> frozenset[tuple[str, ...]]:
    """Return the fields of a batch that a checked schema declares with the shape ``[]``."""
    return frozenset(
        (field, *(name.split(".") if name else ()))
        for section, field in _SECTIONS.items()
        for name, declaration in _leaves(schema[section])
        if _shape(declaration) == ()
    )


# ---------------------------------------------------------------- inside


def _plain(value: Any, place: str) -> Any:
    """Return a copy in dicts, lists, strings, numbers, bools and None."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"keys of {place} must be strings, got {key!r} ({type(key).__name__})")
        return {key: _plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} must be finite, got {value!r}")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"{place} must be a plain JSON value, got {value!r} ({type(value).__name__})")


def _check_declaration(declaration: Any, place: str) -> None:
    if not isinstance(declaration, dict):
        raise TypeError(f"{place} must be a mapping, got {declaration!r} ({type(declaration).__name__})")
    if not any(name in declaration for name in _WIDTHS):
        raise ValueError(f"{place} must declare its width by 'names', 'shape' or 'fields'; got {sorted(declaration)}")
    if "fields" in declaration:
        _check_fields(declaration, place)
        return
    if "shape" in declaration:
        _check_shape(declaration["shape"], f"{place}.shape")
    if "names" in declaration:
        _check_names(declaration["names"], f"{place}.names")
        if declaration.get("shape", [len(declaration["names"])]) != [len(declaration["names"])]:
            raise ValueError(
                f"{place} contradicts itself: {len(declaration['names'])} names, shape {declaration['shape']}"
            )
    dtype = declaration.get("dtype")
    if dtype is not None and (not isinstance(dtype, str) or not isinstance(getattr(torch, dtype, None), torch.dtype)):
        raise ValueError(f"{place}.dtype must be torch's name of a dtype, such as 'float32', got {dtype!r}")


def _check_fields(declaration: dict[str, Any], place: str) -> None:
    beside = [name for name in ("names", "shape", "dtype") if name in declaration]
    if beside:
        raise ValueError(f"{place} has 'fields', so {', '.join(beside)} must stand in them")
    fields = declaration["fields"]
    if not isinstance(fields, dict) or not fields:
        raise ValueError(f"{place}.fields must be a mapping with at least one declaration, got {fields!r}")
    for name, inner in fields.items():
        if not name or "." in name:
            raise ValueError(f"names in {place}.fields must be non-empty and without dots, got {name!r}")
        _check_declaration(inner, f"{place}.fields.{name}")


def _check_shape(shape: Any, place: str) -> None:
    if not isinstance(shape, list):
        raise TypeError(f"{place} must be a list of extents, got {shape!r} ({type(shape).__name__})")
    for index, extent in enumerate(shape):
        check_int(f"{place}[{index}]", extent, 1)


def _check_names(names: Any, place: str) -> None:
    if not isinstance(names, list) or not names:
        raise ValueError(f"{place} must be a list of at least one name, got {names!r}")
    for index, name in enumerate(names):
        _check_text(name, f"{place}[{index}]")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{place} must be unique, these occur more than once: {twice}")


def _check_text(value: Any, place: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{place} must be a non-blank string, got {value!r}")


def _check_versions(value: Any, place: str) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_versions(item, f"{place}[{index}]")
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if key == "version" and not isinstance(item, dict):
            if not isinstance(item, str):
                check_int(f"{place}.version", item, 1)
            else:
                _check_text(item, f"{place}.version")
        else:
            _check_versions(item, f"{place}.{key}")


def _leaves(declaration: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if "fields" not in declaration:
        yield name, declaration
        return
    for inner, item in declaration["fields"].items():
        yield from _leaves(item, f"{name}.{inner}" if name else inner)


def _shape(declaration: Mapping[str, Any]) -> tuple[int, ...]:
    return (len(declaration["names"]),) if "names" in declaration else tuple(declaration["shape"])


_MISSING = object()


def _differences(ours: Any, theirs: Any, place: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from _differences(ours.get(key, _MISSING), theirs.get(key, _MISSING), f"{place}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        pairs: Sequence[tuple[Any, Any]] = list(zip_longest(ours, theirs, fillvalue=_MISSING))
        for index, (left, right) in enumerate(pairs):
            yield from _differences(left, right, f"{place}[{index}]")
    elif type(ours) is not type(theirs) or ours != theirs:
        yield place, _shown(ours), _shown(theirs)


def _shown(value: Any) -> str:
    return "nothing" if value is _MISSING else repr(value)
