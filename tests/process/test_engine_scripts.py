"""Whole scripts: how they start, how they end, and what they leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.process.consumers import PATIENCE_S, is_running, until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT_S = 100.0

pytestmark = pytest.mark.timeout(120)

HEAD = """
import multiprocessing, os, sys
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from tests.fakes.producers import Script

def started():
    cfg = OnlineDataEngineCfg(buffer_size=4, max_episode_steps=20)
    engine = OnlineDataEngine(cfg, producer=Script(child_process=True))
    engine.start()
    print("producer", engine._worker.pid, flush=True)
    for task in os.listdir(f"/proc/{engine._worker.pid}/task"):
        for child in open(f"/proc/{engine._worker.pid}/task/{task}/children").read().split():
            print("grandchild", child, flush=True)
    return engine
"""


def launch(folder: Path, body: str, *, head: str = HEAD, group: bool = False) -> subprocess.Popen[str]:
    path = folder / "script.py"
    path.write_text(head + body)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=group,
    )


def run(folder: Path, body: str, *, head: str = HEAD) -> tuple[int, str, str]:
    """Run a script to its end; return exit code, output and errors. All processes it named must be gone."""
    with launch(folder, body, head=head) as script:
        try:
            out, err = script.communicate(timeout=SCRIPT_S)
        except subprocess.TimeoutExpired:
            script.kill()
            raise
    gone(out.splitlines())
    return script.returncode, out, err


def gone(lines: Sequence[str]) -> None:
    pids = [int(line.split()[1]) for line in lines if line.startswith(("producer", "grandchild", "consumer"))]
    assert pids
    until(lambda: not any(is_running(pid) for pid in pids), f"{pids} are gone", 10.0)


@pytest.mark.spec("DATA-04", "ENG-09")
def test_a_script_that_never_stops_its_engines_ends_quietly_under_every_start_method(tmp_path: Path) -> None:
    """Field cases U04, U06 and M03."""
    body = """
from itertools import islice
from torch.utils.data import DataLoader
from tests.process.chunks import Chunks, as_it_is

KEPT = []  # alive until the interpreter ends

def main():
    for method in ("fork", "spawn", "forkserver"):
        multiprocessing.set_start_method(method, force=True)
        engine = started()
        batches = iter(DataLoader(Chunks(engine), batch_size=None, num_workers=2, collate_fn=as_it_is))
        print(method, sorted({int(batch["worker"][0, 0]) for batch in islice(batches, 6)}))
        print(tuple(next(batches).batch_size))
        KEPT.append((engine, batches))

if __name__ == "__main__":
    main()
"""
    code, out, err = run(tmp_path, body)
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if not line.startswith(("producer", "grandchild"))]
    assert lines == ["fork [0, 1]", "(8, 5)", "spawn [0, 1]", "(8, 5)", "forkserver [0, 1]", "(8, 5)"]


UNGUARDED = """
class Mine(Script):
    pass

print("alive", os.getpid(), flush=True)
engine = OnlineDataEngine(OnlineDataEngineCfg(buffer_size=4, max_episode_steps=20), producer=Mine())
engine.start()
"""


def test_a_script_without_a_guard_that_defines_its_producer_is_told_so_and_starts_one_process(tmp_path: Path) -> None:
    """Field case U01."""
    with launch(tmp_path, UNGUARDED) as script:
        out, err = script.communicate(timeout=SCRIPT_S)
    assert script.returncode == 1
    assert "OnlineDataWorkerError: the producer process" in err
    assert "protected by `if __name__ == '__main__':`, protect it: the producer process imports it." in err
    assert len(re.findall("^alive", out, re.MULTILINE)) == 2


def test_an_uncaught_error_ends_the_producer_and_a_forked_child_s_exit_does_not(tmp_path: Path) -> None:
    """Field case U06."""
    body = """
def main():
    engine = started()
    child = os.fork()
    if child == 0:
        engine.sample_batch(2, 3)
        del engine
        sys.exit(7)  # destructors and exit handlers run here
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    engine.sample_batch(2, 3)
    raise RuntimeError("the end")

