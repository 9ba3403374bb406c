"""What one window says: rates as total over total, fractions of wall time, counts. Pure but for remembered rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from odstream.perf.ages import AgeHistogram
from odstream.perf.meter import LEARNER_STATES, PRODUCER_STATES
from odstream.perf.shape import PipelineShape
from odstream.perf.window import Difference, Window

__all__ = ["Facts", "FactFinder", "PoolReading", "imbalances", "total_rate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolReading:
    """What lies between producer and learner at the right edge of a window. None: not known."""

    ready: int | None = None
    """Selections, or without a budget rows, that can be delivered now."""
    remaining: int | None = None
    """Selections that are left on readable episodes."""
    delivered: int | None = None
    """Selections that the cache has handed out, those that a loader prefetched included."""
    retired: int | None = None
    """Selections that were left on episodes when they were replaced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Numbers of one window. None where nothing happened that could be measured."""

    duration_s: float
    steps: int
    intervals: int
    step_s: float | None
    """Of the slowest rank: fetch and compute per step, and no less than the device needs."""
    step_skew_s: float | None
    data_s: float | None
    compute_s: float | None
    wait_s: float | None
    train_per_s: float | None
    infer_per_s: float | None
    infer_stale: bool
    """Whether all of `infer_per_s` is remembered from earlier windows."""
    reuse_known: bool = True
    """Whether K is; if not, `infer_per_s` takes it as 1 and says nothing beside what training consumes."""
    call_s: float | None
    thru_per_s: float | None
    learner: Mapping[str, float]
    """Fraction of the ranks' wall time per state."""
    producer: Mapping[str, float]
    """Fraction of the slots' wall time per state."""
    slots: int
    slots_down: int
    accepted: int
    failed: int
    lost: int
    age_p50_s: float | None
    age_p95_s: float | None
    totals: Mapping[str, int] = field(default_factory=dict)
    """Counters since the start."""
    pool: PoolReading = PoolReading()
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes at the right edge, by whose they are: ``learner``, ``producer``, ``device``."""


def total_rate(counts: Sequence[float], durations_s: Sequence[float]) -> float | None:
    """Return total count over total duration, which is no mean of rates; None if no time was spent."""
    if len(counts) != len(durations_s):
        raise ValueError(f"counts and durations_s must be of one length, got {len(counts)} and {len(durations_s)}")
    duration_s = sum(durations_s)
    return sum(counts) / duration_s if duration_s > 0 else None


def imbalances(totals: Mapping[str, int], pool: PoolReading, selections_per_episode: int) -> list[str]:
    """Return, in words, the counts that do not balance; empty if all do.

    Args:
        totals: Counters since the start, as in `Window.totals`.
        pool: The reading of the same moment. Equations with an unknown part are left out.
        selections_per_episode: K.
    """
    found = []
    delivered = totals.get("delivered", 0)
    used = totals.get("completed", 0) + totals.get("failed_updates", 0)
    if used > delivered:
        found.append(f"completed + failed updates = {used} are more than the {delivered} selections delivered")
    if pool.delivered is not None and delivered > pool.delivered:
        found.append(f"{delivered} selections were received, the cache has delivered {pool.delivered}")
    if pool.delivered is not None and pool.remaining is not None and pool.retired is not None:
        funded = selections_per_episode * totals.get("published", 0)
        parts = pool.delivered + pool.remaining + pool.retired
        if funded != parts:
            found.append(
                f"{selections_per_episode} x published = {funded}, but delivered {pool.delivered} + remaining "
                f"{pool.remaining} + retired {pool.retired} = {parts}"
            )
    if totals.get("accepted", 0) != totals.get("published", 0) + totals.get("lost", 0):
        found.append(
            f"accepted {totals.get('accepted', 0)} != published {totals.get('published', 0)} + lost "
            f"{totals.get('lost', 0)}"
        )
    return found


class FactFinder:
    """Turns windows into facts. Remembers each slot's last rate for windows in which it completed nothing."""

    def __init__(self, shape: PipelineShape) -> None:
        self.shape = shape
        self._rates: dict[tuple[str, str, int], float] = {}

    def facts(self, window: Window, pool: PoolReading | None = None, memory: Mapping[str, int] | None = None) -> Facts:
        """Return the facts of a window, with what was read at its right edge."""
        learners, producers = window.learners, window.producers
        steps = max((rank.counts["steps"] for rank in learners), default=0)
        times = [_step_ns(rank) / rank.counts["steps"] / 1e9 for rank in learners if rank.counts["steps"]]
        step_s = max(times, default=None)
        completed = sum(rank.counts["completed"] for rank in learners)
        calls = sum(slot.counts["calls"] for slot in producers)
        infer_per_s, infer_stale = self._capacity(producers)
        ages = AgeHistogram.sum(rank.ages for rank in learners)
        return Facts(
            duration_s=window.duration_ns / 1e9,
            steps=steps,
            intervals=calls,
            step_s=step_s,
            step_skew_s=max(times) - min(times) if times else None,
            data_s=_slowest(learners, lambda rank: rank.states_ns["fetch"] / rank.counts["steps"]),
            compute_s=_slowest(learners, _compute_ns),
            wait_s=_slowest(learners, lambda rank: rank.states_ns["wait"] / rank.counts["steps"]),
            train_per_s=completed / steps / step_s if step_s else None,
            infer_per_s=infer_per_s,
            infer_stale=infer_stale,
            reuse_known=self.shape.reuse_known,
            call_s=sum(slot.counts["service_busy_ns"] for slot in producers) / calls / 1e9 if calls else None,
            thru_per_s=_sum_of_rates(learners, "completed"),
            learner=_fractions(learners, LEARNER_STATES),
            producer=_fractions(producers, PRODUCER_STATES),
            slots=len(producers),
            slots_down=sum(slot.state == "down" for slot in producers),
            accepted=sum(slot.counts["accepted"] for slot in producers),
            failed=sum(slot.counts["failed"] for slot in producers),
            lost=sum(slot.counts["lost"] for slot in producers),
            age_p50_s=ages.quantile_s(0.5),
            age_p95_s=ages.quantile_s(0.95),
            totals=window.totals,
            pool=PoolReading() if pool is None else pool,
            memory=memory or {},
        )

    def _capacity(self, producers: Sequence[Difference]) -> tuple[float | None, bool]:
        """Return selections per second of all slots that are not down, and whether no part of it is new.

        A slot that completed nothing in this window counts with its last rate: rates change slowly, calls may be long.
        """
        total, known, fresh = 0.0, False, False
        for slot in producers:
            service_ns = slot.counts["service_busy_ns"] + slot.counts["service_publish_ns"]
            called = slot.counts["calls"] > 0 and service_ns > 0
            if called:
                self._rates[slot.key] = slot.counts["accepted"] / service_ns * 1e9
            if slot.state == "down":
                known = fresh = True
            elif slot.key in self._rates:
                total, known, fresh = total + self._rates[slot.key], True, fresh or called
        return (total * self.shape.selections_per_episode if known else None), not fresh


