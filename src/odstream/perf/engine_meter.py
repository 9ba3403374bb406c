"""The producer side of a live engine, seen through its public counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from odstream.perf.facts import PoolReading
from odstream.perf.meter import PRODUCER_STATES, Snapshot

__all__ = ["EngineMeter", "MeteredEngine"]


class MeteredEngine(Protocol):
    """What is read of an engine; `odstream.engine.OnlineDataEngine` has it."""

    def get_stats(self) -> Mapping[str, Any]:
        """Counters and times of one moment, possible from READY on, after failure too."""


class EngineMeter:
    """Reads what an engine's producer process has added up about itself. Any process that can read the engine may.

    The states sum to the age of the process. Waiting for a refill request, for room and for the event log is
    ``blocked``; nothing is ``starved``. From the moment its end is noticed the process is ``down``. Attempts in
    parallel environments count as one call each, of the time that they share.

    Args:
        engine: Started.
        name: Of the slot.
    """

    def __init__(self, engine: MeteredEngine, *, name: str = "engine") -> None:
        self._engine = engine
        self._name = name
        self.generation = 0
        """Completed generations, as of the newest snapshot."""
        self._states: dict[str, int] = {state: 0 for state in PRODUCER_STATES}
        self._stats: Mapping[str, Any] | None = None

    def snapshot(self) -> Snapshot:
        """Read the engine and return what was added up so far. Takes the cache's lock for microseconds."""
        self._stats = stats = self._engine.get_stats()
        self.generation = int(stats["completed_generation"])
        self._states = _never_backwards(self._states, _states_ns(stats))
        accepted, failed = int(stats["successful_episodes"]), int(stats["failed_episodes"])
        return Snapshot(
            role="producer",
            name=self._name,
            state=stats["producer_state"],
            states_ns=dict(self._states),
            counts={
                "calls": accepted + failed,
                "accepted": accepted,
                "failed": failed,
                "published": accepted,
                "lost": 0,
                "service_busy_ns": _ns(stats["production_seconds"]),
                "service_publish_ns": self._states["publish"],
            },
        )

    def pool(self) -> PoolReading:
        """Return what the cache held at the moment of the newest snapshot: selections with budgets, episodes without.

        Counts of both balance. Without a snapshot the engine is read.
        """
        stats = self._engine.get_stats() if self._stats is None else self._stats
        remaining = stats["remaining_chunks"]
        ready = stats["readable_episodes"] if remaining is None else remaining
        return PoolReading(
            ready=0 if stats["producer_state"] == "down" else ready,
            remaining=remaining,
            delivered=stats["sampled_chunks"],
            retired=stats["retired_chunks"],
        )


def _states_ns(stats: Mapping[str, Any]) -> dict[str, int]:
    return {state: _ns(stats.get(f"{state}_seconds", 0.0)) for state in PRODUCER_STATES}


def _never_backwards(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return ``now``, but with no state below ``before``; what that adds is taken from states that grew.

    The producer notes a change of state a moment after it read the clock: a reading in between counts that moment to
    the state before.
    """
    states = {state: max(value, before[state]) for state, value in now.items()}
    excess = sum(states.values()) - sum(now.values())
    for state, value in states.items():
        taken = min(excess, value - before[state])
        states[state] -= taken
        excess -= taken
    return states


def _ns(seconds: float) -> int:
    return round(float(seconds) * 1e9)
