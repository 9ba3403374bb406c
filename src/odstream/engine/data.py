"""The online engine: owns the producer process and the cache, and serves owned samples.

Letters: ``B`` batch, ``c`` chunk length, ``H`` history, ``F`` horizon, ``C`` slots.

(a) The worker process builds the producer and reports what it will record. (b) The owner checks that against its
configuration, allocates the cache and hands it over. (c) The producer records into rows that nobody can read and
retries what fails. (d) An accepted episode is annotated, then published by one swap under the lock. (e) A sampling
call chooses, copies and accounts for a whole batch under the same lock, (f) and arranges it after letting go.
"""

from __future__ import annotations

import atexit
import os
import pickle
import secrets
import time
import weakref
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Self

import torch
from tensordict import TensorDict

from odstream.cache.events import EventLog
from odstream.cache.layout import Word
from odstream.cache.store import CacheStore
from odstream.cache.windows import SAMPLING_MODES, SamplingMode
from odstream.engine import accounting, failure
from odstream.engine.config import OnlineDataEngineCfg
from odstream.engine.contract import layout_for
from odstream.engine.language import LanguageRegistry
from odstream.engine.process import ProducerWatch, WorkerProcess
from odstream.engine.sampling import Sampler, WindowRequest, check_generator
from odstream.engine.startup import StartDeadline, await_initial_fill, await_spec, loss_of
from odstream.engine.state import (
    LEGAL_MOVES,
    State,
    mark_down,
    raise_unless_ready,
    raise_unless_starting,
    report_failure,
    reported_failure,
    set_state,
    shared_state,
)
from odstream.engine.worker import WorkerSettings
from odstream.errors import EngineOwnershipError, EngineStateError, OnlineDataWorkerError
from odstream.producers.base import ProducerContext, ProducerFactory, RolloutSpec
from odstream.validation import check_choice, check_finite, check_int

__all__ = ["OnlineDataEngine", "OnlineDataEngineState"]

OnlineDataEngineState = State

_POLL_S = 0.005