def _compute_ns(rank: Difference) -> float:
    """Nanoseconds per step: of the device where it was timed, else of the host."""
    if rank.counts["device_steps"]:
        return rank.counts["device_ns"] / rank.counts["device_steps"]
    return rank.states_ns["compute"] / rank.counts["steps"]


def _step_ns(rank: Difference) -> float:
    """Nanoseconds of all steps. A device that runs behind the host bounds them from below."""
    host_ns = rank.states_ns["fetch"] + rank.states_ns["compute"]
    return max(host_ns, _compute_ns(rank) * rank.counts["steps"]) if rank.counts["device_steps"] else host_ns


def _slowest(ranks: Sequence[Difference], per_step_ns: Callable[[Difference], float]) -> float | None:
    return max((per_step_ns(rank) / 1e9 for rank in ranks if rank.counts["steps"]), default=None)


def _sum_of_rates(processes: Sequence[Difference], counter: str) -> float | None:
    """Return the sum over processes of each one's own count over its own wall time; they run side by side."""
    rates = [one.counts[counter] / one.wall_ns * 1e9 for one in processes if one.wall_ns > 0]
    return sum(rates) if rates else None


def _fractions(processes: Sequence[Difference], states: Sequence[str]) -> dict[str, float]:
    wall_ns = sum(one.wall_ns for one in processes)
    return {state: sum(one.states_ns[state] for one in processes) / wall_ns if wall_ns else 0.0 for state in states}
