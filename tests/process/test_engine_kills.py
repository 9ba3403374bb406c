"""SIGKILL, SIGSTOP and strangers: whatever ends or holds up a process, nothing hangs and nothing is torn."""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from odstream.cache.layout import Word
from odstream.cache.lock import SharedLock
from odstream.engine import OnlineDataEngine, OnlineDataWorkerError
from odstream.engine.state import State
from odstream.errors import LockTimeoutError
from tests.fakes.breaches import HastyLocks
from tests.fakes.producers import Script, Trouble
from tests.process.consumers import (
    PATIENCE_S,
    Consumer,
    RemoteError,
    _serve,
    at_line,
    children_of,
    die_at_line,
    is_running,
    lines_of,
    lines_of_a_draw,
    make_engine,
    producer_pid,
    running,
    sample,
    sample_until_failure,
    stop_at_line,
    until,
)

FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
BUDGET = {"episode_sample_budget": 100_000, "episode_sample_hard_limit": 100_000}


# The producer


@pytest.mark.spec("ENG-06")
def test_a_killed_producer_fails_every_process_alike_and_nothing_is_sampled_any_more(spawned: Consumer) -> None:
    """Field case C04."""
    with running() as engine, Consumer("fork", engine) as forked:
        spawned.hold(engine)
        for consumer in (forked, spawned):
            consumer.call(sample)
        os.kill(producer_pid(engine), signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(OnlineDataWorkerError, match=r"signal 9 \(SIGKILL\)") as first:
            sample_until_failure(engine)
        assert time.monotonic() - started < 5.0
        seen = set()
        for _ in range(2):
            for consumer in (forked, spawned):
                with pytest.raises(RemoteError) as there:
                    consumer.call(sample)
                assert there.value.kind == "OnlineDataWorkerError"
                seen.add(there.value.text)
            with pytest.raises(OnlineDataWorkerError) as here:
                engine.check_health()
            seen.add(str(here.value))
        assert seen == {str(first.value)}
        assert engine.state is State.FAILED


@pytest.mark.spec("ENG-06")
def test_consumers_learn_of_the_death_while_the_owner_sits_idle() -> None:
    with running() as engine, Consumer("fork", engine) as consumer:
        consumer.begin(sample_until_failure)
        os.kill(producer_pid(engine), signal.SIGKILL)
        with pytest.raises(RemoteError, match="signal 9"):
            consumer.result()


@pytest.mark.spec("ENG-06")
def test_how_a_producer_died_is_known_even_if_multiprocessing_reaps_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """`multiprocessing` reaps dead children whenever it starts another one, as for the workers of a `DataLoader`."""
    monkeypatch.setattr("odstream.engine.process.WorkerProcess._report_death", lambda *_: None)
    with running() as engine:
        pid = producer_pid(engine)
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in [child.pid for child in multiprocessing.active_children()], "it is reaped")
        with pytest.raises(OnlineDataWorkerError, match="signal 9"):
            engine.check_health()


@pytest.mark.spec("ENG-06", "ENG-07")
def test_a_producer_reaped_by_a_stranger_is_missed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odstream.engine.process.WorkerProcess._report_death", lambda *_: None)
    with running() as engine:
        os.kill(producer_pid(engine), signal.SIGTERM)
        os.waitpid(producer_pid(engine), 0)
        with pytest.raises(OnlineDataWorkerError, match="how is not known"):
            engine.sample_batch(2, 3)


@pytest.mark.spec("ENG-07")
def test_what_the_producer_started_ends_with_it() -> None:
    """Field case C07."""
    with running(Script(child_process=True)) as engine:
        (grandchild,) = children_of(producer_pid(engine))
        assert is_running(grandchild)
        engine.stop()
    until(lambda: not is_running(grandchild), "the grandchild is gone", 5.0)


@pytest.mark.spec("ENG-07")
def test_what_a_killed_producer_had_started_ends_at_stop() -> None:
    with running(Script(child_process=True)) as engine:
        (grandchild,) = children_of(producer_pid(engine))
        os.kill(producer_pid(engine), signal.SIGKILL)
        with pytest.raises(OnlineDataWorkerError, match="signal 9"):
            engine.stop()
    until(lambda: not is_running(grandchild), "the grandchild is gone", 5.0)


# A consumer that holds the lock


