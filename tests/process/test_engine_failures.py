"""Producers that fail: while they are built, during the initial fill, and later."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from odstream.cache import memory
from odstream.cache.store import CacheStore
from odstream.engine import OnlineDataEngine, OnlineDataWorkerError
from odstream.engine.state import State
from odstream.errors import DemonstrationError, EnvironmentContractError, SharedMemoryError
from odstream.producers.base import ProducerContext, RolloutSpec
from tests.fakes import breaches
from tests.fakes.producers import Script, ScriptedProducer, Trouble
from tests.process.consumers import Consumer, RemoteError, make_engine, producer_pid, running, sample, until

AT_START = pytest.mark.parametrize("at", ["build", "episode"])


def failure_of(engine: OnlineDataEngine, error: type[BaseException]) -> BaseException:
    """Start an engine that must fail; check what holds for every failure at start; return it."""
    with pytest.raises(error) as caught:
        engine.start()
    assert engine.state is State.FAILED
    texts = {str(caught.value)}
    for call in (lambda: engine.sample_batch(2, 3), engine.check_health, engine.stop):
        with pytest.raises(error) as again:
            call()
        texts.add(str(again.value))
    assert texts == {str(caught.value)}
    return caught.value


# At start


@pytest.mark.spec("ENG-05")
@AT_START
def test_the_producer_s_exception_reaches_the_owner_as_itself(at: Any) -> None:
    """Field case C09."""
    error = failure_of(make_engine(Script(troubles=(Trouble("raise", at=at),))), ValueError)
    assert str(error) == "boom-42"
    (note,) = error.__notes__
    assert note.startswith("Raised in the producer process:\nTraceback")
    assert "producers.py" in note and "in happen" in note and "ValueError: boom-42" in note


@pytest.mark.spec("ENG-05")
@AT_START
@pytest.mark.parametrize(
    "kind",
    [breaches.Unpicklable, breaches.TwoArguments, breaches.Talkative, SystemExit, KeyboardInterrupt, StopIteration],
)
def test_an_exception_that_cannot_travel_arrives_as_text(at: Any, kind: Callable[[str], BaseException]) -> None:
    """Field case C09."""
    engine = make_engine(Script(troubles=(Trouble("raise", at=at, error=kind),)))
    error = failure_of(engine, OnlineDataWorkerError if kind is not StopIteration or at == "build" else RuntimeError)
    assert "boom-42" in str(error) or "generator raised StopIteration" in str(error)
    assert kind.__name__ in str(error)  # type: ignore[attr-defined]
    assert any("producers.py" in note and "in happen" in note for note in error.__notes__)


@pytest.mark.spec("ENG-05")
def test_an_exception_without_text_is_named() -> None:
    troubles = (Trouble("raise", error=breaches.Textless),)
    error = failure_of(make_engine(Script(troubles=troubles)), OnlineDataWorkerError)
    assert "Textless" in str(error)
    assert any("Textless" in note and "producers.py" in note for note in error.__notes__)


@pytest.mark.spec("ENG-05")
@AT_START
@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        ("exit", 7, "exited with code 7"),
        ("exit", 0, "exited with code 0"),
        ("exit", 1, "__main__"),
        ("kill", signal.SIGKILL, r"killed by signal 9 \(SIGKILL\)"),
        ("kill", signal.SIGRTMIN + 1, r"killed by signal 35 \(a real-time signal\)"),
    ],
)
def test_a_producer_that_leaves_without_a_word_is_noticed(at: Any, kind: Any, number: int, text: str) -> None:
    engine = make_engine(Script(troubles=(Trouble(kind, at=at, number=number),)))
    assert re.search(text, str(failure_of(engine, OnlineDataWorkerError)))


@pytest.mark.spec("ENG-02", "ENG-05")
@AT_START
def test_a_producer_that_hangs_ends_at_the_initialization_timeout(at: Any) -> None:
    limit_s = 0.5 if at == "build" else 3.0
    engine = make_engine(Script(troubles=(Trouble("hang", at=at, attempt=1),)), initialization_timeout=limit_s)
    error = failure_of(engine, TimeoutError)
    assert f"initialization_timeout={limit_s} s" in str(error)
    assert at == "build" or "of 4 episodes were published and 0 attempts failed" in str(error)
    assert not hasattr(error, "__notes__")
    if at != "build":
        assert engine.get_stats()["producer_state"] == "down"


@pytest.mark.spec("ENG-05", "ENG-14")
def test_a_task_that_never_succeeds_is_an_error_with_the_number_of_attempts() -> None:
    """Field case W13."""
    error = failure_of(make_engine(Script(accept_every=0), max_generation_attempts=3), DemonstrationError)
    assert "3 attempts" in str(error)


@pytest.mark.spec("ENG-10", "ENG-14")
def test_failed_attempts_are_counted_and_never_sampled() -> None:
    """Field case W13."""
    with running(Script(accept_every=2, number_attempts=True, constant=True, num_envs=1)) as engine:
        markers = {value for _ in range(125) for value in sample(engine, 4, 1)}
        assert markers == {1.0, 3.0, 5.0, 7.0}
        stats = engine.get_stats()
        assert (stats["successful_episodes"], stats["failed_episodes"]) == (4, 4)
        assert stats["generated_frames"] == 80


@pytest.mark.parametrize("local", [True, False])
def test_a_factory_that_cannot_travel_is_refused_before_a_process_starts(local: bool) -> None:
    """Field case U03."""

    def inner(context: ProducerContext) -> ScriptedProducer:
        return Script()(context)

    engine = make_engine(inner if local else lambda context: ScriptedProducer(Script(), context))
    with pytest.raises(TypeError, match=r"picklable.*(inner|lambda).*module level"):
        engine.start()
    assert engine.state is State.CREATED
    assert engine._worker is None


def test_a_factory_whose_module_the_producer_cannot_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("module_of_this_process_alone")
    exec("class Factory:\n    def __call__(self, context): ...\n", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    error = failure_of(make_engine(module.Factory()), ModuleNotFoundError)
    assert "module_of_this_process_alone" in str(error)


# Producers that break the contract


@pytest.mark.spec("ENG-10")
@pytest.mark.parametrize(
    ("act", "text"),
    [
        (breaches.too_long, "between 1 and max_episode_steps=20, got 21"),
        (breaches.empty, "between 1 and max_episode_steps=20, got 0"),
        (breaches.unclaimed, "claimed"),
        (breaches.twice, "claimed"),
        (breaches.recycled_twice, "claimed"),
        (breaches.greedy, "claimed"),
        (breaches.gap_in_segments, "cover"),
        (breaches.short_mask, "valid"),
        (breaches.blank_instruction, "blank"),
        (breaches.no_episode, "accepted"),
    ],
)
def test_a_producer_that_breaks_its_contract_fails_in_words(act: Any, text: str) -> None:
    assert text in str(failure_of(make_engine(breaches.Breach(act)), Exception))


@pytest.mark.spec("ENG-10")
def test_a_producer_that_yields_too_few_or_too_many_episodes_fails() -> None:
    error = failure_of(make_engine(Script(surplus=-1)), RuntimeError)
    assert "3 accepted episodes, 4 were asked for" in str(error)
    engine = make_engine(Script(surplus=1))
    with pytest.raises(RuntimeError, match="more than the 4"):  # at once, or soon afterwards
        engine.start()
        until(engine.check_health, "the surplus episode is refused")
    with pytest.raises(RuntimeError, match="more than the 4"):
        engine.stop()


@pytest.mark.parametrize("spec", [None, {"num_envs": 1}, RolloutSpec])
def test_a_spec_of_the_wrong_type_is_named(spec: object) -> None:
    assert "must be a RolloutSpec" in str(failure_of(make_engine(breaches.SpecOf(spec)), EnvironmentContractError))


@pytest.mark.spec("ENG-19")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"state_dim": 4}, "state_dim is configured as 4"),
        ({"action_dim": 9}, "action_dim is configured as 9"),
        ({"buffer_size": 1}, r"at least the producer's num_envs=2, got 1"),
    ],
)
def test_a_producer_that_does_not_fit_is_refused_before_it_records(settings: dict[str, Any], text: str) -> None:
    script = Script(troubles=(Trouble("exit", attempt=0), Trouble("hang", at="close")), seconds_per_episode=0.0)
    engine = make_engine(script, shutdown_timeout=0.2, **settings)
    with pytest.raises(EnvironmentContractError, match=text):
        engine.start()
    assert engine.state is State.FAILED


@pytest.mark.spec("ENG-05")
def test_too_little_memory_is_an_error_in_words_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case M01."""
    monkeypatch.setattr(memory, "available_bytes", lambda: (4096, "the test"))
    engine = make_engine()
    error = failure_of(engine, SharedMemoryError)
    text = str(error)
    assert "4096 bytes" in text and "the test" in text and "the cache needs " in text
    assert engine._store is None


