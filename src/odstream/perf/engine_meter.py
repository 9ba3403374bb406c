"""The producer side of a live engine, seen through its public counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from odstream.perf.facts import PoolReading
from odstream.perf.meter import PRODUCER_STATES, Snapshot

__all__ = ["EngineMeter", "MeteredEngine"]


class MeteredEngine(Protocol):
    """What is read of an engine; `odstream.engine.OnlineDataEngine` has it."""

    @property
    def state(self) -> str:
        """READY, FAILED, STOPPED, ..."""

    def get_stats(self) -> Mapping[str, int | float]:
        """Counters, possible from READY on, after failure too."""

    def get_flow_status(self) -> Mapping[str, int | None]:
        """Counters of the budget, READY only."""

    def get_sampling_budget_snapshot(self) -> Mapping[str, Any]:
        """The ledger; possible after the end, too."""


class EngineMeter:
    """Reads an engine's counters and tells busy from blocked time.

    The engine counts production when an attempt ends. The reading therefore covers the time up to the last attempt
    that is known to have ended, or up to now when nothing is asked of the producer, and a blocked time is short by
    one polling interval at most. Publication takes microseconds and counts as blocked. Attempts in parallel
    environments count as one call each, of the time that they share.

    Args:
        engine: Started.
        name: Of the slot.
        selections_per_episode: K, if the engine has budgets; else None.
        clock_ns: Monotonic nanoseconds.
    """

    def __init__(
        self,
        engine: MeteredEngine,
        *,
        name: str = "engine",
        selections_per_episode: int | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._engine = engine
        self._name = name
        self._budget = selections_per_episode
        self._clock_ns = clock_ns
        self._states: dict[str, int] = {state: 0 for state in PRODUCER_STATES}
        self._resolved_ns = self._polled_ns = clock_ns()
        self._produced_ns = _produced_ns(engine.get_stats())

    def snapshot(self) -> Snapshot:
        """Read the engine and return what was added up so far. Takes the cache's lock for microseconds."""
        now_ns = self._clock_ns()
        stats = self._engine.get_stats()
        state = self._state(stats)
        self._resolve(now_ns, _produced_ns(stats) - self._produced_ns, state)
        self._produced_ns = _produced_ns(stats)
        accepted, failed = int(stats["successful_episodes"]), int(stats["failed_episodes"])
        return Snapshot(
            role="producer",
            name=self._name,
            state=state,
            states_ns=dict(self._states),
            counts={
                "calls": accepted + failed,
                "accepted": accepted,
                "failed": failed,
                "published": accepted,
                "lost": 0,
                "service_busy_ns": self._produced_ns,
                "service_publish_ns": 0,
            },
        )

    def pool(self) -> PoolReading:
        """Return what the cache holds. Published episodes are read apart from the rest: quiet, it balances exactly."""
        stats = self._engine.get_stats()
        if self._budget is None:
            return PoolReading(delivered=int(stats["sampled_chunks"]))
        ready = self._engine.state == "READY"
        counters = self._engine.get_flow_status() if ready else self._engine.get_sampling_budget_snapshot()
        remaining, delivered = counters["unlocked_remaining_chunks"], counters["total_delivered_chunks"]
        if remaining is None or delivered is None:
            raise ValueError(f"selections_per_episode={self._budget} was given, but the engine has no budgets")
        return PoolReading(
            ready=remaining if ready else 0,
            remaining=remaining,
            delivered=delivered,
            retired=self._budget * int(stats["successful_episodes"]) - delivered - remaining,
        )

    def _state(self, stats: Mapping[str, Any]) -> str:
        if self._engine.state != "READY":
            return "down"
        return "busy" if stats["requested_generation"] > stats["completed_generation"] else "blocked"

    def _resolve(self, now_ns: int, busy_ns: int, state: str) -> None:
        """Attribute time up to a moment before which everything is known.

        While a refill is under way, the last attempt that was counted since the last poll ended after that poll.
        """
        if state == "busy" and not busy_ns:
            self._polled_ns = now_ns
            return
        before_ns = now_ns if state != "busy" else self._polled_ns
        idle_ns = max(0, before_ns - self._resolved_ns - busy_ns)
        self._states["busy"] += busy_ns
        self._states["down" if state == "down" else "blocked"] += idle_ns
        self._resolved_ns += busy_ns + idle_ns
        self._polled_ns = now_ns


def _produced_ns(stats: Mapping[str, Any]) -> int:
    return round(float(stats["production_seconds"]) * 1e9)
