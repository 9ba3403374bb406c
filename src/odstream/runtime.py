"""Flow control by the engine's owner: refills, bounded waits and pacing, in the caller's thread.

Letters as in `odstream.configuration`: batch size ``B``, ``P`` environments, ``K`` chunks per episode, ``C`` rows.
All times are seconds on the host's monotonic clock. Nothing runs in the background: whatever the controller does
happens inside one of its calls.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol

from odstream.configuration import ODSConfiguration
from odstream.configuration.checks import checked_count, checked_quantity
from odstream.errors import (
    DataBudgetExhaustedError,
    DataUnavailableError,
    EngineOwnershipError,
    EngineStateError,
    LockTimeoutError,
)

__all__ = ["ODSFlowController", "ODSFlowControllerCfg"]

IntervalKind = Literal["data_wait", "quota_wait", "usage_throttle"]
LifecycleEvents = list[dict[str, Any]]


class FlowEngineCfg(Protocol):
    """The settings of an engine that the controller reads, and never changes."""

    @property
    def buffer_size(self) -> int:
        """C."""

    @property
    def refill_policy(self) -> str:
        """Must be ``"manual"``."""

    @property
    def gym_config(self) -> Mapping[str, Any] | None:
        """Where ``num_envs`` stands."""

    @property
    def episode_sample_budget(self) -> int | None:
        """K."""

    @property
    def episode_sample_hard_limit(self) -> int | None:
        """What K may not exceed."""


class FlowEngine(Protocol):
    """The calls of an engine that the controller makes; `odstream.engine.OnlineDataEngine` has them."""

    @property
    def cfg(self) -> FlowEngineCfg:
        """Its settings."""

    def check_health(self) -> None:
        """Raise what is wrong with the engine or its worker."""

    def get_flow_status(self) -> Mapping[str, int | None]:
        """Counters of generations, accepted episodes, unlocked and delivered chunks."""

    def request_refill(self) -> int:
        """Ask for one fill; returns its generation."""

    def wait_for_generation(self, generation: int, timeout: float) -> None:
        """Return when the generation is complete; raise `TimeoutError` after ``timeout`` seconds."""

    def drain_lifecycle_events(self) -> LifecycleEvents:
        """Take the pending lifecycle events; also after stop or failure; empty without a log."""


class LiveSource(Protocol):
    """A source that samples an engine; `odstream.datasets.OnlineDataSource` is one."""

    @property
    def engine(self) -> object:
        """The engine it samples."""

    def sample_context(self, batch_size: int, spec: Any, *, generator: Any = None) -> Any:
        """Return an owned batch, or raise at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ODSFlowControllerCfg:
    """How long to wait, and how much may be produced.

    Raises:
        ValueError: If a field is out of its range.
    """

    data_wait_timeout: float = 30.0
    """Seconds to wait for unlocked budget or for eligible data; finite and positive."""
    generation_timeout: float = 1800.0
    """Seconds to wait for a complete generation; finite and positive."""
    poll_interval: float = 0.02
    """Longest sleep between two checks of progress, events and health, in seconds; finite and positive."""
    max_generated_episodes: int | None = None
    """Episodes that may be produced at most, initial fill included; at least the cache size. None: no limit.
    Only whole caches are requested, so what is left of the limit may stay unused."""

    def __post_init__(self) -> None:
        for field in ("data_wait_timeout", "generation_timeout", "poll_interval"):
            checked_quantity(field, getattr(self, field))
        if self.max_generated_episodes is not None:
            checked_count("max_generated_episodes", self.max_generated_episodes)


class _Status(NamedTuple):
    """One reading of the engine. Generation counters and chunk counters are not of one instant."""

    requested: int
    completed: int
    episodes: int
    unlocked: int | None
    delivered: int | None

    @property
    def pending(self) -> bool:
        return self.requested > self.completed


def _unlocked_chunks(status: _Status) -> int:
    if status.unlocked is None:
        raise EngineStateError("the engine reports no unlocked budget, which a plan needs")
    return status.unlocked


class _Interval:
    """Reports a wait when it ends, also one of length zero and one that ends in an error."""

    __slots__ = ("_clock", "_kind", "_observer", "started")

    def __init__(self, kind: IntervalKind, observer: Callable[..., object] | None, clock: Callable[[], float]) -> None:
        self._kind, self._observer, self._clock = kind, observer, clock
        self.started: float | None = None

    def begin(self) -> float:
        """Note that waiting starts, once; returns when it did."""
        if self.started is None:
            self.started = self._clock()
        return self.started

    def __enter__(self) -> _Interval:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: TracebackType | None) -> None:
        if self._observer is None:
            return
        ended = self._clock()
        try:
            self._observer(self._kind, ended if self.started is None else self.started, ended)
        except BaseException as failure:
            if error is None:
                raise
            error.add_note(f"on_interval failed as well, reporting {self._kind}: {failure!r}")


