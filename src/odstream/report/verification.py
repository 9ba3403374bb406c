"""The verification table: what a run should record, what was recorded here, and where on the page it is."""

from __future__ import annotations

from collections.abc import Sequence

from odstream.report.accounts import replaced, retired
from odstream.report.html import Cell, Section, anchor, table
from odstream.report.run import Run
from odstream.report.series import Timeline
from odstream.report.words import compact, escaped, percent, shown

__all__ = ["verification"]

_Item = tuple[str, str, str]
"""What it is, its numbers (empty: not recorded), and the section that has it."""


def verification(run: Run, timeline: Timeline) -> Section:
    """Return the section with one row per check."""
    checks = (
        ("Supply and consumption", _supply(run, timeline)),
        ("Protected reuse", _reuse(run)),
        ("Frame exposure", _exposure(run)),
        ("Waiting and resources", _waiting(run, timeline)),
    )
    rows: list[Sequence[str | Cell]] = []
    for name, items in checks:
        recorded = sum(bool(numbers) for _, numbers, _ in items)
        kind = "good" if recorded == len(items) else "bad"
        head = Cell(f'{escaped(name)}<br><span class="{kind}">{recorded} of {len(items)} recorded</span>')
        rows.append((head, Cell(_listed(items), "prose")))
    body = table("Check by check", ("check", "what was recorded, and where"), rows, "checks")
    return Section("verification", "Verification of the run", body)


def _listed(items: Sequence[_Item]) -> str:
    lines = [
        f"<li>{escaped(name)}: {escaped(numbers) if numbers else '<em>not recorded</em>'} ({anchor(where, where)})</li>"
        for name, numbers, where in items
    ]
    return f"<ul>{''.join(lines)}</ul>"


def _supply(run: Run, timeline: Timeline) -> list[_Item]:
    accepted = _per_second(timeline, "perf/accepted")
    return [
        ("accepted episodes per wall second", shown(accepted, "episodes/s") if accepted else "", "balances"),
        ("completed selections per wall second", _mean(timeline, "perf/thru", "samples/s"), "rates"),
        ("capacity of production while it works, I", _mean(timeline, "perf/infer_capacity", "samples/s"), "rates"),
        ("capacity of training while it works, T", _mean(timeline, "perf/train_capacity", "samples/s"), "rates"),
        ("first publication after a request", _lines(run, "first publication"), "plan"),
        ("full publication after a request", _lines(run, "last publication"), "plan"),
        ("active rates apart from wall rates", _lines(run, "training, active", "training, wall"), "plan"),
    ]


def _reuse(run: Run) -> list[_Item]:
    found = run.trajectories
    if found is None:
        names = (
            "delivered against K, each trajectory",
            "completed selections",
            "generation shares",
            "unused allowance",
        )
        shares = "" if run.comparison is None else _few_shares(run.comparison.reuse.generation_shares)
        count = retired(run)
        known = {"generation shares": shares, "unused allowance": "" if count is None else compact(count)}
        return [(name, known.get(name, ""), "plan" if known.get(name) else "reuse") for name in names]
    most = max((one.delivered for one in found.episodes), default=0)
    budget = found.assigned_chunks
    uses: dict[int, int] = {}
    for one in found.episodes:
        if one.generation is not None:
            uses[one.generation] = uses.get(one.generation, 0) + one.delivered
    total = sum(uses.values()) or 1
    unused = "no budget, nothing to retire" if budget is None else compact(_unused(run, budget))
    limit = "no limit" if budget is None else f"K = {compact(budget)}"
    return [
        ("delivered against K, each trajectory", f"at most {compact(most)}, {limit}", "reuse"),
        ("completed selections", compact(int(found.totals["completed"])), "reuse"),
        ("generation shares", _few_shares({key: value / total for key, value in sorted(uses.items())}), "reuse"),
        ("unused allowance retired on replacement", unused, "reuse"),
    ]


def _unused(run: Run, budget: int) -> int:
    """Return the selections that retired unused: as the cache counts, else as the training loop does."""
    known = retired(run)
    return sum(budget - one.delivered for one in replaced(run)) if known is None else known


def _exposure(run: Run) -> list[_Item]:
    names = ("unique anchors", "supervised frame appearances by loss_mask")
    if run.trajectories is None:
        return [(name, "", "reuse") for name in names]
    episodes = run.trajectories.episodes
    frames = sum(one.length or 0 for one in episodes)
    anchors, supervised = sum(one.anchors for one in episodes), sum(one.supervised_frames for one in episodes)
    of_all = f" of {compact(frames)} frames ({percent(anchors / frames)})" if frames else ""
    return [(names[0], compact(anchors) + of_all, "reuse"), (names[1], compact(supervised), "reuse")]


def _waiting(run: Run, timeline: Timeline) -> list[_Item]:
    storage = "" if run.comparison is None else _lines(run, "cache")
    return [
        ("data and quota waits of the learner", _mean(timeline, "perf/learner/wait", "fraction"), "states"),
        ("deliberate pacing", _mean(timeline, "perf/learner/pace", "fraction"), "states"),
        ("production held back", _mean(timeline, "perf/producer/blocked", "fraction"), "states"),
        ("cache storage, payload alone", storage, "plan"),
        ("memory of the learner", _mean(timeline, "perf/learner_memory", "bytes"), "cache"),
        ("memory of the producer", _mean(timeline, "perf/producer_memory", "bytes"), "cache"),
    ]


def _mean(timeline: Timeline, name: str, unit: str) -> str:
    series = timeline.series(name)
    if not series.is_known:
        return ""
    mean = series.summary(timeline.weights).mean
    return f"{shown(mean, unit)} on average" if mean == mean else f"{shown(float(series.values[-1]), unit)}, held"


def _per_second(timeline: Timeline, name: str) -> float:
    """Return a counter's total over the time between the first and the last record."""
    series = timeline.series(name)
    if len(timeline) < 2 or not series.is_known:
        return 0.0
    span_s = float(timeline.seconds[-1] - timeline.seconds[0])
    return float(series.values[-1] - series.values[0]) / span_s if span_s > 0 else 0.0


def _lines(run: Run, *names: str) -> str:
    if run.comparison is None:
        return ""
    found = [line for line in run.comparison.lines if line.name.startswith(names)]
    return "; ".join(f"{line.name} {shown(line.observed, line.unit)}" for line in found)


def _few_shares(shares: dict[int, float] | object) -> str:
    if not isinstance(shares, dict) or not shares:
        return ""
    first, last = next(iter(shares)), list(shares)[-1]
    return f"{compact(len(shares))} generations; first {percent(shares[first])}, last {percent(shares[last])}"
