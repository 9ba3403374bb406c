"""``odstream plan``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from odstream.calibration import PlanInputs, plan_to_json, record_from_mapping, render_plan, throughput_from_json
from odstream.cli.task import PROFILE_FILE, file_of
from odstream.configuration import ODSReuseProfileCfg

INVALID_INPUT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCfg:
    """What to plan from, and what is chosen instead of measured."""

    input: Path
    """The throughput document that `odstream calibrate` wrote."""
    profile: str
    """YAML file with the fields of the reuse profile, or the name of a shipped task: franka."""
    output: Path | None = None
    """Where to write the plan as JSON."""
    min_cache_episodes: int = 1
    """Episodes to keep in the cache at least, for diversity."""
    cache_memory_bytes: int | None = None
    """Bytes that stored episodes may take; no limit if not given."""


def main(arguments: Sequence[str]) -> int:
    """Derive cache size, reuse and pacing from measured throughput, and explain them.

    Returns:
        0, or 2 if a file cannot be read or does not allow a plan. Nothing is written then.
    """
    cfg = tyro.cli(PlanCfg, args=arguments, prog="odstream plan", description=(main.__doc__ or "").partition("\n")[0])
    try:
        throughput = _read(cfg.input, throughput_from_json)
        inputs = PlanInputs(
            accepted_episodes_per_second=throughput.accepted_episodes_per_second,
            training_chunks_per_second=throughput.training_chunks_per_second,
            profile=_read(file_of(cfg.profile, PROFILE_FILE), _profile_from_yaml),
            runtime=throughput.runtime(
                min_cache_episodes=cfg.min_cache_episodes, cache_memory_bytes=cfg.cache_memory_bytes
            ),
        )
        text = render_plan(inputs, warnings=throughput.warnings)
        if cfg.output is not None:
            cfg.output.write_text(plan_to_json(inputs), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"odstream plan: {error}", file=sys.stderr)
        return INVALID_INPUT
    print(text, end="")
    return 0


def _read(path: Path, parse: Any) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _profile_from_yaml(text: str) -> ODSReuseProfileCfg:
    try:
        fields = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    except yaml.YAMLError as error:
        raise ValueError(f"the profile is no YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"the profile must be a mapping of fields, got {type(fields).__name__}")
    return record_from_mapping(ODSReuseProfileCfg, {str(name): value for name, value in fields.items()}, "the profile")
