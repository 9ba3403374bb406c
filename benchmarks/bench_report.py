"""How long the report of a one-hour run takes: 10,000 steps, a record a second, 5,000 trajectories.

    python benchmarks/bench_report.py            from the command's start to its end, as a user waits for it
    python benchmarks/bench_report.py --quick    a run of five minutes

The run is synthetic. Each figure is the median over the rounds; pictures are the PNG files beside the page.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Row, Target, render_table, show_seconds, write_json

from tests.fakes.run import ONE_HOUR, FakeRun, write_run

LIMIT_S = 5.0
ROUNDS = 3


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a run of five minutes")
    quick = parser.parse_args().quick
    run = FakeRun(seconds=300, records=300, cache_episodes=64) if quick else ONE_HOUR
    with tempfile.TemporaryDirectory() as folder:
        path = write_run(Path(folder) / "run", run)
        rows = [_row("page and pictures", run, path), _row("page alone", run, path, "--no-png")]
    print(render_table(rows, []))
    print(f"\n{write_json('report-quick' if quick else 'report', rows, {'rounds': ROUNDS, 'run': str(run)})}")


def _row(work: str, run: FakeRun, path: Path, *arguments: str) -> Row:
    before_s = _processor_s()
    times_s = [_seconds(path, *arguments) for _ in range(ROUNDS)]
    processor_s = (_processor_s() - before_s) / ROUNDS
    median_s = statistics.median(times_s)
    size_bytes = (path / "report.html").stat().st_size
    return Row(
        work=f"{work}, {run.records:,} records, {run.episodes:,} trajectories",
        ours=show_seconds(median_s),
        targets=[Target(text=f"< {LIMIT_S:g} s", value=median_s, bound=LIMIT_S, kind="at most")],
        note=f"{show_seconds(processor_s)} of processor time each, a page of {size_bytes / 1e6:.2f} MB; "
        f"rounds: {', '.join(show_seconds(one) for one in times_s)}",
        figures={"seconds": times_s, "processor_seconds": processor_s, "page_bytes": size_bytes},
    )


def _processor_s() -> float:
    """Return the processor time of all commands so far: on a busy machine, what the waiting would be without others."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds(path: Path, *arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "odstream", "report", str(path), *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
