"""Environments in processes of their own: what they report when they fail, and that they are gone afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from odstream.errors import EnvironmentContractError
from odstream.producers import processes
from odstream.producers.base import ProducerContext
from odstream.producers.environment import GymEnvironmentProducer
from tests.fakes.environments import (
    ChildProcessEnv,
    CountingEnv,
    FaultyEnv,
    NestedEnv,
    nested_plus_hundred,
    plus_hundred,
)
from tests.fakes.staging import MemoryStaging, Recorded, column, record


def producer(factory: Any = CountingEnv, *, num_envs: int = 2, **config: Any) -> GymEnvironmentProducer:
    config = {"factory": factory, "num_envs": num_envs, "vectorization": "async", "expert": plus_hundred, **config}
    return GymEnvironmentProducer(
        {"seed": 0, **config}, ProducerContext(max_episode_steps=20, max_generation_attempts=3)
    )


def pids(made: GymEnvironmentProducer) -> list[int]:
    return [player.pid for player in made._stage._players]  # type: ignore[attr-defined]


def wait_until(condition: Any, deadline_s: float = 10.0) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        threading.Event().wait(0.01)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_an_exception_keeps_its_type_its_message_and_its_traceback(where: str) -> None:
    """Field case C09."""
    with pytest.raises(ValueError, match="boom-42") as caught:
        made = producer(FaultyEnv, kwargs={"fault": "raise", "where": where})
        try:
            record(made, 2)
        finally:
            made.close()
    assert str(caught.value) == "boom-42"
    (note,) = caught.value.__notes__
    assert "Raised in environment process" in note
    assert "environments.py" in note
    assert "in go_wrong" in note


def test_an_exception_that_cannot_travel_still_yields_its_text() -> None:
    """Field case C09."""
    made = producer(FaultyEnv, kwargs={"fault": "unpicklable"})
    with pytest.raises(RuntimeError, match=r"tests\.fakes\.environments\.UnpicklableError: boom-43") as caught:
        record(made, 2)
    assert "in go_wrong" in caught.value.__notes__[0]
    made.close()


@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_a_process_that_exits_is_reported_with_its_code(where: str) -> None:
    with pytest.raises(ChildProcessError, match=r"environment process \d \(pid \d+\) exited with code 3"):
        made = producer(EXIT[where], num_envs=1)
        try:
            record(made, 1)
        finally:
            made.close()


class ExitInInit(FaultyEnv):
    def __init__(self) -> None:
        super().__init__(fault="exit", where="init")


class ExitInReset(FaultyEnv):
    def __init__(self) -> None:
        super().__init__(fault="exit", where="reset")


class ExitInStep(FaultyEnv):
    def __init__(self) -> None:
        super().__init__(fault="exit", where="step")


EXIT = {"init": ExitInInit, "reset": ExitInReset, "step": ExitInStep}


def test_a_killed_process_is_reported_with_its_signal() -> None:
    """The kind of field case C04."""
    made = producer()
    os.kill(pids(made)[1], signal.SIGKILL)
    with pytest.raises(ChildProcessError, match=r"environment process 1 .* was ended by signal 9"):
        record(made, 2)
    made.close()


def test_what_cannot_be_built_is_a_contract_error_and_leaves_nothing_running() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(EnvironmentContractError, match=r"gym_config\['id'\] = 'NoSuchEnv-v0' cannot be made"):
        producer(None, id="NoSuchEnv-v0")
    assert set(multiprocessing.active_children()) == before


def test_an_error_while_closing_is_raised_after_all_are_closed() -> None:
    made = producer(FaultyEnv, kwargs={"fault": "raise", "where": "close"})
    running = pids(made)
    with pytest.raises(ValueError, match="boom-42"):
        made.close()
    made.close()
    assert all(is_gone(pid) for pid in running)


# ---------------------------------------------------------------- hanging and ending


def test_a_hanging_step_can_be_interrupted_and_is_ended_within_bounds(tmp_path: Path) -> None:
    begun = tmp_path / "hangs"
    made = producer(FaultyEnv, kwargs={"fault": "hang", "signal_path": str(begun)})
    running = pids(made)
    memory = MemoryStaging(made.spec, 20)
    assert list(made.produce(2, memory.staging, should_stop=begun.exists)) == []
    started_s = time.monotonic()
    made.close()
    assert time.monotonic() - started_s < 2 * processes.CLOSE_TIMEOUT_S  # both hang, and both are ended at once
    assert all(is_gone(pid) for pid in running)


def test_a_hanging_close_is_ended_within_bounds() -> None:
    made = producer(FaultyEnv, kwargs={"fault": "hang", "where": "close"})
    running = pids(made)
    made.close()
    assert all(is_gone(pid) for pid in running)


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next_one() -> None:
    made = producer(NestedEnv, expert=nested_plus_hundred)
    memory = MemoryStaging(made.spec, 20)
    polls = iter([False, False, True])
    assert list(made.produce(2, memory.staging, should_stop=lambda: next(polls, True))) == []
    for player in made._stage._players:  # type: ignore[attr-defined]
        player.request(123)  # given up before it was collected
    result = record(made, 2)
    assert [column(frames, ("obs", "pair", "1")) for _, frames in result.accepted] == [[0, 1, 2, 3, 4, 5]] * 2
    made.close()


def test_an_environment_may_have_children_of_its_own(tmp_path: Path) -> None:
    """Field case C07."""
    pid_file = tmp_path / "pid"
    made = producer(ChildProcessEnv, num_envs=1, kwargs={"pid_path": str(pid_file)})
    assert len(record(made, 1).accepted) == 1
    child = int(pid_file.read_text(encoding="utf-8"))
    assert not is_gone(child)
    made.close()
    wait_until(lambda: is_gone(child), deadline_s=5)


def test_children_of_an_environment_in_this_process_end_with_it(tmp_path: Path) -> None:
    """Field case C07."""
    pid_file = tmp_path / "pid"
    made = producer(ChildProcessEnv, num_envs=1, vectorization="sync", kwargs={"pid_path": str(pid_file)})
    child = int(pid_file.read_text(encoding="utf-8"))
    made.close()
    wait_until(lambda: is_gone(child), deadline_s=5)


OWNER = """
import sys
from odstream.producers.base import ProducerContext
from odstream.producers.environment import GymEnvironmentProducer
from tests.fakes.environments import CountingEnv, FaultyEnv, plus_hundred
from tests.fakes.staging import MemoryStaging