@pytest.fixture(scope="module")
def budgeted() -> Iterator[OnlineDataEngine]:
    with running(**BUDGET) as engine:
        engine.sample_batch(4, 5)
        yield engine


def delivered(engine: OnlineDataEngine) -> int:
    """Return the lifetime deliveries; they must be the sum over the episodes, of which none was retired."""
    snapshot = engine.get_sampling_budget_snapshot()
    assert snapshot["total_delivered_chunks"] == sum(row["delivered"] for row in snapshot["rows"])
    assert snapshot["total_delivered_chunks"] == engine.get_stats()["sampled_chunks"]
    return int(snapshot["total_delivered_chunks"])


def test_a_consumer_killed_at_any_moment_of_a_call_leaves_no_trace_of_half_a_call(budgeted: OnlineDataEngine) -> None:
    """Field case C03: SIGKILL before every single line from before the lock is taken until after it is given back."""
    with Consumer("fork", budgeted) as consumer:
        lines = consumer.call(lines_of_a_draw)
    taken, given = lines.index("lock:acquire"), lines.index("gather:batch")
    outcomes = []
    for line in range(taken, given + 1):
        before = delivered(budgeted)
        with dying(), Consumer("fork", budgeted) as victim:
            victim.call(die_at_line, line + 1)
        outcomes.append(delivered(budgeted) - before)
        budgeted.sample_batch(2, 5)
    assert outcomes == sorted(outcomes)  # not delivered up to some line, delivered from there on
    assert set(outcomes) == {4, 8}


@contextmanager
def dying() -> Iterator[None]:
    """Expect the death of the consumer."""
    with pytest.raises(EOFError):
        yield


def test_an_interrupt_at_any_moment_of_a_call_leaves_the_lock_free(budgeted: OnlineDataEngine) -> None:
    """Ctrl-C raises `KeyboardInterrupt` between any two lines of the owner's code."""
    assert budgeted._store is not None
    other = SharedLock(budgeted._store._address, timeout_s=0.0)
    lines = lines_of(lambda: budgeted.sample_batch(4, 5))
    taken, given = lines.index("lock:acquire"), lines.index("gather:batch")
    stuck = []
    for line in range(taken, given + 1):
        before = delivered(budgeted)
        at_line(line + 1, interrupt)
        try:
            budgeted.sample_batch(4, 5)
        except KeyboardInterrupt as caught:  # the traceback keeps the interrupted frames alive meanwhile
            if not free_for_another_thread(other):
                stuck.append(line)
                other.release()
            del caught
        else:
            pytest.fail(f"line {line} was not reached")
        assert delivered(budgeted) - before in (0, 4)
    # When a `with` block ends, tracing stops at a line where CPython looks for no signal: right before the unlocking.
    end_of_block = lines.index("sampling:draw", lines.index("store:commit"))
    assert stuck == [end_of_block]


@pytest.mark.spec("ENG-05")
def test_an_interrupt_at_any_moment_of_a_start_leaves_no_process_behind() -> None:
    """Field case C11: Ctrl-C while the producer process is started and handed the cache."""
    engine = make_engine()
    lines = lines_of(engine.start)
    engine.stop()
    critical = ("process:start", "process:send_store")
    children = set(children_of(os.getpid()))
    for line in range(1, 1 + sum(name in critical for name in lines)):
        engine = make_engine()
        at_line(line, interrupt, within=critical)
        with pytest.raises(KeyboardInterrupt):
            engine.start()
        assert engine.state is State.STOPPED
        engine.stop()
        del engine
        until(lambda: set(children_of(os.getpid())) <= children, "the producer is gone", 10.0)


def interrupt() -> None:
    raise KeyboardInterrupt


def free_for_another_thread(lock: SharedLock) -> bool:
    answer = []

    def take() -> None:
        try:
            lock.acquire()
        except LockTimeoutError:
            answer.append(False)
        else:
            lock.release()
            answer.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return answer[0]


