"""The two pictures that a run leaves: how success grew, and the policy at work.

Needs the extra ``plot``; the film strip needs a renderer as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odstream.envs.franka.camera import Camera
from odstream.envs.franka.environment import CONTROL_PERIOD_S
from odstream.envs.franka.simulation import Pose
from odstream.errors import MissingExtraError

if TYPE_CHECKING:
    from odstream.envs.franka.training import CurvePoint

_INK, _FAINT = "#1f2933", "#d9dee4"
_TOLERANCES = (
    (0.03, "within 3 cm: solved", "#1769aa"),
    (0.02, "within 2 cm", "#3f9b6c"),
    (0.01, "within 1 cm", "#d9822b"),
)
_STRIP_PICTURES = 6
_PICTURE_PX = 640


def draw_success_curve(curve: Sequence[CurvePoint], target: float, path: Path) -> None:
    """Draw success over updates and over seconds of training, both on a logarithmic axis that has a zero.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure = _new_figure(10.5, 4.6)
    by_updates, by_seconds = figure.subplots(1, 2, sharey=True)
    final = curve[-1]
    by_updates.set_xscale("symlog", linthresh=50, linscale=0.5)
    by_seconds.set_xscale("symlog", linthresh=0.5, linscale=0.5)
    _draw_panel(by_updates, curve, target, lambda point: point.updates)
    _draw_panel(by_seconds, curve, target, lambda point: point.training_s)
    by_updates.set_xticks([point.updates for point in curve], [str(point.updates) for point in curve], rotation=40)
    by_updates.set_xlabel("optimizer updates")
    by_updates.set_ylabel("fresh scenes solved")
    by_updates.annotate(f"target {target:.0%}", (0, target), (6, 4), textcoords="offset points", color=_INK, fontsize=9)
    ticks = [tick for tick in (0, 0.5, 1, 2, 5, 10, 20, 50, 100) if tick <= final.training_s]
    by_seconds.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    by_seconds.set_xlabel("seconds of training, evaluation not counted")
    by_seconds.legend(loc="upper left", bbox_to_anchor=(0.01, 0.88), frameon=False)
    figure.suptitle(
        f"Learning pick-and-place from a live stream: {final.evaluation.rate:.0%} of "
        f"{len(final.evaluation.success)} fresh scenes after {final.training_s:.0f} s "
        f"({final.episodes:,} episodes produced meanwhile)",
        color=_INK,
    )
    figure.savefig(path)


def draw_film_strip(poses: Sequence[Pose], caption: str, path: Path) -> None:
    """Draw moments of one episode side by side.

    Raises:
        MissingExtraError: If no renderer is available, or matplotlib is not installed.
    """
    moments = np.linspace(0, len(poses) - 1, _STRIP_PICTURES).round().astype(int)
    with Camera(_PICTURE_PX, _PICTURE_PX, shadows=True) as camera:
        pictures = [camera.picture(poses[moment]) for moment in moments]
    figure = _new_figure(9.6, 7.1)
    for axes, picture, moment in zip(figure.subplots(2, 3).flat, pictures, moments, strict=True):
        axes.imshow(picture)
        axes.set_axis_off()
        axes.set_title(f"{moment * CONTROL_PERIOD_S:.1f} s", fontsize=10, color=_INK)
    figure.suptitle(caption, color=_INK)
    figure.savefig(path)


def _draw_panel(axes: Any, curve: Sequence[CurvePoint], target: float, where: Callable[[CurvePoint], float]) -> None:
    across = [where(point) for point in curve]
    for tolerance_m, label, colour in _TOLERANCES:
        rates = [point.evaluation.rate_within(tolerance_m) for point in curve]
        width = 2.4 if tolerance_m == _TOLERANCES[0][0] else 1.3
        marks = {"marker": "o", "markersize": 2.4 * width, "clip_on": False, "zorder": 2 + width}
        axes.plot(across, rates, color=colour, linewidth=width, label=label, **marks)
    shade = {"color": _TOLERANCES[0][2], "alpha": 0.13, "linewidth": 0, "label": "95% interval"}
    axes.fill_between(across, *_uncertainty(curve), **shade)
    axes.axhline(target, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.minorticks_off()
    axes.set_xlim(0, across[-1] * 1.05)
    axes.set_ylim(-0.03, 1.04)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(color=_FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _uncertainty(curve: Sequence[CurvePoint]) -> tuple[list[float], list[float]]:
    """Wilson intervals (95 %) of the success rates: what so few scenes leave open."""
    low, high = [], []
    for point in curve:
        rate, scenes, z = point.evaluation.rate, len(point.evaluation.success), 1.96
        middle = (rate + z * z / (2 * scenes)) / (1 + z * z / scenes)
        half = z / (1 + z * z / scenes) * np.sqrt(rate * (1 - rate) / scenes + z * z / (4 * scenes * scenes))
        low.append(float(middle - half))
        high.append(float(middle + half))
    return low, high


def _new_figure(width_in: float, height_in: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing needs matplotlib: pip install 'odstream[plot]'") from error
    figure = Figure(figsize=(width_in, height_in), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
