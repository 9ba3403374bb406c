"""``odstream calibrate``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from odstream.calibration import Throughput, run_calibration, throughput_to_json
from odstream.cli.task import Task, read_task
from odstream.engine import OnlineDataEngine

INVALID_INPUT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrateCfg:
    """What to measure, and where to write the result."""

    config: str
    """Task file, or the name of a shipped task: franka. It holds `engine` (engine settings), `learner`
    ("module:function") and the settings of the measurement: batch_size, measurement_scope, refills, warmup_refills,
    refill_timeout_s. The function gets the engine and the batch size and returns what samples one batch and completes
    the update on it."""
    output: Path
    """Where to write the throughput document."""
    overrides: tyro.conf.Positional[tuple[str, ...]] = ()
    """Settings of the task to change: key=value, dotted, such as engine.buffer_size=64."""


def main(arguments: Sequence[str]) -> int:
    """Run a producer and a learner together, measure both, and write what the planner needs.

    Returns:
        0, or 2 if the task file is not acceptable. Nothing was started then.
    """
    cfg = tyro.cli(
        CalibrateCfg, args=arguments, prog="odstream calibrate", description=(main.__doc__ or "").partition("\n")[0]
    )
    try:
        task = read_task(cfg.config, cfg.overrides)
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


def calibrate(task: Task) -> Throughput:
    """Start the engine, run the learner beside it, stop the engine."""
    cfg = dataclasses.replace(task.engine, lifecycle_event_capacity=2 * task.engine.buffer_size)
    with OnlineDataEngine(cfg) as engine:
        return run_calibration(
            engine,
            task.learner(engine, task.calibration.batch_size),
            task.calibration,
            bytes_per_episode=engine.bytes_per_episode,
            progress=lambda done, wanted: print(f"refill {done} of {wanted}", file=sys.stderr),
        )


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
