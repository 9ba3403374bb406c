"""What a run leaves behind: pictures, numbers, a checkpoint, a summary."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from odstream.envs.franka.evaluate import EVALUATION_SEED, Evaluation, film
from odstream.envs.franka.figures import draw_film_strip, draw_success_curve
from odstream.envs.franka.policy import ChunkPolicy, save_policy
from odstream.envs.franka.training import CurvePoint, State
from odstream.errors import MissingExtraError

CURVE, SCENE, NUMBERS, CHECKPOINT = "success.png", "scene.png", "demo.json", "policy.pt"
NUMBERS_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run went. Times in seconds."""

    target: float
    """Share of fresh scenes that was to be solved."""
    curve: Sequence[CurvePoint]
    """Evaluations in order; the last one is final."""
    updates: int
    """Optimizer steps."""
    updates_wanted: int
    """Optimizer steps that the run was to take; fewer were taken if ``max_training_s`` came first."""
    learner_s: Mapping[State, float]
    """Time per state of the learner, from the first batch on."""
    start_wait_s: float
    """From the start of the producer to a full cache."""
    total_s: float
    """From the start of the producer to its end."""
    stats: Mapping[str, Any]
    """The engine's counters at the end."""

    @property
    def target_met(self) -> bool:
        """Whether enough fresh scenes were solved."""
        return self.curve[-1].evaluation.rate >= self.target

    @property
    def training_s(self) -> float:
        """Time in all states but evaluation."""
        return sum(self.learner_s.values()) - self.learner_s["evaluate"]

    def share(self, state: State) -> float:
        """Share of the training time that the learner spent in ``state``."""
        return self.learner_s[state] / self.training_s


def draw_pictures(outcome: Outcome, policy: ChunkPolicy, reset: str, folder: Path) -> list[str]:
    """Draw what can be drawn. Return, in words, what could not and why; no picture of an earlier run stays."""
    missing = []
    for name in (CURVE, SCENE):
        (folder / name).unlink(missing_ok=True)
    try:
        draw_success_curve(outcome.curve, outcome.target, folder / CURVE)
    except MissingExtraError as error:
        missing.append(f"{CURVE}: {error}")
    try:
        poses, solved = film(policy, EVALUATION_SEED, reset=reset)
        ending = "" if solved else ", and does not solve"
        draw_film_strip(poses, f"The trained policy in a scene that it has never seen{ending}", folder / SCENE)
    except MissingExtraError as error:
        missing.append(f"{SCENE}: {error}")
    return missing


def write_numbers(outcome: Outcome, policy: ChunkPolicy, cfg: Any, folder: Path) -> None:
    """Write the numbers as JSON, and the checkpoint. ``cfg`` is the run's dataclass."""
    save_policy(policy, folder / CHECKPOINT)
    numbers = {
        "format": NUMBERS_FORMAT,
        "target": outcome.target,
        "target_met": outcome.target_met,
        "final": _evaluation_numbers(outcome.curve[-1].evaluation),
        "curve": [_point_numbers(point) for point in outcome.curve],
        "updates": outcome.updates,
        "stopped_by": "updates" if outcome.updates >= outcome.updates_wanted else "max_training_s",
        "total_s": outcome.total_s,
        "learner": {
            "start_wait_s": outcome.start_wait_s,
            "training_s": outcome.training_s,
            "wait_share": outcome.share("wait"),
            "seconds": dict(outcome.learner_s),
            "updates_per_s": outcome.updates / outcome.training_s,
        },
        "engine": dict(outcome.stats),
        "config": asdict(cfg),
        "versions": _versions(),
    }
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=2, default=str) + "\n")


def summarise(outcome: Outcome, folder: Path, missing: Sequence[str]) -> str:
    """Return a few lines for the terminal."""
    final, stats = outcome.curve[-1].evaluation, outcome.stats
    accepted, failed = stats["successful_episodes"], stats["failed_episodes"]
    verdict = "met" if outcome.target_met else "MISSED"
    lines = [
        "",
        f"solved     {final.rate:.0%} of {len(final.success)} fresh scenes (target {outcome.target:.0%}: {verdict}); "
        f"cube within 2 cm {final.rate_within(0.02):.0%}, within 1 cm {final.rate_within(0.01):.0%}",
        f"learner    {outcome.updates} updates in {outcome.training_s:.1f} s: waited for data "
        f"{outcome.share('wait'):.1%} of the time, fetched batches {outcome.share('fetch'):.1%}, computed "
        f"{outcome.share('compute'):.1%} (before that {outcome.start_wait_s:.1f} s until the cache was full)",
        f"producer   {accepted} demonstrations accepted, {failed} failed; "
        f"{accepted / stats['production_seconds']:.0f} accepted per second of its work",
        f"total      {outcome.total_s:.0f} s, of them {outcome.learner_s['evaluate']:.0f} s evaluating",
    ]
    if outcome.updates < outcome.updates_wanted:
        lines.insert(3, f"stopped    by max_training_s, after {outcome.updates} of {outcome.updates_wanted} updates")
    absent = {line.partition(":")[0] for line in missing}
    left = [name for name in (CURVE, SCENE, NUMBERS, CHECKPOINT) if name not in absent]
    lines.append(f"results    {folder}: {', '.join(left)}")
    lines += [f"not drawn  {line}" for line in missing]
    return "\n".join(lines)


def _point_numbers(point: CurvePoint) -> dict[str, Any]:
    return {
        "updates": point.updates,
        "training_s": point.training_s,
        "accepted_episodes": point.episodes,
        **_evaluation_numbers(point.evaluation),
    }


def _evaluation_numbers(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "scenes": len(evaluation.success),
        "success": evaluation.rate,
        "within_2_cm": evaluation.rate_within(0.02),
        "within_1_cm": evaluation.rate_within(0.01),
        "lifted": float(evaluation.lifted.mean()),
        "median_distance_mm": float(np.median(evaluation.distance_m) * 1e3),
    }


def _versions() -> dict[str, str]:
    packages = ("odstream", "mujoco", "torch", "numpy", "gymnasium")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}
