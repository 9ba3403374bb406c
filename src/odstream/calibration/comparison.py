"""Compare how a planned run went with its plan. Pure.

All times are seconds on the host's monotonic clock. Rates are total counts over total times in a window of whole
refill cycles: it begins and ends with the request of a refill, so it holds as many episodes as it asked for.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from odstream.calibration.explain import WIDTH, short
from odstream.calibration.throughput import WorkInterval, nearest_rank, production_records
from odstream.configuration import ODSConfiguration

COMPARISON_FORMAT, COMPARISON_VERSION = "odstream.comparison", 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerWork:
    """What the learner has done since it began."""

    completed_chunks: int
    active_s: float
    """Seconds of sampling, transfer and optimizer; without waits, pacing and pauses."""
    paused_s: float = 0.0
    """Seconds of evaluation and the like, in which no batch was wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefillRequest:
    """A refill was requested, and how far the learner was by then."""

    generation: int
    requested_at_s: float
    learner: LearnerWork


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """A wait that the flow controller reported."""

    kind: str
    started_s: float
    ended_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecords:
    """What was observed in a planned run, from its first episode to its end."""

    refills: Sequence[RefillRequest]
    """In order."""
    events: Sequence[Mapping[str, Any]]
    """All lifecycle events, those of the initial fill included."""
    waits: Sequence[Wait]
    delivered_chunks: Mapping[int, int]
    """Per episode, as the consumer counted them."""
    ledger: Mapping[str, Any]
    """`OnlineDataEngine.get_sampling_budget_snapshot` at the end, when nothing is produced any more."""
    bytes_per_episode: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonLine:
    """One quantity: as planned, where the plan says something, and as observed."""

    name: str
    planned: float | None
    observed: float
    unit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reuse:
    """What became of every selection that was granted, in the whole run."""

    published_episodes: int
    evicted_episodes: int
    assigned_chunks: int
    """K for each published episode."""
    delivered_chunks: int
    """By the engine's count."""
    remaining_chunks: int
    """Left on the episodes that are still cached."""
    retired_chunks: int
    """Left on episodes when they were replaced, by the consumer's count of their deliveries."""
    unaccounted_chunks: int
    """Assigned, and none of the others: 0 if engine and consumer agree."""
    chunks_per_evicted_episode: tuple[int, float, int] | None
    """Least, mean and most; None if no episode was replaced."""
    generation_shares: Mapping[int, float]
    """Share of the delivered chunks that came from each generation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A planned run beside its plan."""

    refills: int
    """Whole refill cycles in the window."""
    window_s: float
    paused_s: float
    """Seconds of the window that the learner paused. Rates compared with the plan leave them out."""
    lines: tuple[ComparisonLine, ...]
    reuse: Reuse
    notes: tuple[str, ...]
    """Why the numbers may not say much, in sentences."""


