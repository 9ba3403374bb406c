"""The owner's side of a start: waiting for the producer to be built and for the first fill, with one deadline."""

from __future__ import annotations

import time

from odstream.cache.layout import Word
from odstream.cache.store import CacheStore
from odstream.engine.process import WorkerProcess
from odstream.engine.state import raise_unless_starting
from odstream.errors import EnvironmentContractError, OnlineDataWorkerError
from odstream.producers.base import RolloutSpec

__all__ = ["StartDeadline", "await_initial_fill", "await_spec", "loss_of"]

_POLL_S = 0.005


class StartDeadline:
    """When a start must be complete.

    Args:
        timeout_s: ``initialization_timeout``, from now on.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._at_s = time.monotonic() + timeout_s

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._at_s

    def check(self, so_far: str) -> None:
        """Return if there is time left.

        Raises:
            TimeoutError: If not; it says ``so_far``, how far the start has come.
        """
        if self.is_over:
            raise TimeoutError(
                f"the initial fill was not complete within initialization_timeout={self._timeout_s} s: {so_far}"
            )


def await_spec(worker: WorkerProcess, deadline: StartDeadline) -> RolloutSpec | bytes:
    """Return what the producer will record, or the failure (see `failure.encode`) that it reported.

    Raises:
        OnlineDataWorkerError: If the process ended without a word.
        EnvironmentContractError: If what it reported is no spec.
        TimeoutError: At the deadline.
    """
    while not worker.connection.poll(_POLL_S):
        if worker.died() and not worker.connection.poll():
            raise worker.death()
        deadline.check("the producer was not built")
    try:
        kind, content = worker.connection.recv()
    except (EOFError, OSError):
        raise loss_of(worker, deadline) from None
    if kind == "error":
        return bytes(content)
    if not isinstance(content, RolloutSpec):
        raise EnvironmentContractError(f"a producer's spec must be a RolloutSpec, got {content!r}")
    return content


def loss_of(worker: WorkerProcess, deadline: StartDeadline) -> OnlineDataWorkerError:
    """Return how the producer ended, once it has: its end of the connection is closed."""
    while not worker.died():
        deadline.check("the producer closed its connection to the engine")
        time.sleep(_POLL_S)
    return worker.death()


def await_initial_fill(store: CacheStore, deadline: StartDeadline) -> None:
    """Return when every slot holds an episode.

    Raises:
        Exception: The producer's failure.
        EngineStateError: If the engine was told to stop.
        TimeoutError: At the deadline.
    """
    while store.words[Word.COMPLETED_GENERATION] < 1:
        raise_unless_starting(store)
        published, failed = int(store.words[Word.SUCCESSFUL_EPISODES]), int(store.words[Word.FAILED_EPISODES])
        deadline.check(f"{published} of {store.layout.slots} episodes were published and {failed} attempts failed")
        time.sleep(_POLL_S)
