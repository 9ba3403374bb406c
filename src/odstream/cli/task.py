"""Task files: one YAML for ``odstream calibrate`` and ``odstream train``."""

from __future__ import annotations

import importlib
import importlib.resources
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from odstream.calibration import CalibrationCfg, PlannedRun, record_from_mapping
from odstream.calibration.documents import check_names
from odstream.cli.debug import DebugCfg
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.producers.gym_config import validate_gym_config
from odstream.runtime import ODSFlowControllerCfg

if TYPE_CHECKING:
    from odstream.perf.training import TrainingMetrics

SHIPPED = {"franka": "odstream.envs.franka"}
"""Tasks that come with the package: their names, and the packages that hold the two files below."""
TASK_FILE, PROFILE_FILE = "task.yaml", "profile.yaml"
CHOSEN_BY_THE_COMMAND = (
    "refill_policy",
    "lifecycle_event_capacity",
    "episode_sample_budget",
    "episode_sample_hard_limit",
)
"""Engine settings that no task file holds: a calibration needs its own, a plan brings its own."""


class Trainer(Protocol):
    """Prepares a training. Starts nothing yet.

    With metrics on (``debug.enable_perf_metrics``) it also gets ``metrics``, and one line in its loop is enough::

        batches = loader if metrics is None else metrics.batches(loader, engine, current=history_length - 1)
    """

    def __call__(
        self,
        training: Mapping[str, Any],
        *,
        engine: OnlineDataEngineCfg,
        batch_size: int,
        output: Path,
        planned: PlannedRun | None,
        metrics: TrainingMetrics | None = None,
    ) -> Callable[[], bool]:
        """Check the settings and return what trains.

        Args:
            training: Section ``training`` of the task file.
            engine: Settings of the engine to build, with ``refill_policy="manual"``.
            batch_size: Chunks per update.
            output: Folder for the results; it is made before the training runs.
            planned: Gives the training its flow controller. None: there is no plan, the trainer asks for refills.
            metrics: Meter the training; open by the time it runs. Given only if they are on: a trainer that offers
                none may leave this parameter out. Hand them to ``planned.control`` as its observer, too.

        Returns:
            What trains, and then says whether the result is as wanted.

        Raises:
            ValueError, TypeError: If a setting is not acceptable.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task file, checked."""

    engine: OnlineDataEngineCfg
    """With manual refill; see `CHOSEN_BY_THE_COMMAND`."""
    learner: Callable[[OnlineDataEngine, int], Callable[[], object]]
    """Gets the engine and the batch size; returns what samples one batch and completes the update on it."""
    calibration: CalibrationCfg
    trainer: Trainer | None
    training: Mapping[str, Any]
    flow: ODSFlowControllerCfg
    debug: DebugCfg
    text: str
    """The task with all overrides, as YAML."""


def read_task(config: str, overrides: Sequence[str] = ()) -> Task:
    """Read a task file, or a shipped task by its name.

    Args:
        config: Path, or a name in `SHIPPED`.
        overrides: ``"dotted.key=value"`` each; the value is read as YAML.

    Raises:
        OSError: If the file cannot be read.
        ValueError, TypeError: If a field is missing, unknown or not acceptable, or a function cannot be imported.
    """
    return task_from_yaml(file_of(config, TASK_FILE).read_text(encoding="utf-8"), overrides)


def read_engine(config: str, overrides: Sequence[str] = ()) -> OnlineDataEngineCfg:
    """Read the engine settings of a task file alone: all that a command needs which trains and measures nothing.

    Raises:
        As `read_task`.
    """
    parts, _ = _merged(file_of(config, TASK_FILE).read_text(encoding="utf-8"), overrides)
    if "engine" not in parts:
        raise ValueError("the task misses engine, the settings of the engine")
    return _engine_cfg(parts["engine"])


def file_of(config: str, shipped_file: str) -> Path:
    """Return the path that ``config`` is, or the file that a shipped task has under ``shipped_file``."""
    if config not in SHIPPED:
        return Path(config)
    return Path(str(importlib.resources.files(SHIPPED[config]) / shipped_file))


def task_from_yaml(text: str, overrides: Sequence[str] = ()) -> Task:
    """Read a task from text; see `read_task`."""
    for override in overrides:
        if not override.partition("=")[1]:
            raise ValueError(f"an override must be key=value, got {override!r}")
    parts, text = _merged(text, overrides)
    measured = {item.name: item.default is MISSING for item in fields(CalibrationCfg)}
    required = {"engine", "learner", *(name for name, is_required in measured.items() if is_required)}
    check_names(parts, required, {"trainer", "training", "flow", "debug", *measured} - required, "the task")
    trainer = parts.get("trainer")
    return Task(
        engine=_engine_cfg(parts["engine"]),
        learner=_imported("learner", parts["learner"]),
        calibration=CalibrationCfg(**{name: parts[name] for name in measured if name in parts}),
        trainer=None if trainer is None else _imported("trainer", trainer),
        training=_mapping("training", parts.get("training", {})),
        flow=record_from_mapping(ODSFlowControllerCfg, _mapping("flow", parts.get("flow", {})), "flow"),
        debug=record_from_mapping(DebugCfg, _mapping("debug", parts.get("debug", {})), "debug"),
        text=text,
    )


def _merged(text: str, overrides: Sequence[str]) -> tuple[dict[str, Any], str]:
    try:
        task = OmegaConf.create(text)
        if not OmegaConf.is_dict(task):
            raise ValueError(f"the task must be a mapping of fields, got {type(OmegaConf.to_container(task)).__name__}")
        merged = OmegaConf.merge(task, OmegaConf.from_dotlist(list(overrides)))
        values: Any = OmegaConf.to_container(merged, resolve=True)
    except yaml.YAMLError as error:
        raise ValueError(f"the task is no YAML: {error}") from error
    except OmegaConfBaseException as error:
        raise ValueError(f"the task cannot be resolved: {error}") from error
    return {str(name): value for name, value in values.items()}, OmegaConf.to_yaml(OmegaConf.create(values))


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping of settings, got {type(value).__name__}")
    return {str(key): item for key, item in value.items()}


def _engine_cfg(value: object) -> OnlineDataEngineCfg:
    settings = _mapping("engine", value)
    chosen = [name for name in CHOSEN_BY_THE_COMMAND if name in settings]
    if chosen:
        raise ValueError(f"engine must leave {', '.join(chosen)} to the command")
    if isinstance(settings.get("action_contracts"), list):
        settings["action_contracts"] = tuple(settings["action_contracts"])  # YAML has no tuples
    cfg = record_from_mapping(OnlineDataEngineCfg, {**settings, "refill_policy": "manual"}, "engine")
    validate_gym_config(cfg.gym_config)
    return cfg


def _imported(field: str, reference: object) -> Any:
    module, colon, name = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if not (module and colon and name):
        raise ValueError(f"{field} must be 'module:function', got {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python -m`: what lies beside the task file's user is importable
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{field}={reference!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"{field}={reference!r} must be callable, got {function!r}")
    return function