@pytest.mark.spec("ENG-05")
def test_a_producer_that_dies_while_the_cache_is_made_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its spec and the cache: the owner writes to a process that is gone."""
    engine = make_engine()
    create = CacheStore.create

    def create_late(layout: Any) -> CacheStore:
        os.kill(producer_pid(engine), signal.SIGKILL)
        until(lambda: engine._worker is not None and engine._worker.died(), "it is dead")
        return create(layout)

    monkeypatch.setattr(CacheStore, "create", create_late)
    assert "signal 9" in str(failure_of(engine, OnlineDataWorkerError))


def test_a_producer_that_closes_its_connection_and_hangs_ends_at_the_timeout() -> None:
    engine = make_engine(breaches.DropsItsDescriptors(), initialization_timeout=1.5)
    assert "closed its connection" in str(failure_of(engine, TimeoutError))


# Later


@pytest.fixture
def doomed() -> Iterator[OnlineDataEngine]:
    """An engine whose producer raises in the middle of the first refill."""
    with running(Script(troubles=(Trouble("raise", attempt=6),))) as engine:
        yield engine


@pytest.mark.spec("ENG-06", "ENG-09")
def test_every_process_sees_the_same_failure_at_every_call(doomed: OnlineDataEngine, spawned: Consumer) -> None:
    """Field case C04, with a failure of the producer's own."""
    spawned.hold(doomed)
    with Consumer("fork", doomed) as forked:
        consumers = {"forked": forked, "spawned": spawned}
        for consumer in consumers.values():
            assert len(consumer.call(sample)) == 20
        doomed.request_refill()
        until(lambda: doomed.state is State.FAILED, "the producer fails")
        seen = set()
        for _ in range(3):
            for consumer in consumers.values():
                with pytest.raises(RemoteError) as there:
                    consumer.call(sample)
                seen.add((there.value.kind, there.value.text, *there.value.notes))
            with pytest.raises(ValueError, match="boom-42") as here:
                doomed.sample_batch(2, 3)
            seen.add(("ValueError", str(here.value), *here.value.__notes__))
        assert len(seen) == 1
        assert doomed.get_stats()["sampled_chunks"] == 8
    with Consumer("fork", doomed) as late, pytest.raises(RemoteError, match="ValueError: boom-42"):
        late.call(sample)
    with pytest.raises(ValueError, match="boom-42"):
        doomed.stop()


@pytest.mark.spec("ENG-06", "ENG-16")
def test_a_wait_for_a_generation_ends_with_the_producer_s_failure(doomed: OnlineDataEngine) -> None:
    with pytest.raises(ValueError, match="boom-42"):
        doomed.wait_for_generation(doomed.request_refill(), timeout=3000.0)


@pytest.mark.spec("ENG-06")
def test_a_failure_names_the_file_of_the_producer(doomed: OnlineDataEngine) -> None:
    doomed.request_refill()
    with pytest.raises(ValueError) as caught:
        until(lambda: doomed.sample_batch(2, 3) is None, "the failure surfaces")
    assert str(Path("fakes/producers.py")) in caught.value.__notes__[0]
    del caught
    gc.collect()
