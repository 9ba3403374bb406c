"""The sections that account for the run: reuse, planned against observed, balances, the verification table, setting."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence

import numpy as np

from odstream.calibration import Comparison, ComparisonLine, PlanInputs, explain_plan, what_would_change
from odstream.calibration.explain import LEGEND
from odstream.perf.exposure import Trajectory
from odstream.report.balances import all_equations, complaints
from odstream.report.figures import Chart
from odstream.report.html import (
    Cell,
    Section,
    block,
    code,
    figure_grid,
    listed,
    missing,
    number,
    paragraph,
    share,
    table,
)
from odstream.report.run import Run
from odstream.report.sections import SWITCH, count_table
from odstream.report.series import Timeline
from odstream.report.words import compact, escaped, exact, percent

__all__ = ["balances", "environment", "planned", "replaced", "retired", "reuse"]

COUNTS = (
    "accepted",
    "failed",
    "lost",
    "published",
    "delivered",
    "completed",
    "failed_updates",
    "in_flight",
    "prefetched",
    "remaining",
    "retired",
)
_CLOSE = 0.10
"""Relative distance from the plan that still counts as planned."""
_GENERATIONS_SHOWN = 12


def replaced(run: Run) -> list[Trajectory]:
    """Return the trajectories that were published and replaced: their history is complete."""
    if run.trajectories is None:
        return []
    return [one for one in run.trajectories.episodes if one.evicted_s is not None]


# ---------------------------------------------------------------- reuse


def reuse(run: Run, charts: Sequence[Chart | None]) -> Section:
    """Return the section on what became of every trajectory."""
    title = "Reuse of each trajectory"
    if run.trajectories is None:
        how = f"{code('trajectories.json')} is not there; {code('odstream train')} writes it with {code(SWITCH)}."
        return Section("reuse", title, missing("Trajectories were not recorded.", how) + _shares_of_comparison(run))
    found, gone = run.trajectories, replaced(run)
    budget = found.assigned_chunks
    sentences = [
        f"{compact(len(found.episodes))} trajectories, of them {compact(len(gone))} replaced and "
        f"{compact(len(found.episodes) - len(gone))} still cached at the end."
    ]
    if not gone:
        sentences.append("None was replaced yet: the charts show those that are still cached.")
    if budget is not None and gone:
        sentences.append(_unused(run, budget * len(gone), sum(one.delivered for one in gone)))
    never = sum(one.delivered == 0 for one in gone)
    if never:
        sentences.append(f"{compact(never)} replaced trajectories were never delivered.")
    drawn = [chart.render() for chart in charts if chart is not None]
    body = "".join(map(paragraph, sentences)) + figure_grid(drawn) + _use_table(gone or list(found.episodes), budget)
    return Section("reuse", title, body + _generation_table(found.episodes, budget))


def retired(run: Run) -> int | None:
    """Return the selections that were left on episodes when they were replaced, as the cache counts; None: unknown."""
    if run.comparison is not None:
        return run.comparison.reuse.retired_chunks
    known = run.records[-1].fresh().get("perf/retired") if run.records else None
    return None if known is None else round(known)


def _unused(run: Run, granted: int, used: int) -> str:
    """Say how much of what was granted was never used, by the cache's count where there is one."""
    by_loop, by_cache = granted - used, retired(run)
    unused = by_loop if by_cache is None else by_cache
    sentence = (
        f"Unused allowance retired with replaced trajectories: {compact(unused)} of {compact(granted)} selections "
        f"({percent(unused / granted)})."
    )
    if unused != by_loop:
        sentence += (
            f" That is the cache's count. The training loop did not receive {compact(by_loop)}: "
            f"{compact(by_loop - unused)} were drawn and used otherwise, as for a normalisation, or waited in a loader."
        )
    return sentence


