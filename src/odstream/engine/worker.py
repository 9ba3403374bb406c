"""The producer process: builds the producer, fills the cache, reports what goes wrong. Imports no torch.

It leads its own process group, so that whatever an environment starts can be ended with it, and it ends itself when
its owner is gone.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from odstream.cache.layout import CacheLayout, Word
from odstream.cache.memory import SharedMemory
from odstream.cache.publish import FrameSegment, Publisher, RowRecord
from odstream.cache.store import CacheStore
from odstream.engine import failure
from odstream.engine.language import LanguageRegistry
from odstream.engine.state import report_failure
from odstream.engine.work import BLOCKED, BUSY, PUBLISH, begin_publishing, begin_work, change_work, read_work
from odstream.errors import OnlineDataWorkerError
from odstream.producers.base import Episode, Producer, ProducerContext, ProducerFactory, Segment, Staging

__all__ = ["WorkerSettings", "run_worker"]

_IDLE_S = 0.005
_OWNER_POLL_S = 0.5
_FAREWELL_S = 2.0
_ORIGIN = "the producer process"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """What the worker needs of the engine's configuration."""

    context: ProducerContext
    run_id: int
    budget: int


def run_worker(connection: Connection, pickled_factory: bytes, settings: WorkerSettings, owner_pid: int) -> None:
    """Run until the owner says stop or dies, or the producer fails. Entry point of the process.

    The factory comes as bytes, so that a module of the user's that cannot be imported here is reported as well.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard = _OwnerGuard(owner_pid)
    producer: Producer | None = None
    store: CacheStore | None = None
    try:
        factory: ProducerFactory = _unpickled(pickled_factory)
        producer = factory(settings.context)
        store = _exchange(connection, producer)
        if store is not None:
            guard.store = store
            with suppress(_Stopped):
                _Production(producer, store, settings).run()
        producer.close()
    except BaseException as error:
        _report(error, store, connection)
        if producer is not None:
            _close_quietly(producer)
        raise SystemExit(1) from None


def _exchange(connection: Connection, producer: Producer) -> CacheStore | None:
    """Report the spec and receive the cache, or None if the owner refused the producer or was stopped."""
    try:
        connection.send(("spec", producer.spec))
        layout: CacheLayout = connection.recv()
        descriptor = recv_handle(connection)
    except (EOFError, OSError):
        return None
    return CacheStore(layout, SharedMemory(descriptor, layout.nbytes))


def _report(error: BaseException, store: CacheStore | None, connection: Connection) -> None:
    if store is not None:
        report_failure(store, failure.encode(error, origin=_ORIGIN))
        return
    try:
        connection.send(("error", failure.encode(error, origin=_ORIGIN)))
    except OSError:
        pass  # the owner is gone


def _close_quietly(producer: Producer) -> None:
    """Close after a failure: what closing adds must not hide the first error."""
    try:
        producer.close()
    except Exception:
        pass


def _unpickled(factory: bytes) -> ProducerFactory:
    try:
        built: ProducerFactory = pickle.loads(factory)
    except AttributeError as error:
        raise TypeError(
            "what builds the producer (the factory, expert or validator of gym_config) cannot be found by its name in "
            f"the producer's process: {error}; define it at the top level of a module or script, not in a function, "
            "under `if __name__ == '__main__':` or in an interactive session"
        ) from error
    return built


class _OwnerGuard:
    """Ends this process, and what it started, when the owner dies: by any means, whatever else goes on here."""

    def __init__(self, owner_pid: int) -> None:
        self._owner_pid = owner_pid
        self.store: CacheStore | None = None
        threading.Thread(target=self._watch, name="odstream-owner-guard", daemon=True).start()

    def _watch(self) -> None:
        while os.getppid() == self._owner_pid:
            time.sleep(_OWNER_POLL_S)
        farewell = threading.Thread(target=self._report, daemon=True)  # a suspended consumer may hold the lock
        farewell.start()
        farewell.join(_FAREWELL_S)
        os.killpg(0, signal.SIGKILL)

    def _report(self) -> None:
        if self.store is not None:
            error = OnlineDataWorkerError(f"the process {self._owner_pid} that owned the engine is gone")
            report_failure(self.store, failure.encode(error))


class _Stopped(Exception):
    """Ends a wait for the lock: the owner said stop."""


class _Production:
    """Fills generation after generation."""

    def __init__(self, producer: Producer, store: CacheStore, settings: WorkerSettings) -> None:
        self._producer = producer
        self._store = store
        self._words = store.words
        self._language = LanguageRegistry(store)
        self._publisher = Publisher(
            store,
            run_id=settings.run_id,
            budget=settings.budget,
            unix_ns=time.time_ns,
            monotonic_ns=time.monotonic_ns,
        )
        arrays = store.rows_of_fields()
        self._staging = Staging(arrays={key: arrays[key] for key in producer.spec.fields}, claim=self._publisher.claim)
        # A learner may be suspended for any time, with the lock in its hands.
        store.lock.timeout_s = math.inf
        store.when_waiting(self._raise_if_stopped)

    def run(self) -> None:
        """Fill generation after generation until told to stop."""
        with self._store.transaction():
            self._commit({Word.WORKER_PID: os.getpid(), **begin_work(time.monotonic_ns())})
        while self._wait_for(self._requested, then=BUSY):
            if not self._fill(int(self._words[Word.COMPLETED_GENERATION]) + 1):
                return

    def _requested(self) -> bool:
        return bool(self._words[Word.REQUESTED_GENERATION] > self._words[Word.COMPLETED_GENERATION])

    def _fill(self, generation: int) -> bool:
        """Publish one whole generation; return False if told to stop on the way."""
        slot, slots = 0, self._store.layout.slots
        for episode in self._producer.produce(slots, self._staging, should_stop=self._should_stop):
            if not episode.accepted:
                self._publisher.recycle(episode.row)
                self._count_failure(episode)
                continue
            if slot == slots:
                raise RuntimeError(f"the producer yielded more than the {slots} accepted episodes it was asked for")
            begin_publishing(self._words, time.monotonic_ns())
            if not self._wait_for(partial(self._publisher.has_room, slot), then=PUBLISH):
                return False
            self._publish(episode, slot, generation)
            slot += 1
        if slot < slots and not self._should_stop():
            raise RuntimeError(f"the producer ended after {slot} accepted episodes, {slots} were asked for")
        return slot == slots

    def _publish(self, episode: Episode, slot: int, generation: int) -> None:
        """Publish an episode and count it, in one change; the producer is busy from then on."""
        completes = slot + 1 == self._store.layout.slots

        def counted(now_ns: int) -> dict[int, int]:
            completed = {Word.COMPLETED_GENERATION: generation} if completes else {}
            return {**self._produced(episode, now_ns), **change_work(self._words, BUSY, now_ns), **completed}

        self._publisher.publish(self._record(episode), slot=slot, generation=generation, also=counted)

    def _record(self, episode: Episode) -> RowRecord:
        segments = episode.segments or (Segment(start=0, end=episode.length),)
        return RowRecord(
            row=episode.row,
            length=episode.length,
            terminated=episode.terminated,
            truncated=episode.truncated,
            valid=episode.valid,
            continuity_id=episode.continuity_id,
            task_index=self._language.intern("task", episode.instruction),
            segments=tuple(
                FrameSegment(
                    start=segment.start,
                    end=segment.end,
                    attempt=segment.attempt,
                    accepted=segment.accepted,
                    subtask_index=self._language.intern("subtask", segment.instruction or episode.instruction),
                )
                for segment in segments
            ),
        )

    def _count_failure(self, episode: Episode) -> None:
        with self._store.transaction():
            failed = int(self._words[Word.FAILED_EPISODES]) + 1
            self._commit({**self._produced(episode, time.monotonic_ns()), Word.FAILED_EPISODES: failed})

    def _produced(self, episode: Episode, now_ns: int) -> dict[int, int]:
        words = self._words
        frames = int(words[Word.GENERATED_FRAMES]) + episode.length
        return {Word.GENERATED_FRAMES: frames, Word.PRODUCTION_NS: read_work(words, now_ns).busy_ns}

    def _wait_for(self, condition: Callable[[], bool], *, then: int) -> bool:
        """Wait, blocked, until ``condition`` holds; then do what ``then`` says. Return False if told to stop first.

        No lock is held while waiting.
        """
        if self._should_stop():
            return False
        if condition():
            return True
        self._change_work(BLOCKED)
        while not self._should_stop():
            if condition():
                self._change_work(then)
                return True
            time.sleep(_IDLE_S)
        return False

    def _change_work(self, state: int) -> None:
        with self._store.transaction():
            self._commit(change_work(self._words, state, time.monotonic_ns()))

    def _commit(self, changes: dict[int, int]) -> None:
        self._store.commit([*changes], [*changes.values()])

    def _should_stop(self) -> bool:
        return bool(self._words[Word.STOP])

    def _raise_if_stopped(self) -> None:
        if self._should_stop():
            raise _Stopped
