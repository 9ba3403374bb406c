"""Draws lines, bands and bars, each as SVG that fits into a page and as PNG. Needs the extra ``plot``.

Colours in the SVG are variables of the page's style sheet, so that a chart follows its colour scheme; text stays text.
Series are labelled where they end instead of in a legend.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odstream.errors import MissingExtraError
from odstream.report.series import Floats
from odstream.report.words import compact

__all__ = ["Band", "Bars", "Canvas", "Line", "Picture", "draw_bands", "draw_bars", "draw_lines"]

INK, SOFT, GRID, PAPER = "#1f2933", "#566370", "#d9dee4", "#ffffff"
COLOURS = {
    "blue": "#0072b2",
    "red": "#d55e00",
    "green": "#009e73",
    "sky": "#56b4e9",
    "orange": "#e69f00",
    "purple": "#cc79a7",
    "grey": "#8a949e",
}
"""Told apart by people who see no red or no green (after Okabe and Ito)."""
_VARIABLES = {INK: "ink", SOFT: "soft", GRID: "grid", PAPER: "paper", **{rgb: name for name, rgb in COLOURS.items()}}
_WIDTH, _HEIGHT = 420.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 116.0, 46.0, 38.0
_FONT, _LABEL_GAP = 11.0, 13.5
_INCH = 72.0
_LOGARITHMIC_FROM = 30.0


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart, drawn."""

    svg: str
    png: bytes | None


@dataclass(frozen=True, slots=True)
class Line:
    """One line, labelled at its end."""

    label: str
    values: Floats
    """NaN: nothing is drawn."""
    colour: str
    held: Floats | None = None
    """Values that are held from earlier windows as well; drawn dotted below the line."""