@contextmanager
def suspended_in_the_lock(engine: OnlineDataEngine) -> Iterator[Consumer]:
    """Suspend a consumer while it copies frames; let it go on afterwards."""
    with Consumer("fork", engine) as consumer:
        lines = consumer.call(lines_of_a_draw)
        line = next(number for number, name in enumerate(lines, 1) if name == "gather:_select")
        consumer.begin(stop_at_line, line)
        until(lambda: state_of(consumer.pid) == "T", "the consumer is suspended")
        try:
            yield consumer
        finally:
            os.kill(consumer.pid, signal.SIGCONT)
        assert consumer.result() is None


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_suspended_holder_of_the_lock_costs_an_error_and_no_hang(budgeted: OnlineDataEngine) -> None:
    """Field case C03, with a holder that lives."""
    assert budgeted._store is not None
    lock = budgeted._store.lock
    before, patience = delivered(budgeted), lock.timeout_s
    with suspended_in_the_lock(budgeted):
        lock.timeout_s = 0.5
        try:
            for call in (lambda: budgeted.sample_batch(4, 5), budgeted.get_stats, budgeted.request_refill):
                with pytest.raises(LockTimeoutError, match=r"not free within 0\.5 s.*alive, perhaps suspended"):
                    call()
            budgeted.check_health()
        finally:
            lock.timeout_s = patience
    assert delivered(budgeted) == before + 16  # the consumer's four calls
    budgeted.sample_batch(4, 5)


def test_a_learner_suspended_with_the_lock_in_its_hands_does_not_fail_the_producer() -> None:
    """Field case C06: any pause will do, also of a process that was stopped at the worst moment."""
    with running(HastyLocks(0.3)) as engine:
        with suspended_in_the_lock(engine):
            ask_for_a_refill_without_the_lock(engine)
            until(lambda: waits_for_the_lock(producer_pid(engine)), "the producer waits for the lock")
            time.sleep(1.0)  # longer than the producer would wait if its patience had an end
            engine.check_health()
        engine.wait_for_generation(2, timeout=PATIENCE_S)


def ask_for_a_refill_without_the_lock(engine: OnlineDataEngine) -> None:
    assert engine._store is not None
    engine._store.words[Word.REQUESTED_GENERATION] += 1


