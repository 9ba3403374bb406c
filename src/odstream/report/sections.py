"""The sections about what was measured over time: headline, rates, states, cache, steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odstream.perf.metrics import METRICS
from odstream.report.figures import LEARNER_BANDS, PRODUCER_BANDS, Chart
from odstream.report.html import (
    Cell,
    Section,
    code,
    counted,
    figure_grid,
    missing,
    number,
    paragraph,
    share,
    table,
    tiles,
)
from odstream.report.run import Run
from odstream.report.series import Timeline
from odstream.report.words import duration, escaped, moment, percent, shown

__all__ = ["SWITCH", "cache", "count_table", "headline", "metric_table", "rates", "states", "steps"]

SWITCH = "debug.enable_perf_metrics=true"
_STATES = {
    "learner/wait": "No eligible data, or no selections left.",
    "learner/pace": "Held back by the plan, deliberately.",
    "learner/fetch": "Getting a batch that exists: sample, copy, collate, host to device.",
    "learner/compute": "Forward, backward, optimizer.",
    "learner/eval": "Evaluation.",
    "learner/checkpoint": "Writing checkpoints.",
    "learner/other": "Everything else, the metrics included.",
    "producer/busy": "Simulating or generating, failed tries included.",
    "producer/publish": "Handing episodes over to the cache.",
    "producer/blocked": "Held back: no room, or no refill was asked for.",
    "producer/starved": "Nothing to work on.",
    "producer/down": "Not running.",
}
_ABOUT = {metric.name: (metric.unit, metric.help) for metric in METRICS} | {
    "train/loss": ("", "As the training noted it, at the last step before the record."),
    **{f"perf/{name}": ("fraction", text) for name, text in _STATES.items()},
}
TABLED = frozenset(
    f"perf/{name}"
    for name in (
        *("thru", "infer_capacity", "train_capacity", "window"),
        *("age_p50", "age_p95", "pool", "remaining", "learner_memory", "producer_memory", "device_memory"),
        *("step_time", "step_time_skew", "data_time", "compute_time", "dispatch_wait", "infer_batch_time"),
    )
)
"""Metrics that the tables of rates, cache and steps have."""
_SIZED = ("s", "bytes", "fraction")
VERDICTS = {
    "production": ("Production holds the run back.", "red"),
    "training": ("Training holds the run back.", "blue"),
    "paced by plan": ("The plan paces the run; no side holds it back.", "green"),
    "buffer": ("The cache between them is too small: both sides wait in turn.", "orange"),
    "overhead": ("Work beside training holds the run back.", "purple"),
    "balanced": ("Neither side holds the run back.", "green"),
    "insufficient": ("Too little was measured for a verdict.", "grey"),
}


def headline(run: Run, timeline: Timeline) -> str:
    """Return what the run was and how it went, and the verdict."""
    parts = [f"<p class=lead>{_when(run, timeline)}</p>"]
    if run.torn:
        parts.append(missing("The metrics end in the middle of a record.", f"metrics.jsonl: {escaped(run.torn)}."))
    parts += [missing("A file is damaged; what it says is left out.", f"{escaped(text)}.") for text in run.damaged]
    parts.append(_verdict(run, timeline))
    parts.append(tiles(_facts(run, timeline)))
    return "".join(parts)


def _when(run: Run, timeline: Timeline) -> str:
    text = f"Started {moment(run.started_unix_ns)}"
    if len(timeline):
        text += (
            f"; {counted(int(timeline.steps[-1]), 'optimizer step')} in {duration(float(timeline.seconds[-1]))}, "
            f"{counted(len(timeline), 'record')}"
        )
    return escaped(text + ".")


def _verdict(run: Run, timeline: Timeline) -> str:
    if not len(timeline):
        return _no_verdict(run)
    last = timeline.records[-1]
    head, _, advice = last.verdict.partition("; ")
    kind = _kind(head)
    sentence, colour = VERDICTS.get(kind, (head or "No verdict was recorded.", "grey"))
    return (
        f'<div class="verdict" style="--mark: var(--{colour})"><p class="kicker">Verdict at the end: '
        f'<strong data-verdict="{escaped(last.verdict)}">{escaped(head or "none")}</strong></p>'
        f'<p class="big">{escaped(sentence)}</p>{paragraph(advice) if advice else ""}</div>{_shares(timeline)}'
    )


def _no_verdict(run: Run) -> str:
    """Say why there is nothing over time."""
    if run.metrics is not None:
        return missing("Metrics were on, but no record was written.", "The run ended before its first window did.")
    nothing, debug = "There is no verdict and nothing over time.", run.settings.get("debug")
    if isinstance(debug, Mapping) and debug.get("enable_perf_metrics"):
        sinks = ", ".join(map(str, debug.get("sinks", ()))) or "none"
        return missing(
            f"Metrics went to other sinks ({sinks}), this report is made from jsonl.",
            f"{nothing} Name it as well: {code('debug.sinks=[jsonl, ...]')}.",
        )
    return missing("Metrics were off.", f"{nothing} Run again with {code(SWITCH)}.")


def _kind(verdict: str) -> str:
    """Return the verdict without its cause."""
    return verdict.partition(" (")[0].strip()


def _shares(timeline: Timeline) -> str:
    """Return the verdicts over the run as a strip, and their shares of time."""
    stretches, shares = timeline.verdicts(), timeline.verdict_shares()
    span_s = max(stretches[-1][2] - stretches[0][1], 1e-9)
    pieces = "".join(
        f'<span style="flex: {(end_s - start_s) / span_s:.5f} 0 0; background: var(--{_colour(verdict)})" '
        f'title="{escaped(verdict or "none")}: {escaped(duration(end_s - start_s))}"></span>'
        for verdict, start_s, end_s in stretches
    )
    words = ", ".join(f"{verdict or 'none'} {percent(part)}" for verdict, part in shares.items())
    rows: list[Sequence[str | Cell]] = [
        (
            Cell(
                f'<i class="swatch" style="background: var(--{_colour(verdict)})"></i>{escaped(verdict or "none")}',
            ),
            share(part, verdict=verdict),
            Cell(escaped(duration(part * span_s)), "number"),
        )
        for verdict, part in shares.items()
    ]
    return (
        f'<div class="strip" role="img" aria-label="Verdicts from start to end: {escaped(words)}">'
        f"{pieces}</div>" + table("Verdicts over the run", ("verdict", "#share of time", "#time"), rows)
    )


def _colour(verdict: str) -> str:
    return VERDICTS.get(_kind(verdict), ("", "grey"))[1]


def _facts(run: Run, timeline: Timeline) -> list[tuple[str, Cell, str]]:
    """Return the numbers to know first: the last ones, as recorded."""
    facts = _outcome(run)
    if not len(timeline):
        return facts
    known = timeline.records[-1].values
    wanted = [
        ("perf/thru", "thru", "samples/s that training consumed"),
        ("perf/infer_capacity", "I", "samples/s that production could make"),
        ("perf/train_capacity", "T", "samples/s that training could consume"),
        ("perf/completed", "completed", "selections used by a finished step"),
        ("perf/accepted", "accepted", "episodes"),
    ]
    for name, label, note in wanted:
        if name in known:
            facts.append((label, number(known[name], metric=name, stat="last"), f"{note}; last record"))
    for name in (name for name in known if name.startswith("train/")):
        facts.append((name.removeprefix("train/"), number(known[name], metric=name, stat="last"), "last record"))
    return facts


def _outcome(run: Run) -> list[tuple[str, Cell, str]]:
    """Return what the trainer said of its result, where it did."""
    if run.outcome is None:
        return []
    facts = []
    final, target, met = run.outcome.get("final"), run.outcome.get("target"), run.outcome.get("target_met")
    final = final if isinstance(final, dict) else {}
    rate = final.get("success")
    if isinstance(rate, int | float):
        note = f"of {final.get('scenes', 'the')} fresh scenes at the end"
        note += f"; target {percent(target)}" if isinstance(target, int | float) else ""
        facts.append(("solved", share(float(rate)), note))
    if isinstance(met, bool):
        facts.append(("target", Cell("met" if met else "missed", "good" if met else "bad"), "of the trainer"))
    return facts


# ---------------------------------------------------------------- over time


def rates(timeline: Timeline, charts: Sequence[Chart | None]) -> Section:
    """Return the section on rates."""
    names = ("perf/thru", "perf/infer_capacity", "perf/train_capacity", "perf/window", "train/loss")
    return _over_time("rates", "Rates over time", timeline, charts, names)


def states(timeline: Timeline, charts: Sequence[Chart | None]) -> Section:
    """Return the section on where the time went."""
    names = [f"perf/learner/{state}" for state, _ in LEARNER_BANDS]
    names += [f"perf/producer/{state}" for state, _ in PRODUCER_BANDS]
    return _over_time("states", "Where the time went", timeline, charts, names)


def cache(timeline: Timeline, charts: Sequence[Chart | None]) -> Section:
    """Return the section on the cache and on memory."""
    names = ["perf/age_p50", "perf/age_p95", "perf/pool", "perf/remaining", *_MEMORY, "perf/device_memory"]
    section = _over_time("cache", "Cache and memory", timeline, charts, names)
    lacking = [name for name in _MEMORY if not timeline.series(name).is_known]
    if not len(timeline) or not lacking:
        return section
    what = "Memory was not recorded." if len(lacking) == len(_MEMORY) else "Some memory was not recorded."
    names_lacking = " and ".join(code(name) for name in lacking)
    how = f"{names_lacking} would be shown here; {code('odstream train')} records them with {code(SWITCH)}."
    return Section(section.anchor, section.title, section.body + missing(what, how))


_MEMORY = ("perf/learner_memory", "perf/producer_memory")


def steps(timeline: Timeline, charts: Sequence[Chart | None]) -> Section:
    """Return the section on the time of a step and of a call."""
    names = (
        "perf/step_time",
        "perf/step_time_skew",
        "perf/data_time",
        "perf/compute_time",
        "perf/dispatch_wait",
        "perf/infer_batch_time",
    )
    return _over_time("steps", "Time of a step", timeline, charts, names)


def _over_time(
    name: str, title: str, timeline: Timeline, charts: Sequence[Chart | None], names: Sequence[str]
) -> Section:
    if not len(timeline):
        return Section(name, title, missing("Not recorded.", "The beginning of this page says why."))
    drawn = [chart.render() for chart in charts if chart is not None]
    known = [metric for metric in names if timeline.series(metric).is_known]
    if not known:
        return Section(name, title, missing("Not recorded.", "The records hold no metric of this section."))
    return Section(name, title, figure_grid(drawn) + metric_table(f"{title}: the numbers", timeline, known))


def metric_table(caption: str, timeline: Timeline, names: Sequence[str]) -> str:
    """Return last, mean, least and most of metrics, as recorded. Numbers whose size varies bring their unit along."""
    has_units = any(_ABOUT.get(name, ("", ""))[0] not in ("", *_SIZED) for name in names)
    rows: list[Sequence[str | Cell]] = []
    for name in names:
        unit, text = _ABOUT.get(name, ("", ""))
        found = timeline.summary(name)
        along, apart = (unit, "") if unit in _SIZED else ("", unit)
        last = number(found.last, along, metric=name, stat="last")
        if found.last_is_held:
            last = Cell(f"{last.content} <abbr title='held from an earlier window'>held</abbr>", last.kind, last.data)
        others = [
            number(value, along, metric=name, stat=stat)
            for stat, value in (("mean", found.mean), ("least", found.least), ("most", found.most))
        ]
        rows.append((Cell(code(name)), last, *others, *([apart] if has_units else []), _prose(text)))
    units = ("unit",) if has_units else ()
    return table(caption, ("metric", "#last", "#mean over time", "#least", "#most", *units, "what it says"), rows)


def _prose(text: str) -> Cell:
    return Cell(escaped(text), "prose")


def count_table(caption: str, timeline: Timeline, names: Sequence[str]) -> str:
    """Return counters at the last record."""
    rows: list[Sequence[str | Cell]] = []
    for name in names:
        unit, text = _ABOUT.get(name, ("", ""))
        rows.append(
            (Cell(code(name)), number(timeline.summary(name).last, metric=name, stat="last"), unit, _prose(text))
        )
    return table(caption, ("metric", "#at the end", "unit", "what it says"), rows)


def further(timeline: Timeline, used: Sequence[str]) -> str:
    """Return the metrics that no other table has; empty if there is none."""
    names = [name for name in timeline.names if name not in used]
    return metric_table("Further metrics that were recorded", timeline, names) if names else ""


def overview(timeline: Timeline) -> str:
    """Return one sentence about the rates; empty if they are not known."""
    thru, infer, train = (timeline.summary(f"perf/{name}") for name in ("thru", "infer_capacity", "train_capacity"))
    has_budget = timeline.series("perf/remaining").is_known
    bound, name = (min(infer.mean, train.mean), "min(I, T)") if has_budget else (train.mean, "T")
    if not bound > 0 or not thru.mean > 0:
        return ""
    sentence = f"Over the run training consumed {shown(thru.mean, 'samples/s')}, {percent(thru.mean / bound)} of "
    sentence += f"{name} = {shown(bound, 'samples/s')}."
    if not has_budget:
        sentence += " Episodes have no budget and are used again as often as training likes: I, which counts each one "
        sentence += "as often as the settings say, is no bound."
    return paragraph(sentence)
