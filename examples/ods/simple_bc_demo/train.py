"""Train one policy on one kind of data, evaluate it in a fresh process, and leave records.

    python -m examples.ods.simple_bc_demo.train --smoke --no-viewer --no-video
    python -m examples.ods.simple_bc_demo.train                        # measured, planned, streamed, evaluated
    python -m examples.ods.simple_bc_demo.train --mode offline-32      # fixed data, the same learner

Whatever the mode: contexts come from ``source.sample_context``, the learner takes the same number of updates, and the
evaluation has the same held-out scenes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import tyro
from tqdm import tqdm

from examples.ods.simple_bc_demo.arms import Arm, Run, open_arm
from examples.ods.simple_bc_demo.checkpoint import (
    CHECKPOINT,
    check_resumable,
    load_training,
    restore,
    save_training,
    settings_of,
)
from examples.ods.simple_bc_demo.evaluate import DEVELOPMENT_SEED
from examples.ods.simple_bc_demo.journal import Journal
from examples.ods.simple_bc_demo.learner import new_learner
from examples.ods.simple_bc_demo.live import read_plan
from examples.ods.simple_bc_demo.loop import Hooks, Training
from examples.ods.simple_bc_demo.records import RECORDS, TRAJECTORIES, point_of, records_of, summary
from examples.ods.simple_bc_demo.resources import process_age_s
from examples.ods.simple_bc_demo.settings import FULL, SMOKE, RunCfg
from odstream.datasets.lerobot_import import import_lerobot
from odstream.envs.franka.environment import FrankaPickPlace
from odstream.envs.franka.evaluate import Evaluation, evaluate
from odstream.envs.franka.policy import Learner, save_policy
from odstream.errors import MissingExtraError
from odstream.perf import JsonLinesSink, LearnerMeter, PerfMonitor, PipelineShape, RunDirectory
from odstream.perf.run_directory import write_whole

POLICY, EVALUATION = "policy.pt", "evaluation.json"
INVALID_INPUT, INTERRUPTED = 2, 130

_ROOT = Path(__file__).resolve().parents[3]
_FILMS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, and leave records.

    Returns:
        0; 2 if the input is not acceptable or something that was asked for is missing, and nothing was started; 130
        after Ctrl-C.
    """
    journal = Journal(process_age_s())
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        description = (__doc__ or "").partition("\n")[0]
        cfg = tyro.cli(RunCfg, args=given, default=_defaults(given), prog="train", description=description)
        folder = _folder(cfg)
        resumed = _check(cfg, folder)
        directory = RunDirectory(folder, _settings(cfg))
    except (OSError, ValueError, TypeError, MissingExtraError) as error:
        print(f"train: {error}", file=sys.stderr)
        return INVALID_INPUT
    try:
        print(summary(run(cfg, directory, journal, resumed), folder))
    except KeyboardInterrupt:
        checkpoint = folder / CHECKPOINT
        print(f"\ntrain: interrupted; {folder} holds what was written until then", file=sys.stderr)
        if checkpoint.exists():
            print(f"train: go on with --resume {checkpoint}", file=sys.stderr)
        return INTERRUPTED
    return 0


def run(
    cfg: RunCfg, directory: RunDirectory, journal: Journal, resumed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run what the settings say, and return the records.

    Args:
        cfg: Checked.
        directory: New.
        journal: Of this process.
        resumed: A training checkpoint to go on from.
    """
    folder = directory.path
    torch.set_num_threads(1)  # one core for the learner, one for the producer
    meter, generator = LearnerMeter(), torch.Generator().manual_seed(cfg.seed)
    curve: list[dict[str, Any]] = []
    _say(f"{cfg.mode}, seed {cfg.seed}: {folder}")
    resumed_at = 0 if resumed is None else resumed["updates"]
    with open_arm(Run(cfg, folder, journal, meter, generator, resumed_at)) as arm:
        torch.manual_seed(cfg.seed)
        learner = new_learner(cfg)
        updates = 0 if resumed is None else restore(resumed, learner, arm.source, generator)
        delivered_before = 0 if resumed is None or resumed["source"] is None else resumed["source"]["total_delivered"]
        monitor = _monitor(arm, meter, directory)
        hooks = _hooks(cfg, folder, arm, learner, journal, meter, curve, generator)
        training = _training(cfg, arm, learner, meter, hooks)
        training.updates = updates
        with monitor, journal.phase("train"):
            training.run()
    trajectories = arm.exposure.trajectories()
    write_whole(folder / TRAJECTORIES, trajectories.to_json() + "\n")
    save_policy(learner.policy, folder / POLICY)
    facts = arm.facts()
    records = records_of(
        header={"mode": cfg.mode, "seed": cfg.seed, "smoke": cfg.smoke, "settings": _settings(cfg)},
        facts=facts,
        trajectories=trajectories,
        delivered_before=delivered_before,
        meter=meter,
        journal=journal,
        curve=curve,
        updates=training.updates,
    )
    if "comparison_text" in facts:
        _say(f"\nplanned and observed\n{facts['comparison_text']}\n")
    _write(records, folder)  # a training is worth keeping, whatever becomes of its evaluation
    with journal.phase("evaluate"):
        records["evaluation"] = evaluate_in_a_fresh_process(cfg, folder)
    records["phases_s"] = dict(journal.phases_s)
    records["total_s"] = journal.now_s
    _write(records, folder)
    return records


def _write(records: Mapping[str, Any], folder: Path) -> None:
    write_whole(folder / RECORDS, json.dumps(records, indent=2) + "\n")


def evaluate_in_a_fresh_process(cfg: RunCfg, folder: Path) -> dict[str, Any]:
    """Evaluate the run's policy in held-out scenes and return the report.

    Raises:
        RuntimeError: If that process failed.
    """
    command = [sys.executable, "-m", "examples.ods.simple_bc_demo.evaluate"]
    command += ["--checkpoint", str(folder.resolve() / POLICY), "--output", str(folder.resolve() / EVALUATION)]
    command += ["--episodes", str(cfg.final_scenes), "--reset", cfg.stream.reset]
    command += ["--video", str(min(_FILMS, cfg.final_scenes))] if cfg.video else []
    command += ["--viewer"] if cfg.viewer else []
    ended = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"the evaluation ended with exit code {ended.returncode}: {' '.join(command)}")
    report: dict[str, Any] = json.loads((folder / EVALUATION).read_text(encoding="utf-8"))
    for path in report["films"]:
        _say(f"film {path}")
    return report


# ---------------------------------------------------------------- before anything starts


def _defaults(arguments: Sequence[str]) -> RunCfg:
    """Return what holds where the command line says nothing: the settings of a run to resume, or those of a size."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--resume":
            following = arguments[position + 1 : position + 2]
            if not (equals or following):
                break  # the parser says what is missing
            return settings_of(Path(value if equals else following[0]))
    return SMOKE if "--smoke" in arguments else FULL


def _folder(cfg: RunCfg) -> Path:
    if cfg.output is not None:
        return cfg.output
    name = f"{'smoke-' if cfg.smoke else ''}{cfg.mode}-seed{cfg.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs/bc-demo") / name