def _use_table(episodes: Sequence[Trajectory], budget: int | None) -> str:
    rows: list[Sequence[str | Cell]] = []
    columns: list[tuple[str, list[int] | list[float]]] = [
        ("delivered selections", [one.delivered for one in episodes]),
        ("completed selections", [one.completed for one in episodes]),
        ("unique anchors, frames", [one.anchors for one in episodes]),
        ("supervised frame appearances", [one.supervised_frames for one in episodes]),
        ("length, frames", [one.length for one in episodes if one.length is not None]),
        ("residence in the cache, s", _residences(episodes)),
    ]
    for name, values in columns:
        if values:
            points = np.quantile(np.array(values, np.float64), (0.0, 0.05, 0.5, 0.95, 1.0)).tolist()
            rows.append(
                (name, *(number(point) for point in points), number(float(np.mean(values))), number(sum(values)))
            )
    if budget is not None:
        rows.append(("K, assigned", *[number(budget)] * 6, number(budget * len(episodes))))
    which = "replaced" if episodes and episodes[0].evicted_s is not None else "cached"
    header = ("per trajectory", "#least", "#5 %", "#half", "#95 %", "#most", "#mean", "#sum")
    return table(f"Use of {which} trajectories", header, rows)


def _residences(episodes: Sequence[Trajectory]) -> list[float]:
    return [
        one.evicted_s - one.published_s for one in episodes if one.evicted_s is not None and one.published_s is not None
    ]


def _generation_table(episodes: Sequence[Trajectory], budget: int | None) -> str:
    groups: dict[int | None, list[Trajectory]] = {}
    for one in episodes:
        groups.setdefault(one.generation, []).append(one)
    total = sum(one.delivered for one in episodes) or 1
    order = sorted(groups, key=lambda generation: -1 if generation is None else generation)
    half = _GENERATIONS_SHOWN // 2
    some = order if len(order) <= _GENERATIONS_SHOWN else [*order[:half], *order[-half:]]
    rows: list[Sequence[str | Cell]] = []
    for generation in some:
        members = groups[generation]
        uses, gone = sum(one.delivered for one in members), [one for one in members if one.evicted_s is not None]
        unused = number(sum(budget - one.delivered for one in gone)) if budget is not None else Cell("–", "number")
        name = "not known" if generation is None else compact(generation)
        rows.append((name, number(len(members)), number(len(gone)), number(uses), share(uses / total), unused))
    left_out = len(order) - len(some)
    caption = "Deliveries by generation" + (f", {left_out} in the middle left out" if left_out else "")
    header = ("generation", "#trajectories", "#replaced", "#delivered", "#share", "#not delivered, retired")
    return table(caption, header, rows)


def _shares_of_comparison(run: Run) -> str:
    if run.comparison is None:
        return ""
    found = run.comparison.reuse
    text = (
        f"The comparison with the plan still says: {compact(found.delivered_chunks)} selections delivered from "
        f"{compact(found.published_episodes)} trajectories, {compact(found.retired_chunks)} retired unused."
    )
    return paragraph(text)


# ---------------------------------------------------------------- planned and observed


def planned(run: Run) -> Section:
    """Return the section that puts the run beside its plan."""
    title = "Planned against observed"
    if run.plan is None and run.comparison is None:
        how = f"Make a plan with {code('odstream plan')} and run {code('odstream train --plan plan.json')}."
        return Section("plan", title, missing("The run followed no plan.", how))
    parts = []
    if run.comparison is None:
        how = f"{code('comparison.json')} is written when the training has ended."
        parts.append(missing("Observed values are not there.", how))
    else:
        parts.append(_comparison(run.comparison))
    if run.plan is not None:
        parts.append(_inputs(run.plan))
    return Section("plan", title, "".join(parts))


def _comparison(found: Comparison) -> str:
    rows: list[Sequence[str | Cell]] = []
    for line in found.lines:
        ratio = line.observed / line.planned if line.planned else None
        name = f"{line.name}, {line.unit}"
        rows.append(
            (
                name,
                _judged(line),
                number(line.planned, line.unit, line=name, stat="planned"),
                number(line.observed, line.unit, line=name, stat="observed"),
                number(ratio, "", line=name, stat="ratio"),
            )
        )
    window = (
        f"Window: {compact(found.refills)} whole refill cycles, {compact(found.window_s)} s, of them "
        f"{compact(found.paused_s)} s paused. Within 10 % of the plan counts as planned, a share within 10 points."
    )
    header = ("quantity", "within 10 %", "#planned", "#observed", "#observed / planned")
    return paragraph(window) + table("The plan and the run", header, rows) + listed(found.notes)