def waits_for_the_lock(pid: int) -> bool:
    """Return whether the main thread of a process is in a futex call."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == str(FUTEX)


def test_stop_ends_a_producer_that_waits_for_a_suspended_holder() -> None:
    with running() as engine:
        assert engine._store is not None
        with suspended_in_the_lock(engine):
            ask_for_a_refill_without_the_lock(engine)
            until(lambda: waits_for_the_lock(producer_pid(engine)), "the producer waits for the lock")
            engine._store.lock.timeout_s = 0.5
            pid = producer_pid(engine)
            with pytest.raises(LockTimeoutError):
                engine.stop()
            assert not is_running(pid)
            with pytest.raises(Exception, match="being stopped"):
                engine.sample_batch(2, 3)
        engine.stop()
        assert engine.state is State.STOPPED


def test_a_dead_producer_is_reported_once_a_suspended_holder_lets_go() -> None:
    with running() as engine:
        assert engine._store is not None
        with suspended_in_the_lock(engine):
            engine._store.lock.timeout_s = 0.5
            os.kill(producer_pid(engine), signal.SIGKILL)
            with pytest.raises((OnlineDataWorkerError, LockTimeoutError)):
                sample_until_failure(engine)
        with pytest.raises(OnlineDataWorkerError, match="signal 9"):
            engine.check_health()


# The owner


_owned: list[OnlineDataEngine] = []


def own_an_engine(_: None, script: Script, pipe: Connection) -> tuple[int, int]:
    """In a process of its own: start an engine, and fork a consumer that serves ``pipe``."""
    engine = make_engine(script)
    _owned.append(engine)
    engine.start()
    engine.sample_batch(2, 3)
    consumer = os.fork()
    if consumer == 0:
        try:
            _serve(pipe, engine)
        finally:
            os._exit(0)
    return producer_pid(engine), consumer


def health_of_own(_: None) -> None:
    _owned[0].check_health()


class Family:
    """An owner, its producer, and a consumer that survives them."""

    def __init__(self, script: Script) -> None:
        self.pipe, remote = multiprocessing.get_context("fork").Pipe()
        self.owner = Consumer("fork", daemon=False)
        self.producer, self.consumer = self.owner.call(own_an_engine, script, remote)
        remote.close()
        (self.memory,) = {line.split()[4] for line in memory_lines(self.producer)}

    def ask(self, function: Any, *arguments: Any) -> Any:
        self.pipe.send((function, arguments))
        assert self.pipe.poll(PATIENCE_S)
        error, value = self.pipe.recv()
        if error is not None:
            raise RemoteError(*error)
        return value

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self.owner.pid, self.consumer):
            if is_running(pid):
                os.kill(pid, signal.SIGCONT)
        if is_running(self.consumer):
            self.pipe.send(None)
        self.pipe.close()
        if is_running(self.owner.pid):
            os.kill(self.owner.pid, signal.SIGKILL)
        self.owner.process.join()
        self.owner.close()
        until(lambda: not is_running(self.consumer), "the consumer ends")
        until(lambda: not is_running(self.producer), "the producer is gone", 10.0)
        until(lambda: not users_of(self.memory), "the memory is free")


def memory_lines(pid: int) -> list[str]:
    try:
        return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:odstream" in line]
    except OSError:
        return []


def users_of(inode: str) -> list[int]:
    """Return the processes that map a memory file."""
    pids = [int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit()]
    return [pid for pid in pids if any(line.split()[4] == inode for line in memory_lines(pid))]


@pytest.mark.spec("ENG-06")
def test_a_killed_owner_takes_the_producer_and_its_children_along_and_consumers_learn_of_it() -> None:
    """Field cases C11 and M02."""
    with Family(Script(child_process=True)) as family:
        (grandchild,) = children_of(family.producer)
        family.ask(sample)
        os.kill(family.owner.pid, signal.SIGKILL)
        with pytest.raises(RemoteError, match="that owned the engine is gone"):
            family.ask(sample_until_failure)
        until(lambda: not is_running(family.producer) and not is_running(grandchild), "they are gone", 10.0)
        with pytest.raises(RemoteError, match="that owned the engine is gone"):
            family.ask(sample)


@pytest.mark.spec("ENG-06")
def test_a_consumer_learns_that_owner_and_producer_were_killed_together() -> None:
    with Family(Script()) as family:
        family.ask(sample)
        os.kill(family.owner.pid, signal.SIGSTOP)
        os.kill(family.producer, signal.SIGKILL)
        os.kill(family.owner.pid, signal.SIGKILL)
        with pytest.raises(RemoteError, match="is gone, and the process that owned it did not report how"):
            family.ask(sample_until_failure)


@pytest.mark.spec("ENG-06")
def test_a_suspended_owner_agrees_later_with_what_its_consumers_were_told() -> None:
    with Family(Script()) as family:
        os.kill(family.owner.pid, signal.SIGSTOP)
        os.kill(family.producer, signal.SIGKILL)
        with pytest.raises(RemoteError) as there:
            family.ask(sample_until_failure)
        os.kill(family.owner.pid, signal.SIGCONT)
        with pytest.raises(RemoteError) as here:
            family.owner.call(health_of_own)
        assert here.value.text == there.value.text


def test_a_producer_ends_with_its_owner_even_if_a_suspended_consumer_holds_the_lock() -> None:
    """Field case C11."""
    with Family(Script()) as family:
        lines = family.ask(lines_of_a_draw)
        line = next(number for number, name in enumerate(lines, 1) if name == "gather:_select")
        family.pipe.send((stop_at_line, (line,)))
        until(lambda: state_of(family.consumer) == "T", "the consumer is suspended")
        os.kill(family.owner.pid, signal.SIGKILL)
        until(lambda: not is_running(family.producer), "the producer is gone", 10.0)


def test_a_producer_that_hangs_ends_with_its_owner() -> None:
    """Field case C11."""
    with Family(Script(troubles=(Trouble("hang", attempt=4), Trouble("hang", at="close")))) as family:
        os.kill(family.owner.pid, signal.SIGKILL)
        until(lambda: not is_running(family.producer), "the producer is gone", 10.0)


def test_the_memory_of_a_killed_owner_is_freed_and_that_of_others_stays(budgeted: OnlineDataEngine) -> None:
    """Field case M02."""
    with Family(Script()) as family:
        pass
    assert users_of(family.memory) == []
    (own,) = {line.split()[4] for line in memory_lines(os.getpid())}
    assert set(users_of(own)) >= {os.getpid(), producer_pid(budgeted)}
    assert re.fullmatch(r"\d+", own)
    budgeted.sample_batch(2, 3)
