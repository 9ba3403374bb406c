"""``odstream calibrate``."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from odstream.calibration import (
    CalibrationCfg,
    Throughput,
    record_from_mapping,
    run_calibration,
    throughput_to_json,
)
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg

INVALID_INPUT = 2
CHOSEN_HERE = ("refill_policy", "lifecycle_event_capacity", "episode_sample_budget", "episode_sample_hard_limit")
"""Engine settings that a calibration chooses: manual refill, a log that never fills up, no budgets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrateCfg:
    """What to measure, and where to write the result."""

    config: Path
    """YAML file with `engine` (engine settings), `learner` ("module:function") and the settings of the measurement:
    batch_size, measurement_scope, refills, warmup_refills, refill_timeout_s. The function gets the engine and the
    batch size and returns what samples one batch and completes the update on it."""
    output: Path
    """Where to write the throughput document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationTask:
    """A task file, checked."""

    engine: OnlineDataEngineCfg
    learner: Callable[[OnlineDataEngine, int], Callable[[], object]]
    calibration: CalibrationCfg


def main(arguments: Sequence[str]) -> int:
    """Run a producer and a learner together, measure both, and write what the planner needs.

    Returns:
        0, or 2 if the task file is not acceptable. Nothing was started then.
    """
    cfg = tyro.cli(
        CalibrateCfg, args=arguments, prog="odstream calibrate", description=(main.__doc__ or "").partition("\n")[0]
    )
    try:
        task = task_from_yaml(cfg.config.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        return _refuse(f"{cfg.config}: {error}")
    if not cfg.output.parent.is_dir():
        return _refuse(f"{cfg.output}: there is no such directory to write to")
    throughput = calibrate(task)
    cfg.output.write_text(throughput_to_json(throughput), encoding="utf-8")
    print(summary(throughput), end="")
    return 0


def _refuse(message: str) -> int:
    print(f"odstream calibrate: {message}", file=sys.stderr)
    return INVALID_INPUT


def calibrate(task: CalibrationTask) -> Throughput:
    """Start the engine, run the learner beside it, stop the engine."""
    with OnlineDataEngine(task.engine) as engine:
        return run_calibration(
            engine,
            task.learner(engine, task.calibration.batch_size),
            task.calibration,
            bytes_per_episode=engine.bytes_per_episode,
            progress=lambda done, wanted: print(f"refill {done} of {wanted}", file=sys.stderr),
        )


def task_from_yaml(text: str) -> CalibrationTask:
    """Read a task file.

    Raises:
        ValueError, TypeError: If a field is missing, unknown or not acceptable, or the learner cannot be imported.
    """
    try:
        fields = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    except yaml.YAMLError as error:
        raise ValueError(f"the task is no YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"the task must be a mapping of fields, got {type(fields).__name__}")
    parts: dict[str, Any] = {str(name): value for name, value in fields.items()}
    for name in ("engine", "learner"):
        if name not in parts:
            raise ValueError(f"the task misses {name}")
    engine, learner = parts.pop("engine"), parts.pop("learner")
    calibration = record_from_mapping(CalibrationCfg, parts, "the task")
    return CalibrationTask(engine=_engine_cfg(engine), learner=_learner(learner), calibration=calibration)


def _engine_cfg(fields: object) -> OnlineDataEngineCfg:
    if not isinstance(fields, Mapping):
        raise ValueError(f"engine must be a mapping of settings, got {type(fields).__name__}")
    chosen = [name for name in CHOSEN_HERE if name in fields]
    if chosen:
        raise ValueError(f"engine must leave {', '.join(chosen)} to the calibration")
    cfg = record_from_mapping(OnlineDataEngineCfg, {**fields, "refill_policy": "manual"}, "engine")
    return dataclasses.replace(cfg, lifecycle_event_capacity=2 * cfg.buffer_size)


def _learner(reference: object) -> Callable[[OnlineDataEngine, int], Callable[[], object]]:
    module, colon, name = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if not (module and colon and name):
        raise ValueError(f"learner must be 'module:function', got {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python -m`: what lies beside the task file's user is importable
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"learner={reference!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"learner={reference!r} must be callable, got {function!r}")
    return function  # type: ignore[no-any-return]


def summary(throughput: Throughput) -> str:
    """Say in a few lines what was measured, and what speaks against it."""
    rates = throughput.rates()
    lines = [
        f"production  {throughput.accepted_episodes_per_second:.6g} episodes/s active (g), "
        f"{rates.accepted_episodes_per_wall_second:.6g} wall, {throughput.production_intervals} refills",
        f"learner     {throughput.training_chunks_per_second:.6g} chunks/s active (t), "
        f"{rates.training_chunks_per_wall_second:.6g} wall, {throughput.training_intervals} intervals",
        f"latency     {throughput.first_publication_p50_seconds:.6g} s (p50), "
        f"{throughput.first_publication_p95_seconds:.6g} s (p95) to the first publication",
        f"together    {throughput.overlap_seconds:.6g} of {rates.window_seconds:.6g} s",
        f"storage     {throughput.bytes_per_episode:,} bytes per episode",
        *(f"warning     {warning}" for warning in throughput.warnings),
    ]
    return "\n".join(lines) + "\n"