@dataclass(frozen=True, slots=True)
class Band:
    """One layer of a stack."""

    label: str
    values: Floats
    colour: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram: ``heights[i]`` stands between ``edges[i]`` and ``edges[i + 1]``."""

    edges: Floats
    heights: Floats
    mark: float | None = None
    """A vertical line here."""
    mark_label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Canvas:
    """What all kinds of charts have."""

    name: str
    """For ids and file names."""
    title: str
    across: str
    """Name and unit of the horizontal axis."""
    up: str
    """Name and unit of the vertical axis, written above it."""
    percent: bool = False
    steps: tuple[Floats, Floats] | None = None
    """Moments and optimizer steps, for a second axis above."""
    png: bool = True


def draw_lines(canvas: Canvas, moments: Floats, lines: Sequence[Line]) -> Picture:
    """Draw lines from zero, or on a logarithmic axis where they lie far apart."""
    figure, axes = _new_chart(canvas)
    for index, line in enumerate(lines):
        colour = COLOURS[line.colour]
        is_covered = any(np.allclose(line.values, other.values, 0.01, equal_nan=True) for other in lines[index + 1 :])
        if line.held is not None:
            axes.plot(moments, line.held, color=colour, linewidth=1.1, linestyle=(0, (1.2, 2)), zorder=2)
        axes.plot(
            moments, line.values, color=colour, linewidth=4.0 if is_covered else 1.7, zorder=3, solid_joinstyle="round"
        )
    drawn = [line.values if line.held is None else line.held for line in lines]
    _scale(axes, canvas, drawn)
    _across(axes, canvas, moments)
    ends = [_last(values) for values in drawn]
    _label_ends(axes, [(end, line.label, line.colour) for end, line in zip(ends, lines, strict=True)])
    return _pictured(figure, canvas)


def draw_bands(canvas: Canvas, moments: Floats, bands: Sequence[Band], labelled: Sequence[str]) -> Picture:
    """Draw a stack, the first band at the bottom; those in ``labelled`` get their label at the right."""
    figure, axes = _new_chart(canvas)
    colours = [COLOURS[band.colour] for band in bands]
    axes.stackplot(moments, [np.nan_to_num(band.values) for band in bands], colors=colours, linewidth=0, zorder=2)
    tops = np.cumsum([np.nan_to_num(band.values) for band in bands], axis=0)
    if canvas.percent:
        axes.set_ylim(0, 1)
    else:
        axes.set_ylim(0, _roof(float(tops[-1].max())))
    for top in tops[:-1]:
        axes.plot(moments, top, color=PAPER, linewidth=0.7, zorder=2.5)
    _ticks(axes, canvas)
    _across(axes, canvas, moments)
    tail = max(1, len(moments) // 20)
    heights = [float(np.nan_to_num(band.values)[-tail:].mean()) for band in bands]
    middles = np.cumsum(heights) - np.array(heights) / 2
    _label_ends(
        axes,
        [
            (float(middle), band.label, band.colour)
            for middle, band in zip(middles, bands, strict=True)
            if band.label in labelled
        ],
    )
    return _pictured(figure, canvas)


def draw_bars(canvas: Canvas, bars: Bars) -> Picture:
    """Draw a histogram."""
    figure, axes = _new_chart(canvas, right=18.0)
    widths = np.diff(bars.edges)
    axes.bar(
        bars.edges[:-1] + widths * 0.06,
        bars.heights,
        widths * 0.88,
        align="edge",
        color=COLOURS["blue"],
        linewidth=0,
        zorder=2,
    )
    axes.set_ylim(0, _roof(float(bars.heights.max()) * (1.14 if bars.mark is not None else 1.0)))
    _ticks(axes, canvas)
    low, high = float(bars.edges[0]), float(bars.edges[-1])
    if bars.mark is not None:
        low, high = min(low, bars.mark), max(high, bars.mark)
        axes.axvline(bars.mark, color=COLOURS["red"], linewidth=1.6, linestyle=(0, (4, 2)), zorder=3)
        leans_left = bars.mark > (low + high) / 2
        axes.annotate(
            bars.mark_label,
            (bars.mark, 0.985),
            (-5 if leans_left else 5, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if leans_left else "left",
            va="top",
            color=INK,
            fontsize=_FONT,
        )
    margin = 0.02 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    _x_ticks(axes)
    axes.set_xlabel(canvas.across, color=SOFT, fontsize=_FONT, labelpad=3)
    return _pictured(figure, canvas)


# ---------------------------------------------------------------- parts of a chart


def _new_chart(canvas: Canvas, right: float = _RIGHT) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the report's charts need matplotlib: pip install 'odstream[plot]'") from error
    figure = Figure(figsize=(_WIDTH / _INCH, _HEIGHT / _INCH), dpi=_INCH, facecolor="none")
    FigureCanvasAgg(figure)
    axes = figure.add_axes(
        (
            _LEFT / _WIDTH,
            _BOTTOM / _HEIGHT,
            (_WIDTH - _LEFT - right) / _WIDTH,
            (_HEIGHT - _TOP - _BOTTOM) / _HEIGHT,
        ),
        facecolor="none",
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=_FONT, length=0, pad=4)
    axes.tick_params(axis="x", length=3)
    figure.text(4 / _WIDTH, 1 - 13 / _HEIGHT, canvas.title, color=INK, fontsize=_FONT + 1.5, weight="bold")
    figure.text(4 / _WIDTH, 1 - 29 / _HEIGHT, canvas.up, color=SOFT, fontsize=_FONT)
    return figure, axes


def _scale(axes: Any, canvas: Canvas, lines: Sequence[Floats]) -> None:
    medians = [float(np.nanmedian(values)) for values in lines if np.isfinite(values).any()]
    known = np.concatenate([values[np.isfinite(values)] for values in lines])
    least, most = min(medians, default=0.0), max(medians, default=0.0)
    if not canvas.percent and least > 0 and most / least >= _LOGARITHMIC_FROM and (known > 0).all():
        axes.set_yscale("log")
        axes.set_ylim(float(known.min()) / 1.3, float(known.max()) * 1.3)
        axes.minorticks_off()
        axes.figure.texts[-1].set_text(f"{canvas.up}, logarithmic axis" if canvas.up else "logarithmic axis")
    else:
        axes.set_ylim(min(0.0, float(known.min(initial=0.0))), _roof(float(known.max(initial=0.0))))
    _ticks(axes, canvas)


def _roof(most: float) -> float:
    return most * 1.04 if most > 0 else 1.0


def _ticks(axes: Any, canvas: Canvas) -> None:
    from matplotlib.ticker import MaxNLocator

    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter((lambda value, _: f"{value:.0%}") if canvas.percent else _tick_text)


def _tick_text(value: float, _position: object) -> str:
    return compact(value)


def _x_ticks(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(_tick_text)


def _across(axes: Any, canvas: Canvas, moments: Floats) -> None:
    last = float(moments[-1])
    axes.set_xlim(0, last if last > 0 else 1.0)
    _x_ticks(axes)
    axes.set_xlabel(canvas.across, color=SOFT, fontsize=_FONT, labelpad=3)
    if canvas.steps is not None:
        _step_axis(axes, *canvas.steps)


def _step_axis(axes: Any, moments: Floats, steps: Floats) -> None:
    """Mark round numbers of steps inside the plot's upper edge."""
    from matplotlib.ticker import MaxNLocator

    wanted = [step for step in MaxNLocator(3, integer=True).tick_values(steps[0], steps[-1]) if steps[0] < step]
    shown = [step for step in wanted if step < steps[-1]]
    above = axes.twiny()
    above.set_xlim(axes.get_xlim())
    above.set_xticks(np.interp(shown, steps, moments), [f"step {compact(step)}" for step in shown])
    above.tick_params(colors=SOFT, labelsize=_FONT - 1.5, length=4, direction="in", pad=1)
    above.spines[:].set_visible(False)


