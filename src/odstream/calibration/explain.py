"""A plan in words: every derived value with its formula, what limits it, and what would change it. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from odstream.calibration.documents import PlanInputs
from odstream.configuration import ODSConfiguration

WIDTH = 110
"""Columns of the sentences below a table."""

LEGEND = """\
g accepted episodes/s, t chunks/s of the learner, B batch size, P environments, K chunks per episode,
C episodes in the cache, in whole groups of P, D min_cache_episodes, M cache_memory_bytes, E bytes per episode,
p95 seconds to the first publication, s latency_safety_factor, target training_chunks_per_second_target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanLine:
    """One derived value."""

    name: str
    """The field of the plan, or the letter of an intermediate value."""
    value: str
    formula: str
    """In the letters of `LEGEND`."""
    numbers: str
    """The formula with its numbers."""
    limit: str = ""
    """What binds it, where something does."""


def short(number: float | Fraction | int | None) -> str:
    """Write a number with up to six digits; counts in full."""
    if number is None:
        return "-"
    return f"{number:,}" if isinstance(number, int) else f"{float(number):,.6g}"


@dataclass(frozen=True, slots=True)
class _Terms:
    """The exact terms that the formulas compare."""

    lead_s: Fraction
    rows_for_batch: int
    rows_for_latency: int
    supply_rate: Fraction
    bridged_rate: Fraction

    @classmethod
    def of(cls, inputs: PlanInputs, plan: ODSConfiguration) -> _Terms:
        budget, producers = plan.episode_sample_budget, plan.producer_envs
        lead_s = Fraction(inputs.runtime.first_publication_p95_seconds) * Fraction(inputs.profile.latency_safety_factor)
        demand = Fraction(inputs.training_chunks_per_second)
        return cls(
            lead_s=lead_s,
            rows_for_batch=producers + -(-plan.batch_size // budget),
            rows_for_latency=producers + math.ceil(demand * lead_s / budget),
            supply_rate=Fraction(inputs.accepted_episodes_per_second) * budget,
            bridged_rate=(plan.buffer_size - producers) * budget / lead_s,
        )


def explain_plan(inputs: PlanInputs) -> list[PlanLine]:
    """List every derived value of a plan, in the order in which they follow from one another."""
    plan = inputs.plan()
    terms = _Terms.of(inputs, plan)
    return [*_reuse_lines(inputs, plan), *_cache_lines(inputs, plan, terms), *_rate_lines(inputs, plan, terms)]


def _reuse_lines(inputs: PlanInputs, plan: ODSConfiguration) -> list[PlanLine]:
    g, t, profile = inputs.accepted_episodes_per_second, inputs.training_chunks_per_second, inputs.profile
    low, high = profile.min_chunks_per_episode, profile.max_chunks_per_episode
    balance = Fraction(t) / Fraction(g)
    limit = "K_max" if balance > high else "K_min" if balance < low else "balance"
    return [
        PlanLine(
            name="balance_chunks_per_episode",
            value=short(plan.balance_chunks_per_episode),
            formula="t / g",
            numbers=f"{short(t)} / {short(g)}",
        ),
        PlanLine(
            name="episode_sample_budget",
            value=short(plan.episode_sample_budget),
            formula="K = clamp(floor(t/g), K_min, K_max)",
            numbers=f"clamp({short(math.floor(balance))}, {short(low)}, {short(high)})",
            limit=limit,
        ),
        PlanLine(
            name="episode_sample_hard_limit",
            value=short(plan.episode_sample_hard_limit),
            formula="K_hard",
            numbers=short(profile.hard_max_chunks_per_episode),
        ),
    ]


def _cache_lines(inputs: PlanInputs, plan: ODSConfiguration, terms: _Terms) -> list[PlanLine]:
    runtime, profile = inputs.runtime, inputs.profile
    producers, budget, size = plan.producer_envs, plan.episode_sample_budget, plan.buffer_size
    desired = (2 * producers, runtime.min_cache_episodes, terms.rows_for_batch, terms.rows_for_latency)
    limit = ("2P", "D", "batch", "latency")[desired.index(max(desired))]
    formula, numbers = "C = max(2P, D, P+ceil(B/K), P+ceil(t*L/K))", f"max({', '.join(map(short, desired))})"
    memory, episode = runtime.cache_memory_bytes, runtime.bytes_per_episode
    if memory is not None and episode is not None and size < -(-max(desired) // producers) * producers:
        formula, limit = "C = P * floor(M/E/P)", "memory"
        numbers = f"{short(producers)} * floor({short(memory // episode)} / {short(producers)})"
    storage = [] if plan.cache_bytes is None else [_storage_line(plan, episode)]
    return [
        PlanLine(
            name="latency to bridge, in seconds",
            value=short(terms.lead_s),
            formula="L = p95 * s",
            numbers=f"{short(runtime.first_publication_p95_seconds)} * {short(profile.latency_safety_factor)}",
        ),
        PlanLine(
            name="buffer_size",
            value=short(size),
            formula=formula,
            numbers=numbers,
            limit=limit,
        ),
        *storage,
        PlanLine(
            name="initial_chunk_budget",
            value=short(plan.initial_chunk_budget),
            formula="C * K",
            numbers=f"{short(size)} * {short(budget)}",
        ),
        PlanLine(
            name="initial_max_updates",
            value=f"{short(plan.initial_max_updates)} + {short(plan.initial_remainder_chunks)} chunks",
            formula="floor(C*K / B)",
            numbers=f"{short(plan.initial_chunk_budget)} / {short(plan.batch_size)}",
        ),
    ]


def _storage_line(plan: ODSConfiguration, bytes_per_episode: int | None) -> PlanLine:
    numbers = f"{short(plan.buffer_size)} * {short(bytes_per_episode)}"
    return PlanLine(name="cache_bytes", value=short(plan.cache_bytes), formula="C * E", numbers=numbers)


def _rate_lines(inputs: PlanInputs, plan: ODSConfiguration, terms: _Terms) -> list[PlanLine]:
    g, t = inputs.accepted_episodes_per_second, inputs.training_chunks_per_second
    cap, target = plan.active_chunks_per_second_cap, plan.training_chunks_per_second_target
    cover = Fraction(cap) * terms.lead_s
    return [
        PlanLine(
            name="active_chunks_per_second_cap",
            value=short(cap),
            formula="min(t, (C-P)*K / L)",
            numbers=f"min({short(t)}, {short(terms.bridged_rate)})",
            limit="learner" if terms.bridged_rate >= t else "cache",
        ),
        PlanLine(
            name="training_chunks_per_second_target",
            value=short(target),
            formula="min(cap, g*K)",
            numbers=f"min({short(cap)}, {short(terms.supply_rate)})",
            limit=_target_limit(inputs, plan, terms),
        ),
        PlanLine(
            name="training_updates_per_second_target",
            value=short(plan.training_updates_per_second_target),
            formula="target / B",
            numbers=f"{short(target)} / {short(plan.batch_size)}",
        ),
        PlanLine(
            name="publication_episodes_per_second_target",
            value=short(plan.publication_episodes_per_second_target),
            formula="target / K",
            numbers=f"{short(target)} / {short(plan.episode_sample_budget)}",
        ),
        PlanLine(
            name="refill_remaining_chunks",
            value=short(plan.refill_remaining_chunks),
            formula="max(B, ceil(cap * L))",
            numbers=f"max({short(plan.batch_size)}, {short(math.ceil(cover))})",
            limit="batch" if cover <= plan.batch_size else "latency",
        ),
        _duty_line("training", plan.training_duty_fraction, "target / t", f"{short(target)} / {short(t)}"),
        _duty_line(
            "producer",
            plan.producer_duty_fraction,
            "target / K / g",
            f"{short(plan.publication_episodes_per_second_target)} / {short(g)}",
        ),
    ]


def _duty_line(side: str, duty: float, formula: str, numbers: str) -> PlanLine:
    return PlanLine(name=f"{side}_duty_fraction", value=f"{duty:.1%}", formula=formula, numbers=numbers)


def _target_limit(inputs: PlanInputs, plan: ODSConfiguration, terms: _Terms) -> str:
    cap = Fraction(plan.active_chunks_per_second_cap)
    if terms.supply_rate < cap:
        return "supply"
    return "learner" if cap >= Fraction(inputs.training_chunks_per_second) else "cache"


def what_would_change(inputs: PlanInputs) -> list[str]:
    """Say which input would have to change for a higher training rate, and what lies unused meanwhile."""
    plan = inputs.plan()
    terms = _Terms.of(inputs, plan)
    limit = _target_limit(inputs, plan, terms)
    cap, target = plan.active_chunks_per_second_cap, plan.training_chunks_per_second_target
    profile, runtime = inputs.profile, inputs.runtime
    advice = []
    if limit == "supply":
        needed = Fraction(cap) / plan.episode_sample_budget
        advice.append(
            f"More supply: at {short(needed)} accepted episodes/s (now "
            f"{short(inputs.accepted_episodes_per_second)}) training would reach the cap of {short(cap)} chunks/s."
        )
        if plan.episode_sample_budget == profile.max_chunks_per_episode < plan.balance_chunks_per_episode:
            advice.append(
                f"More reuse: the sides balance at {short(math.floor(plan.balance_chunks_per_episode))} chunks per "
                f"episode; the profile allows {short(profile.max_chunks_per_episode)}, and only a learning test can "
                "raise that."
            )
    elif limit == "learner":
        advice.append(
            f"A faster learner: supply and reuse would carry {short(terms.supply_rate)} chunks/s, the learner does "
            f"{short(target)}."
        )
    elif runtime.bytes_per_episode is not None:
        rows = -(-max(plan.buffer_size, terms.rows_for_latency) // plan.producer_envs) * plan.producer_envs
        advice.append(
            f"More memory: {short(rows * runtime.bytes_per_episode)} bytes ({rows} episodes) would lift the cap from "
            f"{short(cap)} to {short(inputs.training_chunks_per_second)} chunks/s."
        )
        advice.append("An earlier first publication: the cap is inversely proportional to its latency.")
    if plan.producer_duty_fraction < 1:
        advice.append(
            f"Less production would do: the producer is needed for {plan.producer_duty_fraction:.1%} of the time."
        )
    advice.append("Other environments, batch sizes, models or placements need a new measurement: rates do not scale.")
    return advice


def render_plan(inputs: PlanInputs, *, warnings: Sequence[str] = ()) -> str:
    """Render a plan for a terminal: a table of its values, then reasons, warnings and what would change it.

    Args:
        inputs: What the plan follows from.
        warnings: What spoke against the measurement.
    """
    plan, lines = inputs.plan(), explain_plan(inputs)
    header = ("value", "result", "formula = numbers", "limited by")
    rows = [header, *((line.name, line.value, f"{line.formula} = {line.numbers}", line.limit) for line in lines)]
    blocks = [table(rows), LEGEND, _listed("Why", plan.reasons)]
    if warnings:
        blocks.append(_listed("Warnings of the measurement", warnings))
    blocks += [_listed("What would change it", what_would_change(inputs)), f"At the end: {plan.end_of_supply_rule}"]
    return "\n\n".join(blocks) + "\n"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns of ``rows``, the first of which is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    aligned = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([aligned[0], "-" * max(map(len, aligned)), *aligned[1:]])


def _listed(title: str, sentences: Sequence[str]) -> str:
    items = [textwrap.fill(f"- {sentence}", width=WIDTH, subsequent_indent="  ") for sentence in sentences]
    return "\n".join([f"{title}:", *items])
