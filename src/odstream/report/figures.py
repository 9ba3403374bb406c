"""The charts of the report: what each draws, and what it says in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odstream.perf.exposure import Trajectory
from odstream.report.charts import Band, Bars, Canvas, Line, Picture, draw_bands, draw_bars, draw_lines
from odstream.report.series import Floats, Summary, Timeline, averaged, thinned
from odstream.report.words import compact, escaped, percent, shown

__all__ = ["Chart", "Plotter"]

LEARNER_BANDS = (
    ("compute", "blue"),
    ("fetch", "sky"),
    ("other", "grey"),
    ("eval", "green"),
    ("checkpoint", "purple"),
    ("pace", "orange"),
    ("wait", "red"),
)
PRODUCER_BANDS = (("busy", "blue"), ("publish", "sky"), ("starved", "orange"), ("blocked", "red"), ("down", "grey"))
"""What is useful lies at the bottom, what holds a side back on top."""
_LABELLED_FROM = 0.005
_BARS = 40


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its words."""

    name: str
    title: str
    caption: str
    description: str
    """The numbers in words, for those who do not see it."""
    picture: Picture

    def render(self) -> str:
        """Return it as a figure."""
        svg = self.picture.svg.replace(
            "<svg", f'<svg role="img" aria-label="{escaped(f"{self.title}. {self.description}")}"', 1
        )
        return f'<figure id="{self.name}">{svg}<figcaption>{escaped(self.caption)}</figcaption></figure>'


