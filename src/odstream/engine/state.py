"""The engine's states, the moves between them, and the failure that every process sees alike."""

from __future__ import annotations

import time
from enum import StrEnum

import numpy as np

from odstream.cache.layout import Word
from odstream.cache.store import CacheStore
from odstream.engine import failure
from odstream.engine.work import DOWN, change_work
from odstream.errors import EngineStateError

__all__ = [
    "LEGAL_MOVES",
    "State",
    "mark_down",
    "raise_unless_ready",
    "raise_unless_starting",
    "report_failure",
    "reported_failure",
    "set_state",
    "shared_state",
]


class State(StrEnum):
    """Where an engine is in its life. Sampling is possible in READY alone."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    READY = "READY"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


LEGAL_MOVES: dict[State, frozenset[State]] = {
    State.CREATED: frozenset({State.STARTING, State.STOPPED}),
    State.STARTING: frozenset({State.READY, State.FAILED, State.STOPPED}),
    State.READY: frozenset({State.FAILED, State.STOPPED}),
    State.FAILED: frozenset(),
    State.STOPPED: frozenset(),
}
"""The transition table. FAILED and STOPPED are final."""

_CODES = list(State)


def shared_state(store: CacheStore) -> State:
    """Return the state that all processes share."""
    return _CODES[int(store.words[Word.STATE])]


def set_state(store: CacheStore, state: State) -> bool:
    """Move to ``state`` if the table allows it; return whether it did."""
    with store.transaction(patient=True):
        if state not in LEGAL_MOVES[shared_state(store)]:
            return False
        _commit(store, state, {})
        return True


def report_failure(store: CacheStore, payload: bytes) -> bool:
    """Make ``payload`` (see `failure.encode`) the engine's failure, unless it has failed or stopped before."""
    data = np.frombuffer(payload, np.uint8)
    with store.transaction(patient=True):
        if State.FAILED not in LEGAL_MOVES[shared_state(store)]:
            return False
        store.array("error")[: len(data)] = data
        _commit(store, State.FAILED, {Word.ERROR_BYTES: len(data)})
        return True


def _commit(store: CacheStore, state: State, changes: dict[int, int]) -> None:
    """Change the state, and with one that is final what the producer is said to do: it has ended, or is about to."""
    changes = {**changes, Word.STATE: _CODES.index(state)}
    if not LEGAL_MOVES[state]:
        changes |= change_work(store.words, DOWN, time.monotonic_ns())
    store.commit([*changes], [*changes.values()])


def mark_down(store: CacheStore) -> None:
    """Say that the producer is down. Once its process has ended: it cannot say anything else afterwards."""
    with store.transaction(patient=True):
        changes = change_work(store.words, DOWN, time.monotonic_ns())
        if changes:
            store.commit([*changes], [*changes.values()])


def reported_failure(store: CacheStore) -> Exception:
    """Return the engine's failure as a new exception."""
    return failure.decode(bytes(store.array("error")[: int(store.words[Word.ERROR_BYTES])]))


def raise_unless_ready(store: CacheStore, operation: str) -> None:
    """Return if the shared state is READY and nobody has told the producer to end. Takes no lock.

    Raises:
        Exception: The producer's failure, if the engine has failed.
        EngineStateError: If it is not running.
    """
    words = store.words
    if words[Word.STATE] == _READY_CODE and not words[Word.STOP]:
        return
    state = shared_state(store)
    if state is State.FAILED:
        raise reported_failure(store)
    name = "being stopped" if state is State.READY else state.value
    raise EngineStateError(f"{operation} needs a READY engine, this one is {name}")


def raise_unless_starting(store: CacheStore) -> None:
    """Return while an initial fill goes on.

    Raises:
        Exception: The producer's failure, if it has failed.
        EngineStateError: If it was told to stop.
    """
    state = shared_state(store)
    if state is State.FAILED:
        raise reported_failure(store)
    if state is not State.STARTING or store.words[Word.STOP]:
        raise EngineStateError("the engine was stopped while it started")


_READY_CODE = _CODES.index(State.READY)