def _check(cfg: RunCfg, folder: Path) -> dict[str, Any] | None:
    """Refuse what cannot end well. Return the checkpoint to resume from, if there is one."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"output: {folder} is there and not empty; choose a new folder")
    if cfg.is_offline:
        from examples.ods.simple_bc_demo.offline import keep_sdk_within

        keep_sdk_within(folder)
        import_lerobot()
        if cfg.dataset is not None and not cfg.dataset.is_dir():
            raise FileNotFoundError(f"dataset: {cfg.dataset} is not there; say where it is by --dataset")
    if cfg.plan is not None:
        read_plan(cfg.plan, cfg)
    if cfg.video or cfg.viewer:
        _require_pictures(cfg)
    if cfg.resume is None:
        return None
    resumed = load_training(cfg.resume)
    if resumed["updates"] >= cfg.loop.updates:
        raise ValueError(f"{cfg.resume} has {resumed['updates']} updates; ask for more by --loop.updates")
    check_resumable(resumed, cfg)
    return resumed


def _require_pictures(cfg: RunCfg) -> None:
    from examples.ods.simple_bc_demo.video import require_film, require_viewer

    try:
        if cfg.video:
            require_film()
    except MissingExtraError as error:
        raise MissingExtraError(f"{error}; or go on without films: --no-video") from error
    if cfg.viewer:
        require_viewer()


def _settings(cfg: RunCfg) -> dict[str, Any]:
    """Return the settings as JSON values, with the shape that reports look for."""
    settings: dict[str, Any] = json.loads(json.dumps(asdict(cfg), default=str))
    return {**settings, "application": "simple_bc_demo", "shape": asdict(PipelineShape(batch_size=cfg.loop.batch_size))}


# ---------------------------------------------------------------- putting it together


def _training(cfg: RunCfg, arm: Arm, learner: Learner, meter: LearnerMeter, hooks: Hooks) -> Training:
    scenes = FrankaPickPlace(cfg.loop.scenes, reset=cfg.stream.reset)
    return Training(
        learner=learner,
        draw=arm.draw,
        cfg=cfg.loop,
        evaluate=lambda policy: evaluate(policy, scenes, first_seed=DEVELOPMENT_SEED),
        meter=meter,
        exposure=arm.exposure,
        hooks=hooks,
    )


def _monitor(arm: Arm, meter: LearnerMeter, directory: RunDirectory) -> PerfMonitor:
    seen = arm.pipeline
    sinks = [JsonLinesSink(directory.records_path)]
    return PerfMonitor(meter, seen.shape, producers=seen.producers, pool=seen.pool, memory=seen.memory, sinks=sinks)


def _hooks(
    cfg: RunCfg,
    folder: Path,
    arm: Arm,
    learner: Learner,
    journal: Journal,
    meter: LearnerMeter,
    curve: list[dict[str, Any]],
    generator: torch.Generator,
) -> Hooks:
    bar = tqdm(total=cfg.loop.updates, unit="update", dynamic_ncols=True, disable=None)

    def on_update(updates: int, loss: float) -> None:
        journal.mark("first_update")
        bar.update(updates - bar.n)
        if updates % 20 == 0:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        if updates == cfg.loop.updates:
            bar.close()

    def on_evaluation(updates: int, evaluation: Evaluation) -> None:
        curve.append(point_of(updates, evaluation, journal, meter))
        text = f"  {updates:>5} updates  {journal.now_s:6.1f} s  {evaluation.rate:4.0%} of {len(evaluation.success)}"
        bar.write(f"{text} development scenes solved")

    return Hooks(
        on_update=on_update,
        on_evaluation=on_evaluation,
        save=lambda updates: save_training(folder / CHECKPOINT, cfg, learner, updates, arm.source, generator),
    )


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    # For the processes that are started here; this one has one thread for torch, see `run`.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    raise SystemExit(main())