class Plotter:
    """Draws charts over the time of one run.

    Args:
        timeline: Of the run.
        png: Whether to draw PNG as well.
    """

    def __init__(self, timeline: Timeline, *, png: bool) -> None:
        self._timeline, self._png = timeline, png
        span_s = float(timeline.seconds[-1]) if len(timeline) else 0.0
        self._unit, self._unit_s = next(
            (name, size)
            for name, size, up_to in (("s", 1, 600), ("min", 60, 7200), ("h", 3600, np.inf))
            if span_s <= up_to
        )

    def lines(
        self,
        name: str,
        title: str,
        parts: Sequence[tuple[str, str, str]],
        unit: str,
        caption: str,
        *,
        steps: bool = False,
    ) -> Chart | None:
        """Draw metrics as lines; None if none is known.

        Args:
            name: Of the chart.
            title: In words.
            parts: Metric, label and colour of each line.
            unit: Of all.
            caption: What there is to see.
            steps: Whether to mark optimizer steps above.
        """
        series = [(self._timeline.series(metric), label, colour) for metric, label, colour in parts]
        series = [item for item in series if item[0].is_known]
        if not series:
            return None
        scale, shown_unit = _scaled(unit, max(float(np.nanmax(item[0].values)) for item in series))
        fresh = [item[0].fresh / scale for item in series]
        held = [item[0].values / scale for item in series]
        has_held = [bool((item[0].held & np.isfinite(item[0].values)).any()) for item in series]
        moments, drawn = thinned(self._timeline.seconds / self._unit_s, [*fresh, *held])
        count = len(series)
        summaries = [item[0].summary(self._timeline.weights) for item in series]
        lines = [
            Line(
                f"{label} {compact(round_to(summary.last / scale))}",
                drawn[index],
                colour,
                drawn[count + index] if has_held[index] else None,
            )
            for index, ((_, label, colour), summary) in enumerate(zip(series, summaries, strict=True))
        ]
        if any(has_held):
            caption += " Dotted: held from an earlier window, nothing new was measured."
            shown_unit = f"{shown_unit}; dotted: held from before"
        canvas = self._canvas(name, title, shown_unit, steps=steps)
        return Chart(
            name,
            title,
            caption,
            "; ".join(_said(label, summary, unit) for (_, label, _), summary in zip(series, summaries, strict=True)),
            draw_lines(canvas, moments, lines),
        )

    def bands(self, role: str, title: str, caption: str) -> Chart | None:
        """Draw the shares of a role's states; None if they are not known."""
        order = LEARNER_BANDS if role == "learner" else PRODUCER_BANDS
        series = [self._timeline.series(f"perf/{role}/{state}") for state, _ in order]
        if not any(one.is_known for one in series):
            return None
        means = {state: one.summary(self._timeline.weights).mean for (state, _), one in zip(order, series, strict=True)}
        shares = {state: 0.0 if np.isnan(mean) else mean for state, mean in means.items()}
        layers = [np.nan_to_num(one.values) for one in series]
        moments, drawn = averaged(self._timeline.seconds / self._unit_s, layers)
        bands = [
            Band(f"{state} {percent(shares[state])}", values, colour)
            for (state, colour), values in zip(order, drawn, strict=True)
        ]
        labelled = [
            band.label for band, (state, _) in zip(bands, order, strict=True) if shares[state] >= _LABELLED_FROM
        ]
        small = [state for state, _ in order if shares[state] < _LABELLED_FROM]
        if small:
            caption += f" Below {percent(_LABELLED_FROM)} and not labelled: {', '.join(small)}."
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        return Chart(
            f"{role}-states",
            title,
            f"Labels: means over the run. {caption}",
            "Means over the run: " + ", ".join(f"{state} {percent(share)}" for state, share in ordered),
            draw_bands(
                self._canvas(f"{role}-states", title, "share of wall time", percent=True), moments, bands, labelled
            ),
        )

    def stack(self, name: str, title: str, parts: Sequence[tuple[str, str, str]], caption: str) -> Chart | None:
        """Draw durations on top of each other, held ones too; None if none is known."""
        series = [(self._timeline.series(metric), label, colour) for metric, label, colour in parts]
        series = [item for item in series if item[0].is_known]
        if not series:
            return None
        total: Floats = sum((np.nan_to_num(item[0].values) for item in series), np.zeros(len(self._timeline)))
        scale, unit = _scaled("s", float(total.max()))
        moments, drawn = averaged(
            self._timeline.seconds / self._unit_s, [np.nan_to_num(item[0].values) / scale for item in series]
        )
        summaries = [item[0].summary(self._timeline.weights) for item in series]
        bands = [
            Band(f"{label} {compact(round_to(summary.mean / scale))}", values, colour)
            for (_, label, colour), values, summary in zip(series, drawn, summaries, strict=True)
        ]
        return Chart(
            name,
            title,
            caption,
            "; ".join(_said(label, summary, "s") for (_, label, _), summary in zip(series, summaries, strict=True)),
            draw_bands(self._canvas(name, title, unit), moments, bands, [band.label for band in bands]),
        )

    def histogram(
        self, name: str, title: str, values: Floats, across: str, caption: str, mark: tuple[float, str] | None = None
    ) -> Chart | None:
        """Draw how many trajectories have which value; None without any."""
        values = values[np.isfinite(values)]
        if not values.size:
            return None
        edges = _edges(values)
        heights = np.histogram(values, edges)[0].astype(np.float64)
        bars = Bars(edges, heights, *(mark or (None, "")))
        low, middle, high = np.quantile(values, (0.05, 0.5, 0.95)).tolist()
        said = (
            f"{compact(values.size)} trajectories, from {compact(float(values.min()))} to "
            f"{compact(float(values.max()))}; half of them at most {compact(round_to(middle))}, 5 % at most "
            f"{compact(round_to(low))}, 95 % at most {compact(round_to(high))}"
        )
        canvas = Canvas(name=name, title=title, across=across, up="trajectories", png=self._png)
        return Chart(name, title, caption, said, draw_bars(canvas, bars))

    def generations(self, episodes: Sequence[Trajectory]) -> Chart | None:
        """Draw the share of all deliveries that each generation had; None if no generation is known."""
        uses: dict[int, int] = {}
        for episode in episodes:
            if episode.generation is not None:
                uses[episode.generation] = uses.get(episode.generation, 0) + episode.delivered
        total = sum(uses.values())
        if not total:
            return None
        first, last = min(uses), max(uses)
        wide = -(-(last - first + 1) // _BARS)
        edges = np.arange(first, last + wide + 1, wide, dtype=np.float64) - 0.5
        heights, _ = np.histogram(list(uses), edges, weights=[count / total for count in uses.values()])
        largest = max(uses, key=lambda generation: uses[generation])
        up = "share of deliveries" if wide == 1 else f"share of deliveries, {wide} generations a bar"
        canvas = Canvas(
            name="generations",
            title="Who was delivered: generations",
            across="generation",
            up=up,
            percent=True,
            png=self._png,
        )
        said = (
            f"{len(uses)} generations; the largest share has generation {largest}: {percent(uses[largest] / total)}; "
            f"the first has {percent(uses[first] / total)}, the last {percent(uses[last] / total)}"
        )
        caption = "Equal bars: every refill was used alike. The last ones are still cached, or had little time."
        return Chart("generations", canvas.title, caption, said, draw_bars(canvas, Bars(edges, heights)))

    def _canvas(self, name: str, title: str, up: str, *, percent: bool = False, steps: bool = False) -> Canvas:
        timeline = self._timeline
        has_steps = steps and len(timeline) > 1 and timeline.steps[-1] > timeline.steps[0]
        return Canvas(
            name=name,
            title=title,
            across=f"{self._unit} since metering began",
            up=up,
            percent=percent,
            steps=(timeline.seconds / self._unit_s, timeline.steps) if has_steps else None,
            png=self._png,
        )


def round_to(value: float, digits: int = 3) -> float:
    """Return a number with so many significant digits."""
    return float(f"{value:.{digits}g}") if np.isfinite(value) else value


def _said(label: str, summary: Summary, unit: str) -> str:
    last = f"{label}: last {shown(summary.last, unit)}"
    if np.isnan(summary.mean):
        return f"{last}, held"
    return f"{last}, mean {shown(summary.mean, unit)}, {shown(summary.least, unit)} to {shown(summary.most, unit)}"


def _scaled(unit: str, most: float) -> tuple[float, str]:
    """Return by what to divide values in ``unit`` so that they are good to read, and the unit then."""
    if unit == "s" and most < 1:
        return 1e-3, "ms"
    if unit == "bytes":
        return next(((size, name) for name, size in (("GB", 1e9), ("MB", 1e6)) if most >= size), (1e3, "kB"))
    return 1.0, unit


def _edges(values: Floats) -> Floats:
    """Return edges of bars: whole numbers lie within bars, never on an edge."""
    low, high = float(values.min()), float(values.max())
    if (values == np.round(values)).all():
        wide = max(1, int(np.ceil((high - low + 1) / _BARS)))
        edges: Floats = np.arange(low, high + wide + 1, wide) - 0.5
        return edges
    return np.linspace(low, high, _BARS // 2 + 1) if high > low else np.array([low - 0.5, low + 0.5])
