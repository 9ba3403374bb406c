"""An exception travels to every process: as itself where it can, always as text, never as another error."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from odstream.engine import failure
from odstream.engine.state import LEGAL_MOVES, State, raise_unless_ready, report_failure, reported_failure, set_state
from odstream.errors import EngineStateError, OnlineDataWorkerError
from tests.fakes.cache import Cache

ORIGIN = "the producer process"


class Plain(Exception):
    pass


class NeedsTwo(Exception):
    """Pickles, but cannot be built from what it pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("boom-42")


class NoPickle(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Impostor(Exception):
    """Comes back as something that is no exception."""

    def __reduce__(self) -> Any:
        return str, ("gotcha",)


def raised(error: BaseException) -> BaseException:
    """Return the error with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def transported(error: BaseException) -> Exception:
    return failure.decode(failure.encode(raised(error), origin=ORIGIN))


@pytest.mark.spec("ENG-05", "ENG-06")
@pytest.mark.parametrize(
    "error",
    [ValueError("boom-42"), KeyError("boom-42"), Plain("boom-42", 7), OSError(28, "boom-42"), MemoryError("boom-42")],
)
def test_an_exception_arrives_as_itself_with_its_traceback(error: Exception) -> None:
    """Field case C09."""
    arrived = transported(error)
    assert type(arrived) is type(error) and arrived.args == error.args
    (note,) = arrived.__notes__
    assert note.startswith("Raised in the producer process:\n")
    assert "boom-42" in note and "test_failure.py" in note and "in raised" in note


@pytest.mark.parametrize("error", [NeedsTwo(1, 2), NoPickle("boom-42"), Impostor("boom-42")])
def test_an_exception_that_cannot_travel_arrives_as_text(error: Exception) -> None:
    """Field case C09."""
    arrived = transported(error)
    assert isinstance(arrived, OnlineDataWorkerError)
    assert arrived.remote_type == f"{__name__}.{type(error).__name__}"
    assert "boom-42" in str(arrived) and type(error).__name__ in str(arrived)
    assert "test_failure.py" in arrived.remote_traceback


def test_an_exception_of_a_class_made_on_the_spot_arrives_as_text() -> None:
    class Local(Exception):
        pass

    arrived = transported(Local("boom-42"))
    assert isinstance(arrived, OnlineDataWorkerError) and "Local: boom-42" in str(arrived)


def test_an_exception_without_a_text_arrives_all_the_same() -> None:
    arrived = transported(NoText())
    assert isinstance(arrived, OnlineDataWorkerError)
    assert arrived.remote_type.endswith("NoText") and "cannot be had" in str(arrived)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), StopIteration(1), GeneratorExit()])
def test_what_would_end_or_steer_the_reader_arrives_as_an_error(error: BaseException) -> None:
    arrived = transported(error)
    assert isinstance(arrived, OnlineDataWorkerError) and arrived.remote_type == type(error).__name__


@pytest.mark.parametrize("text", ["x" * 10**6, "\N{GRINNING FACE}" * 10**5, "\0" * 10**5, "\ud800" * 10**5])
@pytest.mark.parametrize("kind", [ValueError, NoPickle])
def test_a_huge_exception_is_cut_to_what_there_is_room_for(kind: type[Exception], text: str) -> None:
    payload = failure.encode(raised(kind(text)), origin=ORIGIN)
    assert len(payload) <= 60_000 < Cache(slots=1).layout.error_bytes
    arrived = failure.decode(payload)
    assert isinstance(arrived, OnlineDataWorkerError) and text[:100] in str(arrived)
    assert kind.__name__ in str(arrived)


def test_the_cause_is_in_the_traceback() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        arrived = failure.decode(failure.encode(error, origin=ORIGIN))
    assert "KeyError: 'first'" in arrived.__notes__[0]


def test_without_an_origin_there_is_no_note() -> None:
    assert not hasattr(failure.decode(failure.encode(ValueError("boom-42"))), "__notes__")


def test_every_reader_gets_an_exception_of_its_own() -> None:
    payload = failure.encode(ValueError("boom-42"), origin=ORIGIN)
    first, second = failure.decode(payload), failure.decode(payload)
    first.add_note("mine")
    assert first is not second and len(second.__notes__) == 1


def test_the_error_itself_travels_on() -> None:
    arrived = pickle.loads(pickle.dumps(transported(NoPickle("boom-42"))))
    assert isinstance(arrived, OnlineDataWorkerError) and "boom-42" in str(arrived) and arrived.remote_traceback


# ------------------------------------------------------------- the shared state


@pytest.mark.spec("ENG-04")
@pytest.mark.parametrize("target", list(State))
@pytest.mark.parametrize("source", list(State))
def test_only_the_moves_of_the_table_are_made(source: State, target: State) -> None:
    store = Cache(slots=1).store
    store.words[0] = list(State).index(source)
    assert set_state(store, target) == (target in LEGAL_MOVES[source])
    assert list(State)[int(store.words[0])] is (target if target in LEGAL_MOVES[source] else source)


@pytest.mark.spec("ENG-06")
def test_the_first_failure_stays() -> None:
    store = Cache(slots=1).store
    assert set_state(store, State.STARTING) and set_state(store, State.READY)
    raise_unless_ready(store, "sampling")
    assert report_failure(store, failure.encode(ValueError("first")))
    assert not report_failure(store, failure.encode(ValueError("second")))
    for _ in range(2):
        assert str(reported_failure(store)) == "first"
        with pytest.raises(ValueError, match="first"):
            raise_unless_ready(store, "sampling")


@pytest.mark.spec("ENG-04")
@pytest.mark.parametrize("state", [State.CREATED, State.STARTING, State.STOPPED])
def test_an_engine_that_is_not_ready_says_what_it_is(state: State) -> None:
    store = Cache(slots=1).store
    store.words[0] = list(State).index(state)
    with pytest.raises(EngineStateError, match=f"sampling needs a READY engine, this one is {state.value}"):
        raise_unless_ready(store, "sampling")


def test_a_long_text_of_wide_characters_keeps_its_type() -> None:
    payload = failure.encode(ValueError("误" * 7900))
    error = failure.decode(payload)
    assert len(payload) <= 60_000
    assert type(error) is ValueError or "ValueError" in str(error)
    assert len(str(error)) > 1500
