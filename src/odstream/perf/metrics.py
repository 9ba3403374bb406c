"""The table of metrics. Sinks, the docs page and the report are made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from odstream.perf.facts import Facts
from odstream.perf.meter import LEARNER_STATES, PRODUCER_STATES

__all__ = ["METRICS", "Metric", "Readings", "metrics_table"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table."""

    name: str
    """As every sink writes it."""
    unit: str
    help: str
    formula: str
    value: Callable[[Facts], float | None]
    """Reads it off a window's facts; None if the window does not say."""


def _pool(name: str) -> Callable[[Facts], float | None]:
    return lambda facts: getattr(facts.pool, name)


def _memory(whose: str) -> Callable[[Facts], float | None]:
    return lambda facts: facts.memory.get(whose)


def _total(name: str) -> Callable[[Facts], float | None]:
    return lambda facts: facts.totals.get(name)


def _fraction(role: str, state: str) -> Callable[[Facts], float | None]:
    def read(facts: Facts) -> float | None:
        fractions: Mapping[str, float] = facts.learner if role == "learner" else facts.producer
        present = role == "learner" or facts.slots
        return fractions.get(state) if present else None

    return read


def _prefetched(facts: Facts) -> float | None:
    handed_out = facts.pool.delivered
    return None if handed_out is None else handed_out - facts.totals.get("delivered", 0)


def _in_flight(facts: Facts) -> float | None:
    totals = facts.totals
    return totals.get("delivered", 0) - totals.get("completed", 0) - totals.get("failed_updates", 0)


METRICS: tuple[Metric, ...] = (
    Metric(
        "perf/step_time",
        "s",
        "A training step without waiting; the slowest rank's. The first step is left out.",
        "(fetch + compute) / steps; no less than `perf/compute_time`",
        lambda facts: facts.step_s,
    ),
    Metric(
        "perf/step_time_skew",
        "s",
        "How much longer the slowest rank's step is than the fastest rank's.",
        "max - min of step time over ranks",
        lambda facts: facts.step_skew_s,
    ),
    Metric(
        "perf/data_time",
        "s",
        "Getting a batch that exists: sample, copy, collate, host to device.",
        "fetch / steps",
        lambda facts: facts.data_s,
    ),
    Metric(
        "perf/compute_time",
        "s",
        "Forward, backward and optimizer: through device events, or on a CPU by the wall clock.",
        "compute / steps",
        lambda facts: facts.compute_s,
    ),
    Metric(
        "perf/train_capacity",
        "samples/s",
        "T: what training could consume if data were always there.",
        "global batch size / `perf/step_time`",
        lambda facts: facts.train_per_s,
    ),
    Metric(
        "perf/infer_capacity",
        "samples/s",
        "I: what the producers that are up could make if nothing held them back; failed tries cost time.",
        "K * sum over slots of accepted / (busy + publish), completed calls only; of a slot without any its last rate",
        lambda facts: facts.infer_per_s,
    ),
    Metric(
        "perf/infer_batch_time",
        "s",
        "One call of a producer, without queueing and publication.",
        "busy / calls, completed calls only; of an engine a call is one attempt, of which P share the time",
        lambda facts: facts.call_s,
    ),
    Metric(
        "perf/dispatch_wait",
        "s",
        "Wait per step for enough samples, and for nothing else.",
        "wait / steps",
        lambda facts: facts.wait_s,
    ),
    Metric(
        "perf/thru",
        "samples/s",
        "What training really consumed.",
        "completed selections / wall time",
        lambda facts: facts.thru_per_s,
    ),
    Metric("perf/pool", "selections or rows", "What could be delivered now.", "read at the right edge", _pool("ready")),
    Metric("perf/age_p50", "s", "Median age of a selection.", "delivery - publication", lambda facts: facts.age_p50_s),
    Metric(
        "perf/age_p95",
        "s",
        "Age that 95 % of the selections do not exceed.",
        "delivery - publication",
        lambda facts: facts.age_p95_s,
    ),
    Metric("perf/window", "s", "Length of the window.", "right edge - left edge", lambda facts: facts.duration_s),
    *(
        Metric(
            f"perf/learner/{state}",
            "fraction",
            f"The learner's time in state `{state}`.",
            f"{state} / wall time, all ranks",
            _fraction("learner", state),
        )
        for state in LEARNER_STATES
        if state != "warmup"
    ),
    *(
        Metric(
            f"perf/producer/{state}",
            "fraction",
            f"The producers' time in state `{state}`.",
            f"{state} / wall time, all slots",
            _fraction("producer", state),
        )
        for state in PRODUCER_STATES
    ),
    Metric("perf/accepted", "episodes", "Accepted since the start.", "counter", _total("accepted")),
    Metric("perf/failed", "attempts", "Attempts that failed since the start.", "counter", _total("failed")),
    Metric("perf/lost", "episodes", "Accepted and never published.", "accepted - published", _total("lost")),
    Metric("perf/published", "episodes", "Published since the start.", "counter", _total("published")),
    Metric("perf/delivered", "selections", "Received by the training loop.", "counter", _total("delivered")),
    Metric("perf/completed", "selections", "Used by a completed optimizer step.", "counter", _total("completed")),
    Metric(
        "perf/failed_updates", "selections", "Received by an update that failed.", "counter", _total("failed_updates")
    ),
    Metric(
        "perf/in_flight",
        "selections",
        "Received and not used yet.",
        "delivered - completed - failed_updates",
        _in_flight,
    ),
    Metric(
        "perf/prefetched",
        "selections",
        "Drawn and not received by the loop: waiting in a loader, or used otherwise, as for a normalisation.",
        "drawn - delivered",
        _prefetched,
    ),
    Metric("perf/remaining", "selections", "Left on readable episodes.", "read at the right edge", _pool("remaining")),
    Metric(
        "perf/retired",
        "selections",
        "Left on episodes when they were replaced.",
        "K * published - drawn - remaining",
        _pool("retired"),
    ),
    Metric(
        "perf/learner_memory",
        "bytes",
        "Resident memory of the learner's process, the shared cache included as far as it was touched.",
        "read at the right edge",
        _memory("learner"),
    ),
    Metric(
        "perf/producer_memory",
        "bytes",
        "The same of the producer's process and of all that it started.",
        "read at the right edge",
        _memory("producer"),
    ),
    Metric(
        "perf/device_memory",
        "bytes",
        "Reserved by torch on the learner's CUDA device.",
        "read at the right edge",
        _memory("device"),
    ),
)
"""Every metric, in the order of the docs page."""


class Readings:
    """Values of all metrics that were ever known. One that a window does not say keeps its value and is stale."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def read(self, facts: Facts) -> tuple[dict[str, float], frozenset[str]]:
        """Return values by name, and the names of those that are stale."""
        stale = {"perf/infer_capacity"} if facts.infer_stale else set()
        for metric in METRICS:
            value = metric.value(facts)
            if value is None:
                stale.add(metric.name)
            else:
                self._values[metric.name] = float(value)
        return dict(self._values), frozenset(stale & self._values.keys())


def metrics_table() -> str:
    """Return the table in Markdown, as in the docs."""
    lines = ["| metric | unit | what it says | formula |", "| --- | --- | --- | --- |"]
    lines += [f"| `{one.name}` | {one.unit} | {one.help} | {one.formula} |" for one in METRICS]
    return "\n".join(lines) + "\n"