def compare_run(
    plan: ODSConfiguration,
    records: RunRecords,
    *,
    planned_first_publication_s: float | None = None,
    settling_refills: int = 1,
) -> Comparison:
    """Compare a run with the plan that it followed.

    Args:
        plan: The plan.
        records: What was observed; see `RunRecorder`.
        planned_first_publication_s: The 95th percentile that went into the plan.
        settling_refills: Refills after the start that are left out, while the first budgets are used up.

    Returns:
        The comparison. Without two requested refills after the settled ones it holds no rates, and says so.
    """
    refills = records.refills[settling_refills:]
    cache = ComparisonLine(
        name="cache",
        planned=plan.cache_bytes,
        observed=plan.buffer_size * records.bytes_per_episode,
        unit="bytes",
    )
    reuse = account_for_chunks(plan.episode_sample_budget, records)
    notes = []
    if reuse.unaccounted_chunks:
        notes.append(f"Consumer and engine disagree by {reuse.unaccounted_chunks} chunks: not all were counted.")
    if len(refills) < 2:
        notes.append(
            f"{len(records.refills)} refills were requested; rates need {settling_refills + 2}: the run was too short."
        )
        return Comparison(refills=0, window_s=0.0, paused_s=0.0, lines=(cache,), reuse=reuse, notes=tuple(notes))
    window = _Window(refills[0], refills[-1])
    lines = (*_rate_lines(plan, window, records, refills[:-1], planned_first_publication_s), cache)
    return Comparison(
        refills=len(refills) - 1,
        window_s=window.seconds,
        paused_s=window.paused_s,
        lines=lines,
        reuse=reuse,
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """From one request to another, and what the learner did in between."""

    first: RefillRequest
    last: RefillRequest

    @property
    def seconds(self) -> float:
        return self.last.requested_at_s - self.first.requested_at_s

    @property
    def paused_s(self) -> float:
        return self.last.learner.paused_s - self.first.learner.paused_s

    @property
    def scheduled_s(self) -> float:
        return self.seconds - self.paused_s

    @property
    def active_s(self) -> float:
        return self.last.learner.active_s - self.first.learner.active_s

    @property
    def chunks(self) -> int:
        return self.last.learner.completed_chunks - self.first.learner.completed_chunks

    def share(self, waits: Sequence[Wait], kind: str) -> float:
        """Share of the scheduled time that was spent in waits of a kind; those on an edge count in part."""
        start_s, end_s = self.first.requested_at_s, self.last.requested_at_s
        spent = (min(w.ended_s, end_s) - max(w.started_s, start_s) for w in waits if w.kind == kind)
        return sum(seconds for seconds in spent if seconds > 0) / self.scheduled_s


def _rate_lines(
    plan: ODSConfiguration,
    window: _Window,
    records: RunRecords,
    refills: Sequence[RefillRequest],
    planned_first_publication_s: float | None,
) -> list[ComparisonLine]:
    requested_at_s = {refill.generation: refill.requested_at_s for refill in refills}
    production, first_s = production_records(requested_at_s, records.events, episodes_per_fill=plan.buffer_size)
    episodes, active_s = sum(work.count for work in production), sum(_durations(production))
    waits, updates = records.waits, window.chunks / plan.batch_size
    target, publication = plan.training_chunks_per_second_target, plan.publication_episodes_per_second_target
    rows: list[tuple[str, float | None, float, str]] = [
        ("training", target, window.chunks / window.scheduled_s, "chunks/s"),
        ("training", plan.training_updates_per_second_target, updates / window.scheduled_s, "updates/s"),
        ("training, wall", None, window.chunks / window.seconds, "chunks/s"),
        ("training, active", target / plan.training_duty_fraction, window.chunks / window.active_s, "chunks/s"),
        ("production", publication, episodes / window.scheduled_s, "episodes/s"),
        ("production, wall", None, episodes / window.seconds, "episodes/s"),
        ("production, active", publication / plan.producer_duty_fraction, episodes / active_s, "episodes/s"),
        ("reuse", float(plan.episode_sample_budget), window.chunks / episodes, "chunks/episode"),
        ("training duty", plan.training_duty_fraction, window.active_s / window.scheduled_s, "share"),
        ("producer duty", plan.producer_duty_fraction, active_s / window.scheduled_s, "share"),
        ("usage_throttle", plan.expected_training_throttle_fraction, window.share(waits, "usage_throttle"), "share"),
        *((kind, 0.0, window.share(waits, kind), "share") for kind in ("quota_wait", "data_wait")),
        *_latency_rows(first_s, _durations(production), planned_first_publication_s),
    ]
    return [ComparisonLine(name=name, planned=planned, observed=seen, unit=unit) for name, planned, seen, unit in rows]


def _latency_rows(
    first_s: Sequence[float], last_s: Sequence[float], planned_s: float | None
) -> list[tuple[str, float | None, float, str]]:
    return [
        ("first publication, p50", None, nearest_rank(sorted(first_s), 50), "s"),
        ("first publication, p95", planned_s, nearest_rank(sorted(first_s), 95), "s"),
        ("last publication, p50", None, nearest_rank(sorted(last_s), 50), "s"),
        ("last publication, p95", None, nearest_rank(sorted(last_s), 95), "s"),
    ]


def _durations(intervals: Sequence[WorkInterval]) -> list[float]:
    return [work.ended_s - work.started_s for work in intervals]


def account_for_chunks(budget: int, records: RunRecords) -> Reuse:
    """Say what became of every selection: delivered, still there, or retired with its episode."""
    generation_of = {e["episode_id"]: e["generation"] for e in records.events if e["kind"] == "published"}
    evicted = [event["episode_id"] for event in records.events if event["kind"] == "evicted"]
    uses = [records.delivered_chunks.get(episode, 0) for episode in evicted]
    assigned, delivered = budget * len(generation_of), records.ledger["total_delivered_chunks"]
    remaining = sum(row["remaining"] for row in records.ledger["rows"])
    retired = budget * len(uses) - sum(uses)
    by_generation: Counter[int] = Counter()
    for episode, chunks in records.delivered_chunks.items():
        by_generation[generation_of[episode]] += chunks
    total = by_generation.total()
    return Reuse(
        published_episodes=len(generation_of),
        evicted_episodes=len(evicted),
        assigned_chunks=assigned,
        delivered_chunks=delivered,
        remaining_chunks=remaining,
        retired_chunks=retired,
        unaccounted_chunks=assigned - delivered - remaining - retired,
        chunks_per_evicted_episode=(min(uses), sum(uses) / len(uses), max(uses)) if uses else None,
        generation_shares={generation: chunks / total for generation, chunks in sorted(by_generation.items())},
    )


# ---------------------------------------------------------------- in words


def comparison_to_json(comparison: Comparison) -> str:
    """Write the comparison as a document; floats keep every digit."""
    header = {"format": COMPARISON_FORMAT, "version": COMPARISON_VERSION}
    return json.dumps({**header, **dataclasses.asdict(comparison)}, indent=2, allow_nan=False) + "\n"


def render_comparison(comparison: Comparison) -> str:
    """Write the comparison as a table with sentences below."""
    table = [("quantity", "planned", "observed", "observed/planned", "unit")]
    for line in comparison.lines:
        ratio = f"{line.observed / line.planned:.3f}" if line.planned else "-"
        table.append((line.name, short(line.planned), short(line.observed), ratio, line.unit))
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    text = [
        f"{name:<{widths[0]}}  {planned:>{widths[1]}}  {seen:>{widths[2]}}  {ratio:>{widths[3]}}  {unit}".rstrip()
        for name, planned, seen, ratio, unit in table
    ]
    text += ["", *_sentences(comparison)]
    return "\n".join(part for line in text for part in (textwrap.wrap(line, WIDTH) if len(line) > WIDTH else [line]))


def _sentences(comparison: Comparison) -> list[str]:
    reuse = comparison.reuse
    lines = [
        f"Window: {comparison.refills} whole refill cycles, {comparison.window_s:.1f} s, of them "
        f"{comparison.paused_s:.1f} s paused.",
        f"Selections: {reuse.assigned_chunks:,} granted to {reuse.published_episodes:,} episodes = "
        f"{reuse.delivered_chunks:,} delivered + {reuse.remaining_chunks:,} remaining + "
        f"{reuse.retired_chunks:,} retired unused"
        + (f" + {reuse.unaccounted_chunks:,} unaccounted for." if reuse.unaccounted_chunks else "."),
    ]
    if reuse.chunks_per_evicted_episode is not None:
        least, mean, most = reuse.chunks_per_evicted_episode
        lines.append(
            f"Deliveries per replaced episode: {mean:.1f} on average, {least} to {most}; "
            f"{reuse.evicted_episodes:,} were replaced."
        )
    shares = list(reuse.generation_shares.items())
    shown = [f"{generation}: {share:.1%}" for generation, share in shares[:4]]
    more = f", and {len(shares) - 4} more" if len(shares) > 4 else ""
    lines.append(f"Shares of the first generations: {', '.join(shown)}{more}.")
    return [*lines, *(f"Note: {note}" for note in comparison.notes)]