def _last(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else float("nan")


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write labels to the right of the plot, as near to their height as the others allow, and lead a line to each."""
    known = [end for end in ends if np.isfinite(end[0])]
    height = _HEIGHT - _TOP - _BOTTOM
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [float(to_axes.transform((axes.get_xlim()[1], end))[1]) * height for end, _, _ in known]
    for (_, label, colour), from_y, to_y in zip(known, wanted, spread(wanted, height, _LABEL_GAP), strict=True):
        axes.annotate(
            "",
            (1, from_y / height),
            (1 + 14 / (_WIDTH - _LEFT - _RIGHT), to_y / height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "-", "color": COLOURS[colour], "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )
        where = (1 + 17 / (_WIDTH - _LEFT - _RIGHT), to_y / height)
        axes.text(*where, label, transform=axes.transAxes, va="center", color=INK, fontsize=_FONT)


def spread(wanted: Sequence[float], height: float, gap: float) -> list[float]:
    """Return positions as near to ``wanted`` as they can lie ``gap`` apart, from 0 to ``height`` if they fit."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    clusters: list[list[float]] = []  # sum of wanted minus offsets, members
    for index in order:
        clusters.append([min(max(wanted[index], 0.0), height), 1])
        while len(clusters) > 1 and _middle(clusters[-2], height, gap)[1] + gap > _middle(clusters[-1], height, gap)[0]:
            total, count = clusters.pop()
            clusters[-1] = [clusters[-1][0] + total, clusters[-1][1] + count]
    found = [0.0] * len(wanted)
    place = iter(order)
    for cluster in clusters:
        low, _ = _middle(cluster, height, gap)
        for member in range(int(cluster[1])):
            found[next(place)] = low + member * gap
    return found


def _middle(cluster: Sequence[float], height: float, gap: float) -> tuple[float, float]:
    """Return where a cluster of labels begins and ends."""
    total, count = cluster
    extent = (count - 1) * gap
    low = min(max(total / count - extent / 2, 0.0), max(height - extent, 0.0))
    return low, low + extent


# ---------------------------------------------------------------- SVG for a page


def _pictured(figure: Any, canvas: Canvas) -> Picture:
    from matplotlib import rc_context

    vector = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": canvas.name, "path.simplify": False}):
        figure.savefig(vector, format="svg", metadata={"Date": None})
    svg = embeddable(vector.getvalue().decode("utf-8"), canvas.name)
    if not canvas.png:
        return Picture(svg, None)
    raster = io.BytesIO()
    figure.savefig(raster, format="png", dpi=3 * _INCH, facecolor=PAPER, metadata={"Software": None})
    return Picture(svg, raster.getvalue())


def embeddable(svg: str, name: str) -> str:
    """Return an SVG document of matplotlib as an element of a page.

    It loads nothing and names no other address, its ids begin with ``name``, ids that nothing refers to are gone,
    colours of the palette are variables, and the font is the page's.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", svg)
    svg = re.sub(r'width="[^"]*" height="[^"]*" viewBox', "viewBox", svg, count=1)
    svg = svg.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<[^>]*>", _tag, svg)
    return re.sub(r"\s*\n\s*", " ", svg).strip()


def _tag(found: re.Match[str]) -> str:
    """Return a tag with the page's colours and font, and no digits that nobody sees. Text between tags stays."""
    tag = re.sub(r"#[0-9a-f]{6}\b", _variable, found[0])
    tag = re.sub(r"font(-family)?: ((?:\w+ )?[\d.]+px )?'DejaVu Sans'[^;\"]*", _font, tag)
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", tag)


def _variable(found: re.Match[str]) -> str:
    name = _VARIABLES.get(found[0])
    return f"var(--{name})" if name else found[0]


def _font(found: re.Match[str]) -> str:
    if found[1]:
        return "font-family: inherit"
    size = found[2].split()
    return f"font-size: {size[-1]}" + (f"; font-weight: {size[0]}" if len(size) > 1 else "")
