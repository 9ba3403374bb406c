"""The life of an engine: every move, every call in every state, every way to end."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from odstream.cache.layout import CacheLayout
from odstream.cache.store import CacheStore
from odstream.engine import OnlineDataEngine, OnlineDataEngineState, OnlineDataWorkerError, startup
from odstream.engine.process import WorkerProcess
from odstream.engine.state import LEGAL_MOVES, State, set_state, shared_state
from odstream.engine.worker import WorkerSettings
from odstream.errors import EngineStateError
from odstream.producers.base import ProducerContext
from tests.fakes.producers import Script, Trouble
from tests.process.consumers import is_running, make_engine, producer_pid, running, until

CALLS: dict[str, Callable[[OnlineDataEngine], object]] = {
    "sample_batch": lambda engine: engine.sample_batch(2, 3),
    "sample_batch_with_context": lambda engine: engine.sample_batch_with_context(2, 2, 3),
    "check_health": lambda engine: engine.check_health(),
    "get_flow_status": lambda engine: engine.get_flow_status(),
    "request_refill": lambda engine: engine.request_refill(),
    "wait_for_generation": lambda engine: engine.wait_for_generation(1),
}
"""What needs a READY engine."""


@pytest.mark.spec("ENG-04")
@pytest.mark.parametrize(("origin", "target"), list(itertools.product(State, State)))
def test_only_the_moves_of_the_table_are_made(origin: State, target: State) -> None:
    allowed = {
        ("CREATED", "STARTING"),
        ("CREATED", "STOPPED"),
        ("STARTING", "READY"),
        ("STARTING", "FAILED"),
        ("STARTING", "STOPPED"),
        ("READY", "FAILED"),
        ("READY", "STOPPED"),
    }
    layout = CacheLayout(slots=1, spare_rows=1, max_episode_steps=2, fields=())
    store = CacheStore.create(layout)
    store.words[0] = list(State).index(origin)
    legal = (origin.value, target.value) in allowed
    assert set_state(store, target) is legal
    assert shared_state(store) is (target if legal else origin)
    assert (target in LEGAL_MOVES[origin]) is legal


@pytest.mark.spec("ENG-01", "ENG-04")
def test_a_whole_life_goes_through_the_states_in_order() -> None:
    engine = make_engine(Script(seconds_per_episode=0.05))
    seen = [engine.state]

    def watch() -> None:
        while seen[-1] is not OnlineDataEngineState.STOPPED:
            if engine.state is not seen[-1]:
                seen.append(engine.state)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with engine:
        pass
    watcher.join()
    assert [state.value for state in seen] == ["CREATED", "STARTING", "READY", "STOPPED"]


@pytest.mark.spec("ENG-04")
def test_nothing_can_be_asked_of_an_engine_that_was_not_started() -> None:
    engine = make_engine()
    for name, call in CALLS.items():
        with pytest.raises(EngineStateError, match=r"READY engine, this one is CREATED"):
            call(engine)
        assert engine.state is State.CREATED, name
    for call in (engine.get_stats, engine.get_sampling_budget_snapshot):
        with pytest.raises(EngineStateError, match="was started"):
            call()
    assert engine.drain_lifecycle_events() == []


@pytest.mark.spec("ENG-04", "ENG-07")
def test_an_engine_that_was_stopped_before_its_start_stays_stopped() -> None:
    engine = make_engine()
    engine.stop()
    engine.stop()
    assert engine.state is State.STOPPED
    with pytest.raises(EngineStateError, match="CREATED engine, this one is STOPPED"):
        engine.start()


@pytest.mark.spec("ENG-04", "ENG-07", "ENG-18", "ENG-22")
def test_after_stop_there_are_no_samples_but_the_counters_remain() -> None:
    engine = make_engine(Script(instructions=("grasp",)), episode_sample_budget=9, episode_sample_hard_limit=9)
    engine.start()
    pid = producer_pid(engine)
    with pytest.raises(EngineStateError, match="CREATED engine, this one is READY"):
        engine.start()
    batch = engine.sample_batch(3, 5)
    kept = batch.clone()
    engine.stop()
    engine.stop()
    assert engine.state is State.STOPPED
    assert not is_running(pid)
    for call in CALLS.values():
        with pytest.raises(EngineStateError, match="READY engine, this one is STOPPED"):
            call(engine)
    with pytest.raises(EngineStateError, match="CREATED engine, this one is STOPPED"):
        engine.start()
    assert (batch == kept).all()
    assert engine.get_stats()["sampled_chunks"] == 3
    assert engine.get_sampling_budget_snapshot()["total_delivered_chunks"] == 3
    assert engine.resolve_language(batch)["task"][0][0] == "grasp"


@pytest.mark.spec("ENG-04", "ENG-05")
def test_a_failed_engine_says_so_for_ever() -> None:
    engine = make_engine(Script(troubles=(Trouble("raise"),)))
    with pytest.raises(ValueError, match="boom-42"):
        engine.start()
    assert engine.state is State.FAILED
    for call in [*CALLS.values(), OnlineDataEngine.stop, OnlineDataEngine.stop]:
        with pytest.raises(ValueError, match="boom-42"):
            call(engine)
    with pytest.raises(EngineStateError, match="CREATED engine, this one is FAILED"):
        engine.start()
    assert engine.state is State.FAILED


# Ways to end


@pytest.mark.spec("ENG-08")
def test_the_body_s_error_is_primary_and_the_cleanup_failure_a_note() -> None:
    with pytest.raises(KeyError, match="body") as caught, make_engine(Script(troubles=(Trouble("raise", at="close"),))):
        raise KeyError("body")
    assert any("Stopping the engine failed as well: ValueError: boom-42" in note for note in caught.value.__notes__)


@pytest.mark.spec("ENG-08")
def test_the_body_s_error_comes_alone_when_the_cleanup_succeeds() -> None:
    engine = make_engine()
    with pytest.raises(KeyError) as caught, engine:
        raise KeyError("body")
    assert not hasattr(caught.value, "__notes__")
    assert engine.state is State.STOPPED


@pytest.mark.spec("ENG-07", "ENG-08")
def test_a_cleanup_failure_alone_is_raised() -> None:
    engine = make_engine(Script(troubles=(Trouble("raise", at="close"),)))
    with pytest.raises(ValueError, match="boom-42"), engine:
        pass
    assert engine.state is State.FAILED


@pytest.mark.spec("ENG-08")
def test_the_producer_s_own_failure_is_not_repeated_as_a_note() -> None:
    engine = make_engine(Script(troubles=(Trouble("raise", attempt=4),)))
    with pytest.raises(ValueError, match="boom-42") as caught, engine:
        engine.wait_for_generation(engine.request_refill())
    assert [note for note in caught.value.__notes__ if "Stopping" in note] == []


@pytest.mark.spec("ENG-07")
def test_what_goes_wrong_while_the_producer_closes_is_raised_by_every_stop() -> None:
    engine = make_engine(Script(troubles=(Trouble("raise", at="close"),)))
    engine.start()
    for _ in range(2):
        with pytest.raises(ValueError, match="boom-42") as caught:
            engine.stop()
        assert "producers.py" in caught.value.__notes__[0]
    assert engine.state is State.FAILED


@pytest.mark.spec("ENG-07")
@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        (Trouble("kill", at="close", number=signal.SIGSEGV), r"signal 11 \(SIGSEGV\)"),
        (Trouble("exit", at="close", number=3), "exited with code 3"),
    ],
)
def test_a_producer_that_dies_while_it_closes_did_not_stop_cleanly(trouble: Trouble, text: str) -> None:
    engine = make_engine(Script(troubles=(trouble,)))
    engine.start()
    for _ in range(2):
        with pytest.raises(OnlineDataWorkerError, match=text):
            engine.stop()
    assert engine.state is State.FAILED


@pytest.mark.spec("ENG-07")
def test_a_producer_that_must_be_killed_leaves_the_engine_failed() -> None:
    engine = make_engine(Script(troubles=(Trouble("hang", at="close"),), child_process=True), shutdown_timeout=0.3)
    engine.start()
    pid = producer_pid(engine)
    for _ in range(2):
        with pytest.raises(OnlineDataWorkerError, match=r"shutdown_timeout=0\.3 s and had to be killed"):
            engine.stop()
    assert engine.state is State.FAILED
    assert not is_running(pid)


@pytest.mark.spec("ENG-07")
def test_a_suspended_producer_is_killed() -> None:
    engine = make_engine(shutdown_timeout=0.3)
    engine.start()

    os.kill(producer_pid(engine), signal.SIGSTOP)
    with pytest.raises(OnlineDataWorkerError, match="had to be killed"):
        engine.stop()


@pytest.mark.spec("ENG-04")
@pytest.mark.parametrize(
    "script", [Script(seconds_per_episode=3600.0), Script(troubles=(Trouble("hang", at="build"),))]
)
def test_an_engine_that_is_stopped_while_it_starts_gives_up_at_once(script: Script) -> None:
    """`start` blocks in one thread, another one calls `stop`: early, or while the cache is filled."""
    engine = make_engine(script, initialization_timeout=3000.0, shutdown_timeout=0.5)
    caught: list[BaseException] = []

    def start() -> None:
        try:
            engine.start()
        except BaseException as error:
            caught.append(error)

    starter = threading.Thread(target=start)
    starter.start()
    until(lambda: engine._worker is not None, "the producer is started")
    with suppress(OnlineDataWorkerError):  # one that hangs must be killed
        engine.stop()
    starter.join(20.0)
    assert not starter.is_alive()
    assert isinstance(caught[0], EngineStateError | OnlineDataWorkerError)
    assert engine.state in (State.STOPPED, State.FAILED)
    caught.clear()


@pytest.mark.spec("ENG-07")
def test_a_process_that_was_to_end_before_it_was_there_is_ended_once_it_is() -> None:
    context = ProducerContext(max_episode_steps=20, max_generation_attempts=3)
    settings = WorkerSettings(context=context, run_id=1, budget=0)
    worker = WorkerProcess(pickle.dumps(Script()), settings)
    assert worker.end(1.0) is None
    with pytest.raises(EngineStateError, match="stopped while it started"):
        worker.start()
    assert worker.died()


@pytest.mark.spec("ENG-04")
def test_a_signal_handler_may_stop_an_engine_that_starts() -> None:
    engine = make_engine(Script(seconds_per_episode=3600.0), initialization_timeout=3000.0)

    def prod() -> None:
        until(lambda: engine.state is State.STARTING and engine._worker is not None, "the producer is started")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: engine.stop())
    prodder = threading.Thread(target=prod)
    prodder.start()
    try:
        with pytest.raises(EngineStateError, match="stopped while it started"):
            engine.start()
    finally:
        signal.signal(signal.SIGUSR1, before)
        prodder.join()
    assert engine.state is State.STOPPED
    engine.stop()


@pytest.mark.spec("ENG-05")
def test_an_interrupted_start_ends_the_producer_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(Script(seconds_per_episode=3600.0))
    pids = []

    def interrupt(_: object) -> None:
        pids.append(producer_pid(engine))
        raise KeyboardInterrupt

    monkeypatch.setattr(startup, "raise_unless_starting", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.start()
    assert engine.state is State.STOPPED
    assert not is_running(pids[0])
    engine.stop()  # as in `finally:`; must not hide the interrupt
    with pytest.raises(EngineStateError):
        engine.start()


def test_an_engine_that_nobody_stops_ends_with_its_last_reference() -> None:
    engine = make_engine(Script(child_process=True))
    engine.start()
    pid = producer_pid(engine)
    del engine
    until(lambda: not is_running(pid), "the producer of a dropped engine ends", 15.0)


@pytest.fixture
def started() -> Iterator[OnlineDataEngine]:
    with running() as engine:
        yield engine


@pytest.mark.spec("ENG-22")
def test_health_is_looked_at_without_the_lock(started: OnlineDataEngine) -> None:
    assert started._store is not None
    with started._store.transaction():
        started.check_health()
        assert started.state is State.READY
