"""``throughput.json`` and ``plan.json``: versioned, read strictly. Pure.

A document says its format and version and has exactly the fields of its class: what is missing, additional, repeated
or no finite number is an error that names the field.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from odstream.calibration.throughput import Throughput
from odstream.configuration import ODSConfiguration, ODSReuseProfileCfg, ODSRuntimeCfg, configure_ods

THROUGHPUT_FORMAT, THROUGHPUT_VERSION = "odstream.throughput", 1
PLAN_FORMAT, PLAN_VERSION = "odstream.plan", 1

_Record = TypeVar("_Record")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanInputs:
    """Everything that a plan follows from."""

    accepted_episodes_per_second: float
    training_chunks_per_second: float
    profile: ODSReuseProfileCfg
    runtime: ODSRuntimeCfg

    def plan(self) -> ODSConfiguration:
        """Derive the plan; see `configure_ods`."""
        return configure_ods(
            self.accepted_episodes_per_second,
            self.training_chunks_per_second,
            profile=self.profile,
            runtime=self.runtime,
        )


# ---------------------------------------------------------------- throughput.json


def throughput_to_json(throughput: Throughput) -> str:
    """Write the document; floats keep every digit."""
    header = {"format": THROUGHPUT_FORMAT, "version": THROUGHPUT_VERSION}
    return _dumped({**header, **dataclasses.asdict(throughput)})


def throughput_from_json(text: str) -> Throughput:
    """Read a document that `throughput_to_json` wrote.

    Raises:
        ValueError: If it is no such document, of another version, or inconsistent.
    """
    fields = _body(text, THROUGHPUT_FORMAT, THROUGHPUT_VERSION)
    warnings = fields.get("warnings")
    if isinstance(warnings, list):
        fields["warnings"] = tuple(warnings)
    return record_from_mapping(Throughput, fields, "the throughput document")


# ---------------------------------------------------------------- plan.json


def plan_to_json(inputs: PlanInputs) -> str:
    """Write the plan together with everything it follows from."""
    header = {"format": PLAN_FORMAT, "version": PLAN_VERSION}
    return _dumped({**header, "inputs": dataclasses.asdict(inputs), "plan": dataclasses.asdict(inputs.plan())})


def plan_from_json(text: str) -> tuple[ODSConfiguration, PlanInputs]:
    """Read a document that `plan_to_json` wrote. The plan is derived again and must be the one that was written.

    Raises:
        ValueError: If it is no such document, of another version, or its plan does not follow from its inputs.
    """
    body = _body(text, PLAN_FORMAT, PLAN_VERSION)
    check_names(body, {"inputs", "plan"}, set(), "the plan document")
    parts = _mapping(body["inputs"], "inputs")
    for name, cls in (("profile", ODSReuseProfileCfg), ("runtime", ODSRuntimeCfg)):
        if name in parts:
            parts[name] = record_from_mapping(cls, _mapping(parts[name], name), name)
    inputs = record_from_mapping(PlanInputs, parts, "inputs")
    plan = inputs.plan()
    written = _mapping(body["plan"], "plan")
    derived = json.loads(_dumped(dataclasses.asdict(plan)))
    check_names(written, set(derived), set(), "plan")
    changed = [
        f"{name}: {written[name]!r}, derived {derived[name]!r}" for name in derived if written[name] != derived[name]
    ]
    if changed:
        raise ValueError("the plan does not follow from its inputs; plan again: " + "; ".join(changed))
    return plan, inputs


# ---------------------------------------------------------------- strict reading


def record_from_mapping(cls: type[_Record], fields: Mapping[str, Any], where: str) -> _Record:
    """Build a dataclass from a mapping with exactly its fields; those with a default may be missing.

    Raises:
        ValueError: If a field is missing, unknown, or not acceptable to the class.
    """
    known = {
        f.name: f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
    }
    required = {name for name, is_required in known.items() if is_required}
    check_names(fields, required, set(known) - required, where)
    return cls(**fields)


def check_names(fields: Mapping[str, Any], required: set[str], optional: set[str], where: str) -> None:
    """Refuse names that are missing or unknown.

    Raises:
        ValueError: If there are any; an unknown name is told with the nearest known one.
    """
    missing = sorted(required - fields.keys())
    unknown = sorted(str(name) for name in fields.keys() - required - optional)
    problems = []
    if missing:
        problems.append("misses " + ", ".join(missing))
    for name in unknown:
        close = difflib.get_close_matches(name, sorted(required | optional), n=1, cutoff=0.0)
        problems.append(f"has an unknown field {name!r}" + (f" (close to {close[0]!r})" if close else ""))
    if problems:
        raise ValueError(f"{where} {', '.join(problems)}")


def _body(text: str, expected_format: str, version: int) -> dict[str, Any]:
    """Return the document's fields without its header."""
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"the document is no JSON: {error}") from error
    fields = _mapping(document, "the document")
    found_format, found_version = fields.pop("format", None), fields.pop("version", None)
    if found_format != expected_format:
        raise ValueError(f"format must be {expected_format!r}, got {found_format!r}")
    if isinstance(found_version, bool) or found_version != version:
        raise ValueError(f"version must be {version}, the one that this release reads, got {found_version!r}")
    return fields


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a mapping of fields, got {type(value).__name__}")
    return dict(value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the document repeats {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"the document holds {name}, which is no finite number")


def _dumped(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