if __name__ == "__main__":
    main()
"""
    code, out, err = run(tmp_path, body)
    assert code == 1
    assert "child 7" in out
    # In a child of bare `os.fork`, `multiprocessing` complains of any process its parent had started.
    complaint = "AssertionError: can only join a child process"
    assert err.count("Traceback") == 1 + err.count(complaint)
    assert err.splitlines()[-1] == "RuntimeError: the end"


def test_ctrl_c_while_a_script_samples_leaves_nothing_behind(tmp_path: Path) -> None:
    """Field case C11. It reaches the whole foreground group."""
    body = """
if __name__ == "__main__":
    engine = started()
    print("sampling", flush=True)
    while True:
        engine.sample_batch(4, 5)
"""
    with launch(tmp_path, body, group=True) as script:
        assert script.stdout is not None
        lines = [script.stdout.readline() for _ in range(3)]
        assert lines[-1] == "sampling\n"
        os.killpg(script.pid, signal.SIGINT)
        _, err = script.communicate(timeout=PATIENCE_S)
    assert script.returncode == -signal.SIGINT
    gone(lines)
    assert err.count("Traceback") == 1
    assert err.splitlines()[-1] == "KeyboardInterrupt"


WITH_IMPORTED_EXPERT = """
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg

cfg = OnlineDataEngineCfg(gym_config={"id": "CartPole-v1", "expert": "module:expert"}, buffer_size=2)
engine = OnlineDataEngine(cfg)
"""


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_a_script_whose_producer_is_not_defined_in_it_needs_no_guard(tmp_path: Path, how: str) -> None:
    """Field case U01: the producer process does not import the script at all."""
    (tmp_path / "module.py").write_text("def expert(observation):\n    return 0\n")
    body = WITH_IMPORTED_EXPERT + "with engine:\n    print(engine.sample_batch(2, 2).shape)\n"
    script = tmp_path / "script.py"
    script.write_text(body)
    arguments = [sys.executable, str(script)] if how == "file" else [sys.executable, "-"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}
    result = subprocess.run(
        arguments,
        input=body,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=SCRIPT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "torch.Size([2, 2])" in result.stdout


@pytest.mark.parametrize(
    ("how", "says"),
    [("stdin", "interactive session or a script without a file"), ("guarded", "top level of a module or script")],
)
def test_an_expert_that_no_other_process_can_find_is_refused_with_a_remedy(tmp_path: Path, how: str, says: str) -> None:
    """Field case U03."""
    body = """
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg

if __name__ == "__main__":
    def expert(observation):
        return 0

    cfg = OnlineDataEngineCfg(gym_config={"id": "CartPole-v1", "expert": expert}, buffer_size=2)
    OnlineDataEngine(cfg).start()
"""
    script = tmp_path / "script.py"
    script.write_text(body)
    arguments = [sys.executable, "-"] if how == "stdin" else [sys.executable, str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(
        arguments,
        input=body,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=SCRIPT_S,
        check=False,
    )
    assert result.returncode == 1
    assert says in result.stderr


FORK_AFTER_PARALLEL_WORK = """
import os
import torch
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from tests.fakes.producers import Script

if __name__ == "__main__":
    torch.set_num_threads(2)
    cfg = OnlineDataEngineCfg(buffer_size=4, max_episode_steps=20)
    with OnlineDataEngine(cfg, producer=Script(width=4096)) as engine:
        torch.rand(2_000_000).sin().sum()
        engine.sample_batch(256, 10)
        pid = os.fork()
        if pid == 0:
            engine.sample_batch(256, 10)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        engine.sample_batch(256, 10)
        print("both sampled")
"""


@pytest.mark.spec("ENG-09")
def test_a_forked_consumer_samples_large_batches_after_its_parent_worked_in_parallel(tmp_path: Path) -> None:
    """Torch's threads do not survive a fork: a copy that waited for them would keep the lock from everybody."""
    script = tmp_path / "script.py"
    script.write_text(FORK_AFTER_PARALLEL_WORK)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "2"}
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "both sampled" in result.stdout
