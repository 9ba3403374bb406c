"""``odstream train``."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from odstream.calibration import PlannedRun, comparison_to_json, plan_from_json, plan_to_json, render_comparison
from odstream.cli.debug import metered_engine, metrics_for, shape_of
from odstream.cli.task import Task, read_task
from odstream.configuration import ODSConfiguration
from odstream.engine import OnlineDataEngineCfg
from odstream.perf.run_directory import RunDirectory, starting_run, write_whole

if TYPE_CHECKING:
    from odstream.perf.training import TrainingMetrics

TARGET_MISSED, INVALID_INPUT = 1, 2
TASK, PLAN, COMPARISON = "task.yaml", "plan.json", "comparison.json"
"""Files of a run directory, beside what the trainer leaves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainCfg:
    """What to train, by which plan, and where to leave the results."""

    config: str
    """Task file, or the name of a shipped task: franka."""
    plan: Path | None = None
    """The plan that `odstream plan` wrote. It brings cache size, environments, budget and pacing. Without one,
    production goes on all the time."""
    output: Path | None = None
    """Folder for the results; by default runs/ and the task's name."""
    overwrite: bool = False
    """Use a folder that exists; files of an earlier run are replaced."""
    overrides: tyro.conf.Positional[tuple[str, ...]] = ()
    """Settings of the task to change: key=value, dotted, such as training.updates=500."""


def main(arguments: Sequence[str]) -> int:
    """Train on a live stream, by a plan if there is one, and compare the run with it.

    Returns:
        0 if the result is as wanted, 1 if not, 2 if the input is not acceptable. Nothing was started or written then.
    """
    cfg = tyro.cli(TrainCfg, args=arguments, prog="odstream train", description=(main.__doc__ or "").partition("\n")[0])
    output = cfg.output or Path("runs") / Path(cfg.config).stem
    try:
        job = _prepared(read_task(cfg.config, cfg.overrides), cfg, output)
        if output.exists() and not cfg.overwrite:
            raise ValueError(f"output: {output} exists; choose another folder, or say --overwrite")
        _open(job, cfg, output)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        print(f"odstream train: {error}", file=sys.stderr)
        return INVALID_INPUT
    with nullcontext() if job.metrics is None else job.metrics:
        as_wanted = job.run()
        if job.planned is not None:
            _compare(job.planned, output)
    if job.metrics is not None and job.metrics.verdict:
        print(f"\nverdict    {job.metrics.verdict}")
    print(f"report     odstream report {output}")
    return 0 if as_wanted else TARGET_MISSED


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A training, checked and not started."""

    task: Task
    planned: PlannedRun | None
    metrics: TrainingMetrics | None
    engine: OnlineDataEngineCfg
    run: Callable[[], bool]


def _prepared(task: Task, cfg: TrainCfg, output: Path) -> _Job:
    if task.trainer is None:
        raise ValueError("the task misses trainer, the function that trains")
    planned = None if cfg.plan is None else _planned(task, cfg.plan)
    engine = task.engine if planned is None else engine_for(planned.plan, task.engine)
    batch_size = task.calibration.batch_size
    metrics = metrics_for(task.debug, engine, batch_size, None if planned is None else planned.plan)
    more: dict[str, Any] = {}
    if metrics is not None:
        _check_takes_metrics(task.trainer)
        engine, more = metered_engine(engine), {"metrics": metrics}
    run = task.trainer(task.training, engine=engine, batch_size=batch_size, output=output, planned=planned, **more)
    return _Job(task=task, planned=planned, metrics=metrics, engine=engine, run=run)


def _check_takes_metrics(trainer: Callable[..., object]) -> None:
    parameters = inspect.signature(trainer).parameters.values()
    if not any(one.name == "metrics" or one.kind is one.VAR_KEYWORD for one in parameters):
        raise ValueError("debug.enable_perf_metrics is on, but the trainer has no parameter named metrics")


def _open(job: _Job, cfg: TrainCfg, output: Path) -> None:
    """Make the run directory and start the sinks. What cannot start leaves everything as it was before."""
    with starting_run(output):
        run = RunDirectory(output, _settings(job, cfg), replace=cfg.overwrite)
        (output / TASK).write_text(job.task.text, encoding="utf-8")
        if job.planned is not None:
            (output / PLAN).write_text(plan_to_json(job.planned.inputs), encoding="utf-8")
        if job.metrics is not None:
            job.metrics.open(run)


def _settings(job: _Job, cfg: TrainCfg) -> dict[str, Any]:
    shape = shape_of(job.task.debug, job.engine, job.task.calibration.batch_size)
    return {
        "task": cfg.config,
        "planned": job.planned is not None,
        "shape": dataclasses.asdict(shape),
        "debug": dataclasses.asdict(job.task.debug),
    }


def _planned(task: Task, path: Path) -> PlannedRun:
    try:
        plan, inputs = plan_from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    task_has = {
        "batch_size": task.calibration.batch_size,
        "producer_envs": task.engine.gym_config.get("num_envs", 1),
    }
    differences = [f"{name} {getattr(plan, name)}, the task has {value}" for name, value in task_has.items()]
    if any(getattr(plan, name) != value for name, value in task_has.items()):
        raise ValueError(f"{path} is a plan for {'; '.join(differences)}: measure and plan again")
    if task.flow.max_generated_episodes is not None:
        raise ValueError("flow.max_generated_episodes must not be set: the trainer says when a training ends")
    return PlannedRun(inputs, task.flow)


def engine_for(plan: ODSConfiguration, engine: OnlineDataEngineCfg) -> OnlineDataEngineCfg:
    """Return an engine's settings with those that a plan brings."""
    return dataclasses.replace(
        engine,
        gym_config={**engine.gym_config, "num_envs": plan.producer_envs},
        buffer_size=plan.buffer_size,
        episode_sample_budget=plan.episode_sample_budget,
        episode_sample_hard_limit=plan.episode_sample_hard_limit,
        refill_policy="manual",
        include_provenance=True,
        lifecycle_event_capacity=4 * plan.buffer_size,
    )


def _compare(planned: PlannedRun, output: Path) -> None:
    comparison = planned.compare()
    write_whole(output / COMPARISON, comparison_to_json(comparison))
    print(f"\nplanned and observed ({output / COMPARISON})\n{render_comparison(comparison)}")