def _declared_num_envs(cfg: FlowEngineCfg) -> int:
    """P as declared in the engine's settings, dividing the cache."""
    count = (cfg.gym_config or {}).get("num_envs")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1 or cfg.buffer_size % count:
        raise ValueError(
            'with a plan or a production limit, gym_config["num_envs"] must be an integer >= 1 that divides '
            f"buffer_size={cfg.buffer_size}, got {count!r}: each fill then produces exactly one cache"
        )
    return count


def _check_plan(plan: ODSConfiguration, cfg: FlowEngineCfg) -> None:
    """Refuse a plan for another engine, and one that could never deliver a batch."""
    engine_has = {
        "buffer_size": cfg.buffer_size,
        "producer_envs": _declared_num_envs(cfg),
        "episode_sample_budget": cfg.episode_sample_budget,
        "episode_sample_hard_limit": cfg.episode_sample_hard_limit,
    }
    differences = [f"{k}: plan {getattr(plan, k)}, engine {v}" for k, v in engine_has.items() if getattr(plan, k) != v]
    if differences:
        raise ValueError("the engine was not configured from this plan: " + "; ".join(differences))
    unlocked = (plan.buffer_size - plan.producer_envs) * plan.episode_sample_budget
    if unlocked < plan.batch_size:
        raise ValueError(
            f"no batch could ever be delivered: (buffer_size - producer_envs) * episode_sample_budget = {unlocked} "
            f"chunks are fewer than batch_size={plan.batch_size}"
        )
    for field in ("active_chunks_per_second_cap", "training_chunks_per_second_target"):
        rate = getattr(plan, field)
        if not math.isfinite(rate) or rate <= 0:
            raise ValueError(f"the plan's {field} must be finite and > 0, got {rate!r}")


def _require_live_source(source: LiveSource, engine: FlowEngine) -> None:
    """Accept only a source on the controlled engine."""
    owner = getattr(source, "engine", None)
    if owner is None or not callable(getattr(source, "sample_context", None)):
        raise TypeError(
            f"source must be an OnlineDataSource on the controlled engine, got {type(source).__name__}; "
            "sample resident sources directly"
        )
    if owner is not engine:
        raise ValueError("source samples another engine than the one that this controller controls")