def _judged(line: ComparisonLine) -> Cell:
    if line.planned is None:
        return Cell("no plan for it")
    close = abs(line.observed - line.planned) <= _CLOSE * (1.0 if line.unit == "share" else abs(line.planned))
    return Cell("within" if close else "outside", "good" if close else "bad")


def _inputs(inputs: PlanInputs) -> str:
    rows: list[Sequence[str | Cell]] = [
        ("g, accepted episodes per second of production", _input(inputs.accepted_episodes_per_second)),
        ("t, chunks per second of training", _input(inputs.training_chunks_per_second)),
    ]
    for part in (inputs.profile, inputs.runtime):
        for name, value in dataclasses.asdict(part).items():
            rows.append((name, _input(value)))
    return table("What the plan was made from", ("input", "value"), rows)


def _input(value: object) -> Cell:
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int | float):
        return Cell(escaped(compact(value)), "", {"value": exact(value)})
    return Cell("not given" if value is None else escaped(value))


# ---------------------------------------------------------------- balances


def balances(run: Run, timeline: Timeline) -> Section:
    """Return the section on the counts that must balance."""
    title, budget = "Counts that must balance", run.selections_per_episode
    last = timeline.records[-1] if len(timeline) else None
    equations = all_equations(last, budget, run.trajectories, run.comparison)
    if not equations:
        return Section("balances", title, missing("No counts were recorded.", f"Run with {code(SWITCH)}."))
    rows: list[Sequence[str | Cell]] = []
    for one in equations:
        numbers = f"{compact(one.whole[1])} = {' + '.join(compact(value) for _, value in one.parts)}"
        verdict = (
            Cell("balances", "good", {"difference": "0"})
            if one.difference == 0
            else Cell(
                f"does not balance by {escaped(compact(one.difference))}", "bad", {"difference": str(one.difference)}
            )
        )
        rows.append((one.words, verdict, Cell(escaped(numbers), "number"), one.source))
    wrong = [f"Out of balance: {text}." for text in ([] if last is None else complaints(last, budget))]
    if any(one.difference for one in equations):
        wrong.append("A difference is the left side less the right side.")
    body = table("Equations", ("equation", "verdict", "#with numbers", "from"), rows, "equations") + listed(wrong)
    names = [f"perf/{name}" for name in COUNTS if timeline.series(f"perf/{name}").is_known]
    if names:
        body += count_table("Counts since the start", timeline, names)
    return Section("balances", title, body)


# ---------------------------------------------------------------- where and how


def environment(run: Run) -> Section:
    """Return the section on the environment, the settings, the plan and the command."""
    rows: list[Sequence[str | Cell]] = []
    for name, value in run.environment.items():
        if name == "packages" and isinstance(value, dict):
            rows += [(f"package {package}", str(version)) for package, version in sorted(value.items())]
        elif name != "command":
            rows.append((name, str(value)))
    body = table("Where it ran", ("what", "value"), rows)
    command = run.environment.get("command")
    if isinstance(command, list):
        body += "<h3>Command</h3>" + block("Command", shlex.join(map(str, command)))
    body += "<h3>Settings</h3>" + block("Settings", json.dumps(run.settings, indent=2, ensure_ascii=False))
    if run.task_text is not None:
        body += "<h3>Task file</h3>" + block("Task file", run.task_text)
    if run.plan is not None:
        body += "<h3>Plan</h3>" + _plan(run.plan)
    return Section("environment", "Where and how it ran", body)


def _plan(inputs: PlanInputs) -> str:
    rows: list[Sequence[str | Cell]] = [
        (
            line.name,
            Cell(escaped(line.value), "number"),
            Cell(escaped(f"{line.formula} = {line.numbers}"), "prose"),
            line.limit,
        )
        for line in explain_plan(inputs)
    ]
    plan = inputs.plan()
    return (
        table("Every derived value", ("value", "#result", "formula = numbers", "limited by"), rows)
        + paragraph(LEGEND.replace("\n", " "), "note")
        + listed([*plan.reasons, *what_would_change(inputs), f"At the end: {plan.end_of_supply_rule}"])
    )
