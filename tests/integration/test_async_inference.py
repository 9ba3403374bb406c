"""The asynchronous example as a user runs it: the verdicts of its regimes, its deaths, and what it leaves behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odstream.perf import read_records

pytestmark = [pytest.mark.spec("PERF-07"), pytest.mark.timeout(200), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-W", "error", "-m", "examples.async_inference"]
ON = "debug.enable_perf_metrics=true"
SLOW_ENGINES = ["engine.count=1", "target.width=512", "learner.width=32"]
SLOW_LEARNER = ["target.width=32", "learner.width=256", "learner.layers=2"]
BAR = r"loss=\d\.\d+, acc=\d\.\d+, thru=[\d.]+\*?, I=[\d.]+\*?, T=[\d.]+\*?, wait=\S+s\*?, pool=\d+, epoch=2/2"
DEADLINE_S = 60.0


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def run_on_a_terminal(*arguments: str) -> tuple[str, str]:
    """Run to a good end; return what went to standard output and what was drawn on the terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 200))
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as process:
        os.close(theirs)
        drawn = b""
        try:
            while part := os.read(ours, 65536):
                drawn += part
        except OSError:  # nobody holds the other end
            pass
        os.close(ours)
        stdout = process.stdout.read() if process.stdout else ""
    assert process.returncode == 0, drawn.decode()
    return stdout, drawn.decode()


def counts_of(stdout: str) -> dict[str, int]:
    words = re.search(
        r"counts: (?P<published>\d+) published = (?P<taken>\d+) delivered \+ (?P<pool>\d+) in the pool; "
        r"(?P<delivered>\d+) delivered = (?P<completed>\d+) completed \+ (?P<flying>\d+) in flight "
        r"\+ (?P<failed>\d+) failed",
        stdout,
    )
    assert words is not None, stdout
    return {name: int(value) for name, value in words.groupdict().items()}


@pytest.mark.spec("PERF-01", "PERF-02", "PERF-05", "PERF-06")
@pytest.mark.parametrize(
    ("settings", "verdict"), [(SLOW_ENGINES, "production"), (SLOW_LEARNER, "training")], ids=["engines", "learner"]
)
def test_the_slow_side_is_named_and_counts_balance(settings: list[str], verdict: str, tmp_path: Path) -> None:
    output = tmp_path / "run"
    stdout, bar = run_on_a_terminal("--smoke", ON, f"output={output}", "epochs=2", *settings)
    assert re.search(rf"^verdict: {verdict}\b", stdout, re.M), stdout
    assert re.search(BAR, bar), bar[-2000:]
    counts = counts_of(stdout)
    assert counts["published"] == counts["taken"] + counts["pool"]
    assert counts["taken"] == counts["delivered"] == counts["completed"] == 100 * 8
    records = read_records(output / "metrics.jsonl")
    assert not records.torn
    last = records.records[-1]
    assert (last.step, last.details["verdict"]) == (100, verdict)
    for role in ("learner", "producer"):
        assert sum(value for name, value in last.values.items() if name.startswith(f"perf/{role}/")) == pytest.approx(1)
    infer, train, thru = (last.values[f"perf/{name}"] for name in ("infer_capacity", "train_capacity", "thru"))
    assert (infer < train) == (verdict == "production")
    assert thru == pytest.approx(min(infer, train), rel=0.3)
    assert last.values["train/loss"] < records.records[0].values["train/loss"]
    report = subprocess.run(
        [sys.executable, "-m", "odstream", "report", str(output)],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert report.returncode == 0, report.stderr


@pytest.mark.spec("PERF-01")
def test_off_there_is_no_call_into_the_metrics_in_any_process(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import odstream.perf as perf\n"
        "def refuse(*_, **__): raise AssertionError('a call into the metrics')\n"
        "for name in ('LearnerMeter', 'ProducerMeter', 'RemoteMeter', 'PerfMonitor', 'ProgressBar', 'RunDirectory'):\n"
        "    getattr(perf, name).__init__ = refuse\n",
        encoding="utf-8",
    )
    output = tmp_path / "run"
    found = run("--smoke", f"output={output}", "epochs=1", PYTHONPATH=str(tmp_path))
    assert found.returncode == 0, found.stderr
    assert "epoch 1/1: loss=" in found.stdout and "verdict" not in found.stdout
    assert not output.exists()
    refused = run("--smoke", ON, f"output={output}", PYTHONPATH=str(tmp_path))
    assert "a call into the metrics" in refused.stderr, "the test can fail"


def test_what_could_only_hang_is_refused_before_anything_starts(tmp_path: Path) -> None:
    found = run(ON, f"output={tmp_path / 'run'}", "engine.slots=1")
    assert found.returncode == 2
    assert "engine.slots=1 are too few for one engine alone to fill a batch" in found.stderr
    assert list(tmp_path.iterdir()) == []


@contextmanager
def running(output: Path, *settings: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a run and wait for its first record; yield it with the process ids of its engines."""
    with subprocess.Popen(
        [*COMMAND, "--smoke", ON, f"output={output}", *settings],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            engines = [int(pid) for pid in re.findall(r"\d+", process.stdout.readline().partition(";")[0])]
            wait_until(lambda: (output / "metrics.jsonl").stat().st_size > 0)
            yield process, engines
        finally:
            process.kill()


def wait_until(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, "nothing happened before the deadline"
        time.sleep(0.02)


def works(pid: int) -> bool:
    """Whether a process exists and has not ended, also one that is no child of ours."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_run_goes_on_without_an_engine_that_was_killed_and_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "run", "target.width=256", "epochs=4") as (process, engines):
        os.kill(engines[0], signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stderr
    assert "producers down: 1 of 2; engine0 was killed by signal 9" in stdout
    assert re.search(r"^verdict: .*producers down: 1 of 2 now", stdout, re.M), stdout
    counts = counts_of(stdout)
    assert counts["published"] == counts["taken"] + counts["pool"]
    assert counts["completed"] == 200 * 8


def test_a_run_without_any_engine_fails_in_words_and_keeps_its_records(tmp_path: Path) -> None:
    with running(tmp_path / "run", "epochs=1000") as (process, engines):
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert re.search(r"^error: no engine is left; \d of 8 sequences are there\.$", stderr, re.M)
    assert "Traceback" not in stderr
    found = read_records(tmp_path / "run/metrics.jsonl")
    assert found.records and not found.torn
    assert found.records[-1].step == found.records[-1].values["perf/completed"] / 8


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_engines_end_when_the_learner_does_however_that_was(how: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path / "run", "epochs=1000") as (process, engines):
        process.send_signal(how)
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 1)
    assert "Traceback" not in stderr
    wait_until(lambda: not any(map(works, engines)))