class OnlineDataEngine:
    """A bounded cache of complete episodes between one producer process and any number of consumers.

    The process that creates the engine owns it: it alone starts, stops and refills. Forked and spawned copies may
    sample and read. Usable as a context manager, which starts and stops it.

    Args:
        cfg: Settings; already checked.
        producer: Builds the producer, in the worker process; must be picklable. None: the environment and expert of
            ``cfg.gym_config``.

    Raises:
        TypeError: If ``cfg`` is no `OnlineDataEngineCfg`.
        ValueError: If ``gym_config`` describes no environment.
    """

    def __init__(self, cfg: OnlineDataEngineCfg, *, producer: ProducerFactory | None = None) -> None:
        if not isinstance(cfg, OnlineDataEngineCfg):
            raise TypeError(f"cfg must be an OnlineDataEngineCfg, got {type(cfg).__name__}")
        self.cfg = cfg
        self.run_id = secrets.randbits(62)
        self._owner_pid = os.getpid()
        self._is_copy = False
        self._factory = _factory_from(cfg) if producer is None else producer
        self._state = State.CREATED
        self._failure = b""
        self._store: CacheStore | None = None
        self._worker: WorkerProcess | None = None
        self._watch: ProducerWatch | None = None
        self._guard: weakref.finalize[Any, Any] | None = None
        self._sampler: Sampler | None = None
        self._language: LanguageRegistry | None = None
        self.rollout_spec: RolloutSpec | None = None

    # Lifecycle

    @property
    def state(self) -> State:
        """The engine's state, alike in every process."""
        return self._state if self._store is None else shared_state(self._store)

    @property
    def is_owner(self) -> bool:
        """Whether this process created the engine: it alone may start, stop and refill it, and drain its events."""
        return os.getpid() == self._owner_pid and not self._is_copy

    @property
    def bytes_per_episode(self) -> int:
        """Shared memory that the frames of one stored episode take, in bytes. Known from READY on."""
        layout = self._started("bytes_per_episode").layout
        return layout.row_stride * sum(block.width_bytes for block in layout.blocks)

    def start(self) -> None:
        """Start the producer and block until the initial fill is complete.

        Owner only, once. Blocks for ``initialization_timeout`` seconds at most.

        Raises:
            EngineOwnershipError: If this process did not create the engine.
            EngineStateError: If it was started before, or is stopped meanwhile.
            Exception: What the producer raised, as itself, with its traceback as a note.
            EnvironmentContractError: If the environment does not fit the configuration.
            SharedMemoryError: If the cache does not fit into memory.
            TimeoutError: If the initial fill was not complete in time.
        """
        self._require_owner("start()")
        if self.state is not State.CREATED:
            raise EngineStateError(
                f"start() needs a CREATED engine, this one is {self.state.value}; create a new one to run again"
            )
        factory = _pickled(self._factory)
        deadline = StartDeadline(self.cfg.initialization_timeout)
        try:
            self._state = State.STARTING
            store = self._launch(factory, deadline)
            await_initial_fill(store, deadline)
            if not set_state(store, State.READY):
                raise_unless_starting(store)
        except BaseException as error:
            # A producer that reported its own failure is closing; one that hangs is not worth the wait.
            self._abort(error, 0.1 if deadline.is_over else self.cfg.shutdown_timeout)
            raise

    def stop(self) -> None:
        """End the producer and everything it started. Owner only; idempotent after a clean end.

        Blocks up to ``shutdown_timeout`` seconds for the producer to close by itself, then forces it. Samples that
        were drawn stay valid; counters, ledger and events can still be read.

        Raises:
            EngineOwnershipError: If this process did not create the engine.
            Exception: What the producer reported, while running or while closing.
            OnlineDataWorkerError: If it had to be killed, or died while it closed: what it was writing elsewhere may
                be lost. The engine is then FAILED.
        """
        self._require_owner("stop()")
        error = self._end_worker(self.cfg.shutdown_timeout)
        if error is not None:
            self._fail(error)
        self._set_stopped()
        if self.state is State.FAILED:
            raise self._reported_failure()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except Exception as cleanup:
            if error is None:
                raise
            if (type(cleanup), str(cleanup)) != (type(error), str(error)):
                error.add_note(f"Stopping the engine failed as well: {type(cleanup).__name__}: {cleanup}")

    def check_health(self) -> None:
        """Return if the engine is READY and its producer lives. Takes no lock, samples and requests nothing.

        Raises:
            Exception: The producer's failure; the same in every process, at every call.
            EngineStateError: If the engine is not running.
        """
        self._ready("check_health()")

    # Sampling

    def sample_batch(
        self,
        batch_size: int,
        chunk_size: int,
        sampling_mode: SamplingMode = "episode",
        *,
        generator: torch.Generator | None = None,
    ) -> TensorDict:
        """Return ``B`` chunks of ``c`` consecutive real frames as an owned TensorDict ``[B, c]``.

        An episode is drawn uniformly among those that have such a chunk, then a start uniformly within it. The lock
        is held while rows are chosen, copied and, with budgets, debited: one selection per chunk.

        Args:
            batch_size: B.
            chunk_size: c, at most ``max_episode_steps``.
            sampling_mode: ``"episode"``: chunks may span segments. ``"segment"``: each stays within one accepted
                segment. ``"boundary"``: each contains the first frame of a segment and the frame before it.
            generator: Source of randomness; None for this process's own, which is seeded from the system.

        Raises:
            ValueError, TypeError: If an argument is out of range.
            DataUnavailableError: If no episode has such a chunk.
            DataBudgetExhaustedError: If the episodes that have one cannot fund the whole batch. Nothing is debited.
            EngineStateError: If the engine is not READY.
            Exception: The producer's failure.
        """
        check_int("batch_size", batch_size, 1)
        check_int("chunk_size", chunk_size, 1, self.cfg.max_episode_steps)
        check_choice("sampling_mode", sampling_mode, SAMPLING_MODES)
        if sampling_mode == "boundary" and chunk_size < 2:
            raise ValueError(f"chunk_size must be at least 2 in sampling_mode 'boundary', got {chunk_size}")
        request = WindowRequest(batch_size=batch_size, mode=sampling_mode, anchor_frames=chunk_size, length=chunk_size)
        return self._draw("sample_batch()", request, generator)

    def sample_batch_with_context(
        self,
        batch_size: int,
        history_length: int,
        prediction_horizon: int,
        *,
        generator: torch.Generator | None = None,
        sampling_mode: SamplingMode = "episode",
        generations: tuple[int, ...] | None = None,
    ) -> TensorDict:
        """Return ``B`` causal contexts as an owned TensorDict ``[B, L]``, ``L = H + F - 1``.

        The current frame is at ``H - 1`` and always real; every real frame of an episode can be the current one.
        Ends of the episode, gaps, changes of continuity, and in segment mode changes of segment, bound the context.
        Beyond them numbers are 0, language and provenance ids -1, and ``valid`` is False. ``loss_mask`` selects real
        current and future frames. An observation is the one the action of the same frame was chosen on.

        Args:
            batch_size: B.
            history_length: H, frames up to and including the current one.
            prediction_horizon: F, frames from the current one on.
            generator: Source of randomness; None for this process's own.
            sampling_mode: ``"episode"`` or ``"segment"``.
            generations: Only episodes of these generations.

        Raises:
            As `sample_batch`.
        """
        check_int("batch_size", batch_size, 1)
        check_int("history_length", history_length, 1, self.cfg.max_episode_steps)
        check_int("prediction_horizon", prediction_horizon, 1, self.cfg.max_episode_steps)
        check_choice("sampling_mode", sampling_mode, ("episode", "segment"))
        _check_generations(generations)
        request = WindowRequest(
            batch_size=batch_size,
            mode=sampling_mode,
            anchor_frames=1,
            before=history_length - 1,
            length=history_length + prediction_horizon - 1,
            padded=True,
            generations=generations,
        )
        return self._draw("sample_batch_with_context()", request, generator)

    def resolve_language(self, batch: Mapping[str, Any] | TensorDict) -> dict[str, Any]:
        """Return ``{"task": ..., "subtask": ...}``: the texts of a batch's ids, nested like its batch dimensions.

        Only the kinds of which the engine has any text. Stays possible after refills and after stop.

        Raises:
            KeyError: If the batch has no ``task_index`` or ``subtask_index``.
            ValueError: If an id is padding (-1; select frames by ``valid`` first) or unknown, or there is no text.
        """
        registry = self._language_registry()
        kinds = registry.kinds()
        if not kinds:
            raise ValueError("there is nothing to resolve: no episode of this engine came with an instruction")
        return {kind: registry.resolve(kind, batch[f"{kind}_index"].tolist()) for kind in kinds}

    # Refill

    def request_refill(self) -> int:
        """Ask the producer to replace the whole cache, and return the generation that will have done so.

        Owner only. An outstanding request is not doubled: its generation is returned. Does not block.

        Raises:
            EngineOwnershipError, EngineStateError, Exception: As `start` and `check_health`.
        """
        self._require_owner("request_refill()")
        store = self._ready("request_refill()")
        with store.transaction():
            completed, requested = (
                int(store.words[word]) for word in (Word.COMPLETED_GENERATION, Word.REQUESTED_GENERATION)
            )
            if requested <= completed:
                requested = completed + 1
                store.commit([Word.REQUESTED_GENERATION], [requested])
        return requested

    def wait_for_generation(self, generation: int, timeout: float = 300.0) -> None:
        """Block until every slot has been refilled for ``generation``. Holds no lock while it waits.

        Args:
            generation: As returned by `request_refill`.
            timeout: Seconds to wait at most.

        Raises:
            ValueError: If that generation was never requested.
            TimeoutError: If it is not complete in time.
            EngineStateError, Exception: As `check_health`.
        """
        check_int("generation", generation, 1)
        check_finite("timeout", timeout)
        store = self._ready("wait_for_generation()")
        requested = int(store.words[Word.REQUESTED_GENERATION])
        if generation > requested:
            raise ValueError(f"generation must have been requested, the last request was {requested}, got {generation}")
        deadline = time.monotonic() + timeout
        while store.words[Word.COMPLETED_GENERATION] < generation:
            self._ready("wait_for_generation()")
            if time.monotonic() >= deadline:
                raise TimeoutError(self._late(store, generation, timeout))
            time.sleep(_POLL_S)

    # Accounting

    def get_flow_status(self) -> dict[str, int | None]:
        """Return the few counters that flow control polls. READY only; cost does not depend on history.

        ``requested_generation, completed_generation, successful_episodes``, and with budgets (else None)
        ``unlocked_remaining_chunks``, a coarse bound on what can still be selected, and ``total_delivered_chunks``.
        """
        return accounting.flow_status(self._ready("get_flow_status()"), budgeted=self._budgeted)

    def get_stats(self) -> dict[str, Any]:
        """Return production and consumption counters. Possible from READY on, also after stop or failure.

        ``requested_generation, completed_generation, successful_episodes, failed_episodes, generated_frames`` (of
        failed attempts too), ``production_seconds`` (time spent producing, up to the last attempt that has ended),
        ``sampled_chunks`` (delivered, whatever became of them), ``readable_episodes`` and ``valid_frames`` (of them,
        now), ``run_id``. With budgets, else None, ``remaining_chunks`` (left on readable episodes) and
        ``retired_chunks`` (that were left when their episodes were replaced): budget * successful_episodes =
        sampled_chunks + remaining_chunks + retired_chunks at every moment.

        And what the producer process, ``producer_pid``, does: ``producer_state``, one of ``busy, publish, blocked,
        down``, and the time spent in each so far, ``busy_seconds, publish_seconds, blocked_seconds, down_seconds``,
        which sum to its age.
        """
        return {**accounting.stats(self._started("get_stats()"), budgeted=self._budgeted), "run_id": self.run_id}

    def get_sampling_budget_snapshot(self) -> dict[str, Any]:
        """Return the ledger: per retained episode what was assigned, delivered and remains, and the totals.

        Possible from READY on, also after stop or failure. ``rows`` lists ``run_id, episode_id, generation, slot,
        assigned, delivered, remaining, locked``; beside it ``enabled, unlocked_remaining_chunks,
        total_delivered_chunks, episode_sample_budget, episode_sample_hard_limit``. Published rows are never locked:
        an episode is replaced in one step.
        """
        store = self._started("get_sampling_budget_snapshot()")
        ledger = accounting.ledger(store, self.run_id) if self._budgeted else accounting.NO_LEDGER
        return {
            "enabled": self._budgeted,
            **ledger,
            "episode_sample_budget": self.cfg.episode_sample_budget,
            "episode_sample_hard_limit": self.cfg.episode_sample_hard_limit,
        }

    def drain_lifecycle_events(self) -> list[dict[str, Any]]:
        """Return and remove the pending publication and eviction records, oldest first. Owner only.

        Empty without a log. Also possible after stop or failure. A log that is not drained holds production back. See
        `EventLog.drain` for the fields.
        """
        self._require_owner("drain_lifecycle_events()")
        return [] if self._store is None else EventLog(self._store).drain()

    # Inside

    def _draw(self, operation: str, request: WindowRequest, generator: torch.Generator | None) -> TensorDict:
        check_generator(generator)
        store = self._ready(operation)
        if self._sampler is None:
            self._sampler = self._new_sampler(store)
        return self._sampler.draw(request, generator)

    def _new_sampler(self, store: CacheStore) -> Sampler:
        automatic = self.cfg.refill_policy == "sample_threshold"
        engine = weakref.ref(self)

        def check() -> None:
            itself = engine()
            if itself is not None:
                itself._ready("sampling")

        return Sampler(
            store,
            budgeted=self._budgeted,
            refill_after=self.cfg.refill_threshold * self.cfg.buffer_size if automatic else None,
            check=check,
        )

    def _ready(self, operation: str) -> CacheStore:
        """Return the store if the engine is READY and its producer lives. Takes the lock only to report a death."""
        store = self._store
        if store is None:
            if self._failure:
                raise failure.decode(self._failure)
            raise EngineStateError(f"{operation} needs a READY engine, this one is {self._state.value}")
        raise_unless_ready(store, operation)
        if self._producer_died(store):
            raise_unless_ready(store, operation)
        return store

    def _producer_died(self, store: CacheStore) -> bool:
        """Return whether the producer of a READY engine has died; if so, it is reported by then."""
        if self.is_owner:
            if self._worker is None or not self._worker.died():
                return False
            report_failure(store, failure.encode(self._worker.death()))
            return True
        if self._watch is None:
            self._watch = ProducerWatch(store)
        if not self._watch.died():
            return False
        self._watch.await_report()
        return True

    @property
    def _budgeted(self) -> bool:
        return self.cfg.episode_sample_budget is not None

    def _started(self, operation: str) -> CacheStore:
        if self._store is None:
            raise EngineStateError(f"{operation} needs an engine that was started, this one is {self._state.value}")
        return self._store

    def _language_registry(self) -> LanguageRegistry:
        if self._language is None:
            self._language = LanguageRegistry(self._started("resolve_language()"))
        return self._language

    def _launch(self, factory: bytes, deadline: StartDeadline) -> CacheStore:
        """Start the producer process and hand it a cache made for what it will record."""
        settings = WorkerSettings(
            context=ProducerContext(
                max_episode_steps=self.cfg.max_episode_steps,
                max_generation_attempts=self.cfg.max_generation_attempts,
                action_semantics=self.cfg.action_semantics,
                action_config=dict(self.cfg.action_config),
            ),
            run_id=self.run_id,
            budget=self.cfg.episode_sample_budget or 0,
        )
        self._worker = worker = WorkerProcess(factory, settings)
        # Ends the producer of an engine that nobody stops: when it is collected, or when the interpreter exits,
        # before multiprocessing waits for its children.
        self._guard = weakref.finalize(self, _abandon, worker, self._owner_pid, self.cfg.shutdown_timeout)
        self._guard.atexit = False
        atexit.register(self._guard)
        worker.start()
        spec = await_spec(worker, deadline)
        if isinstance(spec, bytes):
            self._failure = spec
            raise failure.decode(spec)
        self.rollout_spec = spec
        layout = layout_for(self.cfg, spec)
        store = CacheStore.create(layout)
        set_state(store, State.STARTING)
        store.words[Word.REQUESTED_GENERATION] = 1
        self._store = store
        try:
            worker.send_store(layout, store)
        except OSError:
            raise loss_of(worker, deadline) from None
        return store

    def _late(self, store: CacheStore, generation: int, timeout: float) -> str:
        text = (
            f"generation {generation} was not complete within {timeout} s; completed is "
            f"{int(store.words[Word.COMPLETED_GENERATION])}, published so far "
            f"{int(store.words[Word.SUCCESSFUL_EPISODES])} episodes"
        )
        if self.cfg.lifecycle_event_capacity and EventLog(store).free() < 2:
            text += "; the lifecycle log is full and holds production back: call drain_lifecycle_events()"
        return text

    def _abort(self, error: BaseException, timeout_s: float) -> None:
        """End a start that did not succeed: FAILED after an error, STOPPED after an interrupt or `stop`."""
        if isinstance(error, Exception) and not (self._worker is not None and self._worker.ending):
            self._fail(error)
        self._end_worker(timeout_s)
        self._set_stopped()
        if isinstance(error, Exception) and self.state is State.STOPPED:
            raise EngineStateError("the engine was stopped while it started") from None

    def _end_worker(self, timeout_s: float) -> OnlineDataWorkerError | None:
        """End the producer, if there is one, and return what was wrong with its end."""
        if self._worker is None:
            return None
        error = self._worker.end(timeout_s)
        self._worker = None
        if self._store is not None:
            mark_down(self._store)
        self._release_guard()
        return error

    def _fail(self, error: Exception) -> None:
        if self._store is not None:
            report_failure(self._store, failure.encode(error))
        elif State.FAILED in LEGAL_MOVES[self._state]:
            self._state, self._failure = State.FAILED, self._failure or failure.encode(error)

    def _set_stopped(self) -> None:
        """Move to STOPPED, if the engine has not failed."""
        if self._store is not None:
            set_state(self._store, State.STOPPED)
        elif State.STOPPED in LEGAL_MOVES[self._state]:
            self._state = State.STOPPED

    def _reported_failure(self) -> Exception:
        return failure.decode(self._failure) if self._store is None else reported_failure(self._store)

    def _require_owner(self, operation: str) -> None:
        if not self.is_owner:
            raise EngineOwnershipError(
                f"{operation} may be called only in process {self._owner_pid}, which created the engine; "
                f"this is {'a copy in ' if self._is_copy else ''}process {os.getpid()}"
            )

    def _release_guard(self) -> None:
        if self._guard is not None:
            atexit.unregister(self._guard)
            self._guard.detach()

    def __getstate__(self) -> dict[str, Any]:
        if self._store is None:
            raise EngineStateError("start the engine before it is sent to another process")
        private = ("_worker", "_watch", "_guard", "_sampler", "_language", "_factory")
        return {key: None if key in private else value for key, value in self.__dict__.items()} | {"_is_copy": True}


def _factory_from(cfg: OnlineDataEngineCfg) -> ProducerFactory:
    from odstream.producers.environment import EnvironmentProducerFactory

    return EnvironmentProducerFactory(cfg.gym_config)


def _pickled(factory: ProducerFactory) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(factory))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"the producer must be picklable, since it is built in another process: {error}; "
            "use functions and classes defined at module level"
        ) from error


def _check_generations(generations: tuple[int, ...] | None) -> None:
    if generations is None:
        return
    if not isinstance(generations, tuple) or not generations:
        raise ValueError(f"generations must be None or a tuple of at least one generation, got {generations!r}")
    for generation in generations:
        check_int("generations", generation, 1)


def _abandon(worker: WorkerProcess, owner_pid: int, timeout_s: float) -> None:
    """End the producer of an engine that nobody stopped. Does nothing in a forked copy."""
    if os.getpid() == owner_pid:
        worker.end(timeout_s)
