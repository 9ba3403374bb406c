"""What to run: a YAML file and ``key=value`` overrides, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from examples.async_inference.engine import EngineCfg
from examples.async_inference.learner import LearnerCfg
from examples.async_inference.models import TargetCfg
from odstream.calibration import record_from_mapping
from odstream.cli.debug import DebugCfg
from odstream.perf import PipelineShape
from odstream.validation import check_finite, check_int

SMOKE = ("epochs=3", "steps_per_epoch=50", "batch_size=8", "debug.window_s=0.5", "debug.every_s=0.25")
"""Everything, in a few seconds. What is given on the command line goes before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One run.

    Raises:
        TypeError, ValueError: If a field is out of range, or engines and learner could come to wait for each other.
    """

    target: TargetCfg = field(default_factory=TargetCfg)
    engine: EngineCfg = field(default_factory=EngineCfg)
    learner: LearnerCfg = field(default_factory=LearnerCfg)
    batch_size: int = 16
    """B: sequences of one optimizer step."""
    epochs: int = 10
    """Of `steps_per_epoch` each: data never repeats."""
    steps_per_epoch: int = 200
    """Optimizer steps."""
    device: str = "auto"
    """Of the learner: auto, cpu, cuda. auto: CUDA where there is some."""
    data_timeout_s: float = 60.0
    """Seconds without any new sequence after which the run fails."""
    output: str = "runs/async-inference"
    """The run directory, new or empty; made with metrics only."""
    debug: DebugCfg = field(default_factory=DebugCfg)
    """Whether and what to record, as for ``odstream train``."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "steps_per_epoch"):
            check_int(name, getattr(self, name), 1)
        check_finite("data_timeout_s", self.data_timeout_s)
        if self.debug.selections_per_episode not in (None, 1):
            raise ValueError(
                f"debug.selections_per_episode must be 1, got {self.debug.selections_per_episode}: each sequence is "
                "trained on once"
            )
        self._check_that_it_flows()
        self.torch_device()

    def _check_that_it_flows(self) -> None:
        """Let one engine alone be enough to fill a batch: the others may die."""
        try:
            PipelineShape(
                batch_size=self.batch_size,
                producer_batch=self.engine.sequences,
                pool_capacity=self.engine.slots * self.engine.sequences,
            )
        except ValueError as error:
            raise ValueError(
                f"engine.slots={self.engine.slots} are too few for one engine alone to fill a batch: {error}"
            ) from error

    def torch_device(self) -> torch.device:
        """Return the learner's device.

        Raises:
            ValueError: If it is none, or not there.
        """
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.empty(0, device=self.device).device
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device must be auto, cpu or a device that is there, got {self.device!r}: {error}"
            ) from error


_SECTIONS: dict[str, type[Any]] = {"target": TargetCfg, "engine": EngineCfg, "learner": LearnerCfg, "debug": DebugCfg}


def read_settings(config: Path | None, overrides: Sequence[str], *, smoke: bool = False) -> Settings:
    """Read settings.

    Args:
        config: A YAML file. None: the defaults.
        overrides: ``"dotted.key=value"`` each.
        smoke: Begin from a small run.

    Raises:
        OSError: If the file cannot be read.
        ValueError, TypeError: If a field is unknown, told with the nearest known one, or not acceptable.
    """
    for override in overrides:
        if not override.partition("=")[1]:
            raise ValueError(f"an override must be key=value, got {override!r}")
    text = "" if config is None else config.read_text(encoding="utf-8")
    values = _mapping("the settings", _merged(text, SMOKE if smoke else (), overrides))
    sections = {
        name: record_from_mapping(cls, _mapping(name, values[name]), name)
        for name, cls in _SECTIONS.items()
        if name in values
    }
    return record_from_mapping(Settings, {**values, **sections}, "the settings")


def _merged(text: str, smoke: Sequence[str], overrides: Sequence[str]) -> object:
    try:
        found = OmegaConf.create(text or "{}")
        if not OmegaConf.is_dict(found):
            return OmegaConf.to_container(found)
        parts = (OmegaConf.from_dotlist(list(smoke)), found, OmegaConf.from_dotlist(list(overrides)))
        return OmegaConf.to_container(OmegaConf.merge(*parts), resolve=True)
    except yaml.YAMLError as error:
        raise ValueError(f"the settings are no YAML: {error}") from error
    except OmegaConfBaseException as error:
        raise ValueError(f"the settings cannot be resolved: {error}") from error


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping of settings, got {value!r}")
    return {str(key): item for key, item in value.items()}
