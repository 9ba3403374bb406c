"""What performance metrics cost a training step of one millisecond.

    python benchmarks/bench_metrics.py            about two minutes
    python benchmarks/bench_metrics.py --quick    about ten seconds

A step computes for one millisecond of this thread's processor time and is given a batch that is there already, so
that all time beyond it is the loop's and the metrics'. The bare loop is taken off. Everything is processor time of
the thread that trains, in turns over several rounds; a figure is the least over the rounds less the bare loop's least,
since whatever else the machine does only adds to it. The engine is a real one whose batches carry provenance.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

STEP_S = 0.001
WARMUP_STEPS = 20
BUDGET_S = 0.01 * STEP_S


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps, rounds = (400, 4) if parser.parse_args().quick else (2000, 7)
    # Not at the top: producer processes import this file, and have no use for torch.
    from ours import running_engine
    from report import render_table, write_json
    from workload import Shape

    with running_engine(Shape(rows=128, steps=200), quota=False) as engine, tempfile.TemporaryDirectory() as folder:
        rows = [
            row_of(name, loop, engine, batch_size, steps, rounds, itertools.count(), Path(folder) / f"{number}")
            for number, (name, loop, batch_size) in enumerate(VARIANTS)
        ]
    print(render_table(rows, ()))
    print(f"\nwrote {write_json('metrics', rows, {'steps': steps, 'rounds': rounds})}")


def two_lines(batches: Iterable[Any], _engine: Any, batch_size: int, _folder: Path) -> Iterator[Any]:
    """Meter the loop, and no more."""
    from odstream.perf import LearnerMeter

    return LearnerMeter().batches(batches, size=batch_size)


def recorded(batches: Iterable[Any], engine: Any, batch_size: int, folder: Path, trajectories: bool = False) -> Any:
    """Meter loop and engine, with ages, memory, and a record a second."""
    from odstream.perf import PipelineShape, RunDirectory, TrainingMetrics, TrainingMetricsCfg

    cfg = TrainingMetricsCfg(progress=False, trajectories=trajectories)
    metrics = TrainingMetrics(PipelineShape(batch_size=batch_size), cfg)
    metrics.open(RunDirectory(folder))
    return metrics.batches(batches, engine, current=1)


def complete(batches: Iterable[Any], engine: Any, batch_size: int, folder: Path) -> Any:
    """Count what becomes of every trajectory, too: all that ``debug.enable_perf_metrics`` brings."""
    return recorded(batches, engine, batch_size, folder, trajectories=True)


Loop = Callable[[Iterable[Any], Any, int, Path], Iterable[Any]]
VARIANTS: tuple[tuple[str, Loop, int], ...] = (
    ("two-line meter", two_lines, 256),
    ("with engine, ages, memory, records", recorded, 256),
    ("with trajectories as well, 32 contexts", complete, 32),
    ("with trajectories as well, 64 contexts", complete, 64),
    ("with trajectories as well, 256 contexts", complete, 256),
)


def row_of(
    name: str, loop: Loop, engine: Any, batch_size: int, steps: int, rounds: int, runs: Iterator[int], folder: Path
) -> Any:
    """Measure one variant in turns with the bare loop."""
    from report import Row, Target, show_seconds

    batch = engine.sample_batch_with_context(batch_size, 2, 16)
    folder.mkdir()
    bare_s, with_s = [], []
    for _ in range(rounds):
        bare_s.append(seconds_of(itertools.repeat(batch), steps))
        with_s.append(seconds_of(loop(itertools.repeat(batch), engine, batch_size, folder / str(next(runs))), steps))
    cost_s = (min(with_s) - min(bare_s)) / steps
    return Row(
        work=name,
        ours=f"{show_seconds(cost_s)} per step, {cost_s / STEP_S:.2%} of 1 ms",
        targets=[Target(text="at most 1 %", value=cost_s, bound=BUDGET_S, kind="at most")],
        figures={"bare_s": bare_s, "with_s": with_s, "batch_size": batch_size},
    )


def seconds_of(batches: Iterable[Any], steps: int) -> float:
    """Run so many steps after some to warm up; return the processor time of this thread.

    What is written when a run begins or ends is left out.
    """
    stream = iter(batches)
    for _ in itertools.islice(stream, WARMUP_STEPS):
        pass
    started_s = time.thread_time()
    for _ in itertools.islice(stream, steps):
        until_s = time.thread_time() + STEP_S
        while time.thread_time() < until_s:
            pass
    return time.thread_time() - started_s


if __name__ == "__main__":
    main()