class ODSFlowController:
    """Applies a plan to an engine that its owner has started: refills, waits and batch spacing.

    It belongs to the process and thread that create it. It reads the engine's settings and changes none, starts and
    stops nothing, and holds no lock while it waits. With a plan, call `prepare_batch` before each batch.

    Args:
        engine: The engine, with ``refill_policy="manual"``.
        cfg: Deadlines and production limit.
        plan: What to apply. The engine must have been configured from it.
        progress: Called in every check; raise in it to cancel a wait.
        on_events: Gets the lifecycle events that were drained. Without it they are drained all the same.
        on_refill: Gets ``(generation, requested_at)`` for each refill that this controller newly requested.
        on_interval: Gets ``(kind, started, ended)`` when a wait ends, zero-length ones included. If it fails while an
            error is under way, that error goes on with a note.
        clock: Monotonic seconds.
        sleep: Sleeps for seconds.

    Raises:
        TypeError: If ``cfg`` or ``plan`` is of another class.
        ValueError: If the engine does not refill manually, does not match the plan, does not declare ``num_envs``
            although that is needed, or could never deliver a batch; or if the limit is below the cache size.
    """

    def __init__(
        self,
        engine: FlowEngine,
        cfg: ODSFlowControllerCfg | None = None,
        *,
        plan: ODSConfiguration | None = None,
        progress: Callable[[], object] | None = None,
        on_events: Callable[[LifecycleEvents], object] | None = None,
        on_refill: Callable[[int, float], object] | None = None,
        on_interval: Callable[[IntervalKind, float, float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        cfg = ODSFlowControllerCfg() if cfg is None else cfg
        if not isinstance(cfg, ODSFlowControllerCfg):
            raise TypeError(f"cfg must be an ODSFlowControllerCfg, got {type(cfg).__name__}")
        if plan is not None and not isinstance(plan, ODSConfiguration):
            raise TypeError(f"plan must be an ODSConfiguration, got {type(plan).__name__}")
        settings = engine.cfg
        if settings.refill_policy != "manual":
            raise ValueError(f'the engine must have refill_policy="manual", got {settings.refill_policy!r}')
        limit = cfg.max_generated_episodes
        if limit is not None:
            _declared_num_envs(settings)
            if limit < settings.buffer_size:
                raise ValueError(
                    f"max_generated_episodes must be at least buffer_size={settings.buffer_size}, got {limit}: "
                    "it includes the initial fill"
                )
        if plan is not None:
            _check_plan(plan, settings)
        self.engine, self.cfg, self.plan = engine, cfg, plan
        self._progress, self._on_events = progress, on_events
        self._on_refill, self._on_interval = on_refill, on_interval
        self._clock, self._sleep = clock, sleep
        self._owner = (os.getpid(), threading.current_thread())
        self._cache_episodes = settings.buffer_size
        self._delivered_at_refill = 0
        self._next_start = -math.inf

    # ------------------------------------------------------------ checks that every wait makes

    def drain_events(self) -> LifecycleEvents:
        """Drain the lifecycle log into ``on_events`` and return what was drained.

        Works after the engine has stopped or failed.
        """
        self._require_owner()
        events = self.engine.drain_lifecycle_events()
        if events and self._on_events is not None:
            self._on_events(events)
        return events

    def poll(self) -> None:
        """Call ``progress``, drain events, check the engine's health. Raises what any of them raises."""
        self._require_owner()
        if self._progress is not None:
            self._progress()
        self.drain_events()
        self.engine.check_health()

    def _require_owner(self) -> None:
        if self._owner != (os.getpid(), threading.current_thread()):
            raise EngineOwnershipError(
                "ODSFlowController works only in the process and thread that created it "
                f"(process {self._owner[0]}, thread {self._owner[1].name!r})"
            )

    def _status(self) -> _Status:
        counters = self.engine.get_flow_status()
        requested, completed = counters["requested_generation"], counters["completed_generation"]
        episodes = counters["successful_episodes"]
        if requested is None or completed is None or episodes is None:
            raise EngineStateError(f"the engine reports no generation counters: {dict(counters)}")
        unlocked, delivered = counters["unlocked_remaining_chunks"], counters["total_delivered_chunks"]
        return _Status(requested, completed, episodes, unlocked, delivered)

    def _interval(self, kind: IntervalKind) -> _Interval:
        return _Interval(kind, self._on_interval, self._clock)

    # ------------------------------------------------------------ refills

    def request_refill(self) -> int | None:
        """Request one fill of the whole cache, or adopt the one that is pending. Does not wait for it.

        Returns:
            The generation to wait for, or None if no whole cache fits ``max_generated_episodes`` any more.
        """
        self.poll()
        return self._request_refill(self._status())

    def _request_refill(self, status: _Status) -> int | None:
        if status.pending:
            return status.requested
        if not self._another_fill_fits(status):
            return None
        requested_at = self._clock()
        generation = self.engine.request_refill()
        self._delivered_at_refill = status.delivered or 0
        if self._on_refill is not None:
            self._on_refill(generation, requested_at)
        return generation

    def _another_fill_fits(self, status: _Status) -> bool:
        limit = self.cfg.max_generated_episodes
        return limit is None or status.episodes + self._cache_episodes <= limit

    def wait_for_generation(self, generation: int, *, deadline: float | None = None) -> None:
        """Wait until every episode of a generation is published.

        Args:
            generation: What `request_refill` returned.
            deadline: Absolute ``time.monotonic()`` seconds; can only shorten ``generation_timeout``.

        Raises:
            TimeoutError: If it is not complete in time; at once if the deadline has passed.
            ValueError: If ``deadline`` is not a finite number, or the generation was never requested.
        """
        self._require_owner()
        if deadline is not None:
            checked_quantity("deadline", deadline, zero_allowed=True)
        with self._interval("data_wait") as wait:
            started = wait.begin()
            limit = started + self.cfg.generation_timeout
            if deadline is not None:
                limit = min(limit, deadline)
            while not self._generation_completes(generation, limit):
                pass
            self.drain_events()

    def _generation_completes(self, generation: int, limit: float) -> bool:
        """Wait for one polling interval at most; whether the generation is complete."""
        self.poll()
        remaining_s = limit - self._clock()
        if remaining_s <= 0:
            status = self._status()
            if status.completed >= generation:
                return True
            raise TimeoutError(
                f"generation {generation} is not complete at its deadline: {status.completed} of "
                f"{status.requested} requested generations are, {status.episodes} episodes were accepted"
            )
        try:
            self.engine.wait_for_generation(generation, timeout=min(self.cfg.poll_interval, remaining_s))
        except LockTimeoutError:
            raise
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------ batches

    def prepare_batch(self, batch_size: int) -> bool:
        """Schedule a refill if one is due, wait until a batch is funded, then until its start is due.

        Without a plan it only checks progress, events and health. Being funded is a coarse bound: the sequence that
        is sampled next may still have to wait for eligible data. A start is never earlier than one batch's time after
        the previous start; time lost to slow updates or pauses is not made up for.

        Args:
            batch_size: B, the plan's.

        Returns:
            False only if what remains cannot fund a batch and ``max_generated_episodes`` allows no further fill.

        Raises:
            TimeoutError: If the batch is not funded within ``data_wait_timeout``.
            ValueError: If ``batch_size`` is not a positive integer, or not the plan's.
        """
        checked_count("batch_size", batch_size)
        plan = self.plan
        if plan is None:
            self.poll()
            return True
        self._require_owner()
        if batch_size != plan.batch_size:
            raise ValueError(f"batch_size must be the plan's {plan.batch_size}, got {batch_size}")
        if not self._wait_until_funded(plan):
            return False
        self._wait_until_due(plan)
        return True

    def _wait_until_funded(self, plan: ODSConfiguration) -> bool:
        with self._interval("quota_wait") as wait:
            while True:
                self.poll()
                status = self._status()
                if not status.pending and self._refill_is_due(plan, status):
                    # Its counters are separate snapshots: a reading taken after the last fill has ended decides.
                    status = self._status()
                supply_is_coming = status.pending or (
                    self._refill_is_due(plan, status) and self._request_refill(status) is not None
                )
                unlocked = _unlocked_chunks(status)
                if unlocked >= plan.batch_size:
                    return True
                if not supply_is_coming:
                    return False
                error = DataBudgetExhaustedError(f"{unlocked} chunks are unlocked, a batch needs {plan.batch_size}")
                self._sleep_or_time_out(wait.begin(), error)

    def _refill_is_due(self, plan: ODSConfiguration, status: _Status) -> bool:
        unlocked = _unlocked_chunks(status)
        if unlocked < plan.batch_size:
            return True
        if unlocked > plan.refill_remaining_chunks:
            return False
        # Where the refill point is all that can be unlocked, a full cache already lies at it: replacing episodes
        # that nobody has used would produce for ever.
        everything = (plan.buffer_size - plan.producer_envs) * plan.episode_sample_budget
        return unlocked < everything or status.delivered != self._delivered_at_refill

    def _wait_until_due(self, plan: ODSConfiguration) -> None:
        with self._interval("usage_throttle") as wait:
            now = wait.begin()
            while now < self._next_start:
                self.poll()
                remaining_s = self._next_start - self._clock()
                if remaining_s > 0:
                    self._sleep(min(self.cfg.poll_interval, remaining_s))
                now = self._clock()
            rate = min(plan.training_chunks_per_second_target, plan.active_chunks_per_second_cap)
            self._next_start = now + plan.batch_size / rate

    def _sleep_or_time_out(self, started: float, error: Exception) -> None:
        """Sleep until the next check, or raise `TimeoutError` because of ``error`` at the data deadline."""
        remaining_s = started + self.cfg.data_wait_timeout - self._clock()
        if remaining_s <= 0:
            status = self._status()
            raise TimeoutError(
                f"no data within data_wait_timeout={self.cfg.data_wait_timeout} s: {error}; {status.completed} of "
                f"{status.requested} requested generations are complete, {status.episodes} episodes were accepted"
            ) from error
        self._sleep(min(self.cfg.poll_interval, remaining_s))

    def sample_context(self, source: LiveSource, batch_size: int, sequence: Any, generator: Any = None) -> Any:
        """Sample, waiting out the two transient errors until the data deadline. Does not pace.

        Args:
            source: An `OnlineDataSource` on the controlled engine.
            batch_size: Contexts to draw.
            sequence: The `SequenceSpecCfg` to draw.
            generator: Random generator, passed on.

        Returns:
            The source's batch, owned by the caller.

        Raises:
            TimeoutError: If data was still missing after ``data_wait_timeout``; its cause is the last
                `DataUnavailableError` or `DataBudgetExhaustedError`.
            TypeError: If ``source`` is not a live source.
            ValueError: If ``source`` samples another engine.
        """
        self._require_owner()
        _require_live_source(source, self.engine)
        with self._interval("data_wait") as wait:
            while True:
                self.poll()
                try:
                    return source.sample_context(batch_size, sequence, generator=generator)
                except (DataUnavailableError, DataBudgetExhaustedError) as error:
                    self._sleep_or_time_out(wait.begin(), error)