if __name__ == "__main__":
    hang = {"fault": "hang", "signal_path": sys.argv[1]}
    made = GymEnvironmentProducer(
        {"factory": FaultyEnv, "num_envs": 2, "vectorization": "async", "expert": plus_hundred,
         "kwargs": hang if sys.argv[2] == "hang" else {"fault": "inf_reward", "at": 99}},
        ProducerContext(max_episode_steps=20, max_generation_attempts=3),
    )
    print(*[player.pid for player in made._stage._players], flush=True)
    if sys.argv[2] == "hang":
        list(made.produce(2, MemoryStaging(made.spec, 20).staging))
    if sys.argv[2] == "wait":
        sys.stdin.readline()
"""


def start_owner(tmp_path: Path, what: str) -> tuple[subprocess.Popen[str], list[int]]:
    script = tmp_path / "owner.py"
    script.write_text(OWNER, encoding="utf-8")
    owner = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "hangs"), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert owner.stdout is not None
    return owner, [int(pid) for pid in owner.stdout.readline().split()]


@pytest.mark.parametrize("what", ["wait", "hang"])
def test_environment_processes_end_with_an_owner_that_is_killed(tmp_path: Path, what: str) -> None:
    """Field case C11, one level down; even when an environment hangs in a step."""
    owner, running = start_owner(tmp_path, what)
    assert len(running) == 2
    if what == "hang":
        wait_until((tmp_path / "hangs").exists)
    owner.kill()
    owner.communicate()
    wait_until(lambda: all(is_gone(pid) for pid in running))


def test_an_owner_that_forgets_to_close_still_exits(tmp_path: Path) -> None:
    """Field case U06, one level down: quietly, and with nothing left behind."""
    owner, running = start_owner(tmp_path, "forget")
    _, errors = owner.communicate(timeout=20)
    assert (owner.returncode, errors) == (0, "")
    assert all(is_gone(pid) for pid in running)


# ---------------------------------------------------------------- what is not imported


@pytest.mark.parametrize(("expert", "imports"), [("plus_hundred", 1), ("own_expert", 3)])
def test_the_main_script_is_imported_only_where_it_is_needed(tmp_path: Path, expert: str, imports: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"""
import sys
from odstream.producers.base import ProducerContext
from odstream.producers.environment import GymEnvironmentProducer
from tests.fakes.environments import CountingEnv, plus_hundred
from tests.fakes.staging import record

with open({str(tmp_path / "imports")!r}, "a") as log:
    print("imported", file=log)

def own_expert(observation):
    return plus_hundred(observation)

if __name__ == "__main__":
    made = GymEnvironmentProducer(
        {{"factory": CountingEnv, "num_envs": 2, "vectorization": "async", "expert": {expert}}},
        ProducerContext(max_episode_steps=20, max_generation_attempts=1),
    )
    assert len(record(made, 2).accepted) == 2
    made.close()
""",
        encoding="utf-8",
    )
    run_script(script)
    assert len((tmp_path / "imports").read_text(encoding="utf-8").splitlines()) == imports


def run_script(script: Path) -> str:
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


@pytest.mark.spec("ENG-03")
def test_producing_imports_no_torch(tmp_path: Path) -> None:
    """Neither the producer nor the environment's process pays for it."""
    script = tmp_path / "produce.py"
    script.write_text(
        """
import sys
from odstream.producers.base import ProducerContext
from odstream.producers.environment import GymEnvironmentProducer
from tests.fakes.environments import CountingEnv, plus_hundred
from tests.fakes.staging import record

class Reporting(CountingEnv):
    def reset(self, **kwargs):
        assert "torch" not in sys.modules
        return super().reset(**kwargs)

if __name__ == "__main__":
    for vectorization in ("sync", "async"):
        made = GymEnvironmentProducer(
            {"factory": Reporting, "vectorization": vectorization, "expert": plus_hundred},
            ProducerContext(max_episode_steps=20, max_generation_attempts=1),
        )
        assert len(record(made, 1).accepted) == 1
        made.close()
    print("torch" in sys.modules)
""",
        encoding="utf-8",
    )
    assert run_script(script).strip() == "False"


def test_an_attempt_that_ends_in_an_error_is_never_handed_over() -> None:
    seen = Recorded()
    made = producer(FaultyEnv, num_envs=1, kwargs={"fault": "raise"})
    with pytest.raises(ValueError, match="boom-42"):
        record(made, 1, into=seen)
    assert seen.episodes == []
    made.close()
