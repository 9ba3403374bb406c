"""The pictures of a comparison. Needs matplotlib (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from examples.ods.simple_bc_demo.evaluate import TOLERANCES_CM
from odstream.errors import MissingExtraError

_INK, _FAINT = "#1f2933", "#d9dee4"
_COLOURS = {
    "live": "#1769aa",
    "frozen": "#8a6fb0",
    "offline-32": "#c0392b",
    "offline-256": "#d9822b",
    "offline-full": "#3f9b6c",
}
_MARKERS = {"live": "o", "frozen": "D", "offline-32": "s", "offline-256": "^", "offline-full": "v"}
_COMPLETED = "completed"

Records = Mapping[str, Any]


def require_plots() -> None:
    """Return if plots can be drawn here.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError("plots need matplotlib: pip install 'odstream[plot]'; or go on without: --no-plots")


def draw(runs: Sequence[Records], results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw success, curves and exposure; return the files.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    require_plots()
    files = [folder / name for name in ("success.png", "curves.png", "exposure.png")]
    _draw_success(results, files[0])
    _draw_curves(runs, files[1])
    _draw_exposure(runs, files[2])
    return files


def _draw_success(results: Mapping[str, Any], path: Path) -> None:
    """One panel per tolerance: the pooled rate with its interval, and each seed as a dot."""
    figure = _figure(3.4 * len(TOLERANCES_CM), 3.8)
    arms = results["arms"]
    for axes, cm in zip(figure.subplots(1, len(TOLERANCES_CM), sharey=True), TOLERANCES_CM, strict=True):
        for place, (mode, arm) in enumerate(arms.items()):
            entry, colour = arm["success"][f"{cm}_cm"], _COLOURS[mode]
            low, high = entry["interval_95"]
            axes.plot([place, place], [low, high], color=colour, linewidth=6, alpha=0.35, solid_capstyle="butt")
            axes.plot([place - 0.22, place + 0.22], [entry["rate"]] * 2, color=colour, linewidth=2.5)
            rates = [one["rate"] for one in entry["per_seed"]]
            across = place + np.linspace(-0.16, 0.16, len(rates)) if len(rates) > 1 else [place]
            axes.plot(across, rates, "o", color=_INK, markersize=3.5, clip_on=False, zorder=4)
        axes.set_xticks(range(len(arms)), list(arms), rotation=30, ha="right")
        axes.set_xlim(-0.6, len(arms) - 0.4)
        axes.set_ylim(0, 1.02)
        axes.set_title(f"cube within {cm} cm", fontsize=10, color=_INK)
        _clean(axes)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    seeds = len(results["seeds"])
    figure.suptitle(
        f"Held-out scenes solved: rate and 95 % interval over {seeds} seed{'s' if seeds != 1 else ''} (dots)",
        color=_INK,
        fontsize=11,
    )
    figure.savefig(path)


def _draw_curves(runs: Sequence[Records], path: Path) -> None:
    """Success in development scenes over updates and over time, one thin line per seed, the mean over updates thick."""
    figure = _figure(10.5, 4.4)
    by_updates, by_time = figure.subplots(1, 2, sharey=True)
    for mode, of_mode in _by_mode(runs).items():
        colour = _COLOURS[mode]
        for run in of_mode:
            success = [point["success"]["3_cm"]["rate"] for point in run["curve"]]
            by_updates.plot([point["updates"] for point in run["curve"]], success, color=colour, alpha=0.3, linewidth=1)
            times_s = [point["at_s_without_evaluations"] for point in run["curve"]]
            by_time.plot(times_s, success, color=colour, alpha=0.8, linewidth=1.2, marker="o", markersize=3)
        shared = [point["updates"] for point in of_mode[0]["curve"]]
        means = [
            np.mean([run["curve"][index]["success"]["3_cm"]["rate"] for run in of_mode]) for index in range(len(shared))
        ]
        by_updates.plot(shared, means, color=colour, linewidth=2.4, marker=_MARKERS[mode], markersize=6, label=mode)
    by_updates.set_xscale("symlog", linthresh=50, linscale=0.5)
    by_updates.set_xticks(shared, _readable(shared), rotation=40)
    by_updates.minorticks_off()
    by_updates.set_xlabel("optimizer updates")
    by_updates.set_ylabel("development scenes solved (3 cm)")
    by_updates.legend(frameon=False, loc="lower right")
    by_time.set_xlabel("seconds since the process began, evaluations left out")
    by_time.set_xlim(left=0)
    for axes in (by_updates, by_time):
        axes.set_ylim(-0.03, 1.04)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        _clean(axes)
    figure.suptitle("The same learner on live and on fixed data", color=_INK, fontsize=11)
    figure.savefig(path)


def _readable(updates: Sequence[int]) -> list[str]:
    """Return labels of points on a logarithmic axis: none where it would lie on the one before."""
    labels, last = [], 0
    for value in updates:
        is_apart = value >= 1.3 * last
        labels.append(str(value) if is_apart else "")
        last = value if is_apart else last
    return labels


def _draw_exposure(runs: Sequence[Records], path: Path) -> None:
    """How often each trajectory was selected: the share of trajectories below each count."""
    figure = _figure(6.4, 4.2)
    axes = figure.subplots()
    for mode, of_mode in _by_mode(runs).items():
        for number, run in enumerate(of_mode):
            column = run["trajectories"]["columns"].index(_COMPLETED)
            counts = np.sort([row[column] for row in run["trajectories"]["episodes"]])
            shares = np.arange(1, len(counts) + 1) / len(counts)
            label = mode if number == 0 else None
            axes.step(np.r_[counts[0], counts], np.r_[0, shares], where="post", color=_COLOURS[mode], label=label)
    axes.set_xscale("symlog", linthresh=100)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("completed selections of a trajectory")
    axes.set_ylabel("share of trajectories")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, loc="upper left")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _clean(axes)
    figure.suptitle("How often trajectories were trained on", color=_INK, fontsize=11)
    figure.savefig(path)


def _by_mode(runs: Sequence[Records]) -> dict[str, list[Records]]:
    found: dict[str, list[Records]] = {}
    for run in runs:
        found.setdefault(run["mode"], []).append(run)
    return found


def _clean(axes: Any) -> None:
    axes.grid(color=_FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(width_in: float, height_in: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
