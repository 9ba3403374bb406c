"""How good a checkpoint is in scenes that nobody trained on. Knows the policy, not the learner.

    python -m examples.ods.simple_bc_demo.evaluate --checkpoint runs/bc-demo/NAME/policy.pt --episodes 100 --video 4

There are 1,000 held-out scenes, a fixed list; the first so many are run. The same checkpoint gives the same numbers
every time, and each scene ends as it would if it were run alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from examples.ods.simple_bc_demo.intervals import wilson
from odstream.envs.franka.environment import FrankaPickPlace
from odstream.envs.franka.evaluate import EVALUATION_SEED, Evaluation, evaluate, film
from odstream.envs.franka.policy import ChunkPolicy, identity, load_policy
from odstream.envs.franka.scenario import ResetKind
from odstream.errors import MissingExtraError

HELD_OUT_SCENES = 1_000
"""Scene ``i`` has the seed ``EVALUATION_SEED + i``; no producer draws such a seed."""
DEVELOPMENT_SEED = EVALUATION_SEED + HELD_OUT_SCENES
"""First of the scenes for evaluation on the way, apart from the held-out ones."""
TOLERANCES_CM = (3, 2, 1)
REPORT_FORMAT, REPORT_VERSION = "odstream.bc-demo.evaluation", 1
INVALID_INPUT = 2

_SCENES_AT_ONCE = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateCfg:
    """What to evaluate, and what to leave."""

    checkpoint: Path
    """policy.pt or training.pt of a run."""
    episodes: int = 100
    """Held-out scenes, the first so many of 1,000."""
    output: Path | None = None
    """Where to write the result as JSON; films go beside it. By default held-out.json beside the checkpoint, so that a
    run's own evaluation.json stays."""
    reset: ResetKind = "randomised"
    """How far the scenes differ."""
    video: int = 0
    """Scenes to film, the first so many; if all of them were solved, one more that was not, if there is any."""
    viewer: bool = False
    """Show the first scene in MuJoCo's viewer."""

    def __post_init__(self) -> None:
        if not 1 <= self.episodes <= HELD_OUT_SCENES:
            raise ValueError(f"episodes must be 1 to {HELD_OUT_SCENES}, as many as there are, got {self.episodes}")
        if not 0 <= self.video <= self.episodes:
            raise ValueError(f"video must be 0 to episodes={self.episodes}, got {self.video}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate a checkpoint in held-out scenes.

    Returns:
        0, or 2 if the input is not acceptable or something that was asked for is missing. Nothing was run then.
    """
    try:
        cfg = tyro.cli(EvaluateCfg, args=arguments, description=(__doc__ or "").partition("\n")[0])
        if cfg.video or cfg.viewer:
            _require_pictures(cfg)
        policy = load_policy(cfg.checkpoint)
    except (OSError, ValueError, MissingExtraError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return INVALID_INPUT
    torch.set_num_threads(1)
    output = cfg.output or cfg.checkpoint.parent / "held-out.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    result = held_out(policy, cfg.episodes, cfg.reset)
    report = report_of(result, cfg)
    report["films"] = [str(path) for path in _films(policy, result, cfg, output.parent)]
    output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(summary(report, output))
    if cfg.viewer:
        from examples.ods.simple_bc_demo.video import show

        show(film(policy, EVALUATION_SEED, reset=cfg.reset)[0])
    return 0


def held_out(policy: ChunkPolicy, episodes: int, reset: str) -> Evaluation:
    """Run a policy once in each of the first ``episodes`` held-out scenes."""
    parts = []
    for first in range(0, episodes, _SCENES_AT_ONCE):
        count = min(_SCENES_AT_ONCE, episodes - first)
        environment = FrankaPickPlace(count, reset=reset)
        parts.append(evaluate(policy, environment, first_seed=EVALUATION_SEED + first))
        environment.close()
    return Evaluation(
        success=np.concatenate([part.success for part in parts]),
        distance_m=np.concatenate([part.distance_m for part in parts]),
        lifted=np.concatenate([part.lifted for part in parts]),
    )


def rates(result: Evaluation) -> dict[str, dict[str, Any]]:
    """Return, per tolerance, how many scenes were solved with the cube that near, and the interval of the rate."""
    scenes = len(result.success)
    counts = {f"{cm}_cm": round(result.rate_within(cm / 100) * scenes) for cm in TOLERANCES_CM}
    return {
        name: {"solved": solved, "scenes": scenes, "rate": solved / scenes, "interval_95": wilson(solved, scenes)}
        for name, solved in counts.items()
    }


def report_of(result: Evaluation, cfg: EvaluateCfg) -> dict[str, Any]:
    """Return the result as a document. It holds no time of day and no duration: the same twice."""
    scenes = zip(result.success.tolist(), result.distance_m.tolist(), result.lifted.tolist(), strict=True)
    return {
        "format": REPORT_FORMAT,
        "version": REPORT_VERSION,
        "checkpoint": {
            "file": cfg.checkpoint.name,
            "sha256": hashlib.sha256(cfg.checkpoint.read_bytes()).hexdigest(),
            **identity(),
        },
        "reset": cfg.reset,
        "first_seed": EVALUATION_SEED,
        "success": rates(result),
        "median_distance_mm": float(np.median(result.distance_m) * 1e3),
        "lifted": float(result.lifted.mean()),
        "scenes": [
            {"scene": index, "solved": solved, "distance_mm": distance_m * 1e3, "lifted": lifted}
            for index, (solved, distance_m, lifted) in enumerate(scenes)
        ],
    }


def summary(report: dict[str, Any], output: Path) -> str:
    """Return a few lines for the terminal."""
    lines = [
        f"within {name.replace('_', ' ')}  {entry['solved']:>4} of {entry['scenes']} held-out scenes = "
        f"{entry['rate']:.1%}  (95 % interval {entry['interval_95'][0]:.1%} to {entry['interval_95'][1]:.1%})"
        for name, entry in report["success"].items()
    ]
    lines.append(f"median distance {report['median_distance_mm']:.1f} mm; {output}")
    lines += [f"film {path}" for path in report["films"]]
    return "\n".join(lines)


def scenes_to_film(success: Sequence[bool], count: int) -> list[int]:
    """Return the first ``count`` scenes, and one that failed if there is any and it is not among them."""
    scenes = list(range(min(count, len(success))))
    failures = [scene for scene, solved in enumerate(success) if not solved]
    if scenes and failures and failures[0] not in scenes:
        scenes.append(failures[0])
    return scenes


def _films(policy: ChunkPolicy, result: Evaluation, cfg: EvaluateCfg, folder: Path) -> list[Path]:
    scenes = scenes_to_film(result.success.tolist(), cfg.video)
    if not scenes:
        return []
    from examples.ods.simple_bc_demo.video import write_film

    files = []
    for scene in scenes:
        poses, solved = film(policy, EVALUATION_SEED + scene, reset=cfg.reset)
        name = f"scene-{scene:04}-{'solved' if solved else 'failed'}"
        files.append(write_film(poses, folder / name))
    return files


def _require_pictures(cfg: EvaluateCfg) -> None:
    from examples.ods.simple_bc_demo.video import require_film, require_viewer

    if cfg.video:
        require_film()
    if cfg.viewer:
        require_viewer()


if __name__ == "__main__":
    raise SystemExit(main())
