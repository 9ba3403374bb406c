"""A checkpoint to resume from: everything but the data. It is a policy's checkpoint, too, for the evaluator."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.ods.simple_bc_demo.learner import new_learner
from examples.ods.simple_bc_demo.settings import LoopCfg, RunCfg, StreamCfg
from odstream.datasets import BatchSource
from odstream.datasets.resident_source import ResidentSource
from odstream.envs.franka.policy import Learner, LearnerCfg, PolicyCfg, identity, load_checked
from odstream.perf.run_directory import write_whole

CHECKPOINT = "training.pt"
_ENTRIES = ("settings", "updates", "learner", "source", "generator", "torch_rng", "numpy_rng")
_PARTS = {"stream": StreamCfg, "loop": LoopCfg, "learner": LearnerCfg, "policy": PolicyCfg}


def save_training(
    path: Path, cfg: RunCfg, learner: Learner, updates: int, source: BatchSource, generator: torch.Generator
) -> None:
    """Write a checkpoint; the file is replaced as a whole.

    Raises:
        OSError: If there is no room for it. The checkpoint before is still there.
    """
    resident = isinstance(source, ResidentSource)
    document = {
        **identity(),
        "cfg": asdict(learner.policy.cfg),
        "state": learner.policy.state_dict(),
        "training": {
            "settings": json.dumps(asdict(cfg), default=str),
            "updates": updates,
            "learner": learner.state_dict(),
            "source": source.state_dict(generator=generator) if isinstance(source, ResidentSource) else None,
            "generator": None if resident else generator.get_state(),
            "torch_rng": torch.get_rng_state(),
            "numpy_rng": _numpy_state(),
        },
    }
    content = io.BytesIO()  # torch says nothing of a full disk
    torch.save(document, content)
    write_whole(path, content.getvalue())


def load_training(path: Path) -> dict[str, Any]:
    """Read a checkpoint, without running any code that it might hold.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is none, belongs elsewhere, or holds a policy alone.
    """
    training = load_checked(path).get("training")
    if not isinstance(training, dict):
        raise ValueError(f"{path} holds a policy alone; resume from a {CHECKPOINT}")
    if missing := [name for name in _ENTRIES if name not in training]:
        raise ValueError(f"{path} is damaged, or of another version: it misses {', '.join(missing)}")
    return training


def check_resumable(training: Mapping[str, Any], cfg: RunCfg) -> None:
    """Refuse settings that do not fit a checkpoint. Starts nothing.

    Raises:
        ValueError: If the mode or the shape of the policy is another.
    """
    mode = json.loads(training["settings"])["mode"]
    if mode != cfg.mode:
        raise ValueError(f"mode must be {mode!r}, as in the checkpoint, got {cfg.mode!r}")
    try:
        new_learner(cfg).load_state_dict(training["learner"])
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"policy must have the shape that it has in the checkpoint, got {cfg.policy}") from error


def settings_of(path: Path) -> RunCfg:
    """Return the settings with which a checkpoint's run goes on: in a new folder, and offline on the same dataset.

    Raises:
        OSError, ValueError: As `load_training`.
    """
    settings = json.loads(load_training(path)["settings"])
    try:
        parts = {name: cls(**_tuples(settings.pop(name))) for name, cls in _PARTS.items()}
        for name in ("output", "plan", "resume", "dataset"):
            settings[name] = None if settings[name] is None else Path(settings[name])
        cfg = RunCfg(**settings, **parts)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or holds settings of another version: {error}") from error
    dataset = cfg.dataset
    if cfg.is_offline and dataset is None:
        dataset = path.parent / "dataset"
    return replace(cfg, output=None, resume=path, dataset=dataset)


def restore(training: Mapping[str, Any], learner: Learner, source: BatchSource, generator: torch.Generator) -> int:
    """Put everything where it was when the checkpoint was written.

    Args:
        training: As `load_training` returned it.
        learner: New.
        source: New. A resident one must hold the same data; a live one holds its own.
        generator: Of the draws.

    Returns:
        Updates done.

    Raises:
        ValueError: If the learner or a resident source is another.
    """
    learner.load_state_dict(training["learner"])
    if (training["source"] is None) == isinstance(source, ResidentSource):
        raise ValueError("the checkpoint was written on live data and the source is resident, or the other way round")
    if isinstance(source, ResidentSource):
        source.load_state_dict(training["source"], generator=generator)
    else:
        generator.set_state(training["generator"])
    torch.set_rng_state(training["torch_rng"])
    _set_numpy_state(training["numpy_rng"])
    updates: int = training["updates"]
    return updates


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _numpy_state() -> dict[str, Any]:
    state: Any = np.random.get_state(legacy=False)
    return {
        "kind": state["bit_generator"],
        "keys": torch.from_numpy(state["state"]["key"].astype(np.int64)),
        "position": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _set_numpy_state(state: Mapping[str, Any]) -> None:
    keys = state["keys"].numpy().astype(np.uint32)
    np.random.set_state((state["kind"], keys, state["position"], state["has_gauss"], state["gauss"]))
