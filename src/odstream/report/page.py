"""Puts the page together: one HTML file that loads nothing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from odstream import __version__
from odstream.report import accounts, sections
from odstream.report.balances import all_equations
from odstream.report.figures import LEARNER_BANDS, PRODUCER_BANDS, Plotter
from odstream.report.gallery import draw_charts
from odstream.report.html import Section, anchor
from odstream.report.run import Run
from odstream.report.series import Timeline
from odstream.report.style import STYLE
from odstream.report.verification import verification
from odstream.report.words import escaped, moment

__all__ = ["Page", "build_page"]


@dataclass(frozen=True, slots=True)
class Page:
    """The report of one run."""

    html: str
    pictures: dict[str, bytes]
    """PNG by name; empty if none was asked for."""


def build_page(run: Run, *, png: bool = True, now_unix_ns: Callable[[], int] = time.time_ns) -> Page:
    """Return the report of a run.

    Args:
        run: What was read.
        png: Whether to draw the charts as PNG, too.
        now_unix_ns: Unix time, for the page's foot.

    Raises:
        MissingExtraError: If there is something to draw, and the extra ``plot`` is not installed.
    """
    timeline = Timeline(run.records)
    charts = draw_charts(run, timeline, Plotter(timeline, png=png))
    parts = [
        sections.rates(timeline, charts["rates"]),
        sections.states(timeline, charts["states"]),
        sections.cache(timeline, charts["cache"]),
        sections.steps(timeline, charts["steps"]),
        accounts.reuse(run, charts["reuse"]),
        accounts.planned(run),
        accounts.balances(run, timeline),
        verification(run, timeline),
        accounts.environment(run),
    ]
    html = _document(run, timeline, parts, now_unix_ns())
    drawn = [chart for group in charts.values() for chart in group if chart is not None]
    return Page(html, {chart.name: chart.picture.png for chart in drawn if chart.picture.png is not None})


def _document(run: Run, timeline: Timeline, parts: Sequence[Section], now_unix_ns: int) -> str:
    used = {f"perf/{name}" for name in accounts.COUNTS} | {f"perf/learner/{name}" for name, _ in LEARNER_BANDS}
    used |= {f"perf/producer/{name}" for name, _ in PRODUCER_BANDS} | sections.TABLED | {"train/loss"}
    links = "".join(f"<li>{anchor(part.anchor, part.title)}</li>" for part in parts)
    first, *others = parts
    body = [_section(Section(first.anchor, first.title, sections.overview(timeline) + first.body))]
    body += [_section(part) for part in others]
    rest = sections.further(timeline, sorted(used))
    if rest:
        body.insert(4, f"<section>{rest}</section>")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escaped(run.name)} – run report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{escaped(run.name)}</h1>{sections.headline(run, timeline)}</header>\n<nav aria-label="Sections">'
        f"<ol>{links}</ol></nav>\n<main>\n" + "\n".join(body) + "\n</main>\n"
        f"<footer>Made by odstream {escaped(__version__)} on {moment(now_unix_ns)} from {escaped(run.path)}. "
        "Numbers are rounded for reading; every one has all its digits in the page's source.</footer>\n"
        f'<script type="application/json" id="data">{_data(run, timeline)}</script>\n</body>\n</html>\n'
    )


def _section(part: Section) -> str:
    return f'<section id="{part.anchor}"><h2>{escaped(part.title)}</h2>{part.body}</section>'


def _data(run: Run, timeline: Timeline) -> str:
    """Return the numbers of the page as JSON: what tables and charts say, with all digits."""
    last = timeline.records[-1] if len(timeline) else None
    equations = all_equations(last, run.selections_per_episode, run.trajectories, run.comparison)
    data: dict[str, Any] = {
        "name": run.name,
        "started_unix_ns": run.started_unix_ns,
        "records": len(timeline),
        "torn": run.torn,
        "last": None if last is None else json.loads(last.to_json()),
        "verdict_shares": timeline.verdict_shares() if last is not None else {},
        "metrics": {name: _summary(timeline, name) for name in timeline.names},
        "trajectories": None if run.trajectories is None else dict(run.trajectories.totals),
        "balances": [[one.source, one.words, one.difference] for one in equations],
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _summary(timeline: Timeline, name: str) -> dict[str, float | None]:
    found = timeline.summary(name)
    values = {"mean": found.mean, "least": found.least, "most": found.most}
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
