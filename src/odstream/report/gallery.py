"""The charts that a run gets, by section."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odstream.perf.exposure import Trajectories, Trajectory
from odstream.report.accounts import replaced
from odstream.report.figures import Chart, Plotter
from odstream.report.run import Run
from odstream.report.series import Timeline

__all__ = ["draw_charts"]

_Charts = list[Chart | None]


def draw_charts(run: Run, timeline: Timeline, plotter: Plotter) -> dict[str, _Charts]:
    """Draw what there are numbers for, by the section that shows it.

    Raises:
        MissingExtraError: If there is something to draw, and the extra ``plot`` is not installed.
    """
    drawn: dict[str, _Charts] = {"rates": [], "states": [], "cache": [], "steps": [], "reuse": []}
    if len(timeline):
        drawn["rates"] = _rates(plotter)
        drawn["states"] = [
            plotter.bands("learner", "Learner: time in state", "What is useful lies at the bottom."),
            plotter.bands("producer", "Producer: time in state", "Over all slots. What is useful lies at the bottom."),
        ]
        drawn["cache"] = _cache(timeline, plotter)
        drawn["steps"] = _steps(plotter)
    if run.trajectories is not None:
        drawn["reuse"] = _of_trajectories(run.trajectories, replaced(run), plotter)
    return drawn


def _rates(plotter: Plotter) -> _Charts:
    rates = [
        ("perf/train_capacity", "T", "blue"),
        ("perf/infer_capacity", "I", "green"),
        ("perf/thru", "thru", "red"),
    ]
    caption = (
        "thru: what training consumed. I: what production could make, T: what training could consume, each if the "
        "other side never held it back. Where episodes have budgets, thru follows the smaller of the two."
    )
    loss = [("train/loss", "loss", "purple")]
    loss_caption = "As the training noted it, at the last step before each record."
    return [
        plotter.lines("rates-chart", "Rates", rates, "samples/s", caption, steps=True),
        plotter.lines("loss-chart", "Loss", loss, "", loss_caption, steps=True),
    ]


def _cache(timeline: Timeline, plotter: Plotter) -> _Charts:
    ages = [("perf/age_p50", "p50", "blue"), ("perf/age_p95", "p95", "red")]
    budgets = [("perf/remaining", "left", "blue"), ("perf/pool", "pool", "orange")]
    memory = [
        ("perf/learner_memory", "learner", "blue"),
        ("perf/producer_memory", "producer", "red"),
        ("perf/device_memory", "device", "green"),
    ]
    if timeline.series("perf/remaining").is_known:
        unit, caption = "selections", "left: remaining on readable episodes. pool: what could be delivered now."
    else:
        unit, caption = "rows", "pool: rows that could be drawn from now. Without budgets nothing is ever used up."
    age_caption = "From publication to delivery: median and 95 %."
    return [
        plotter.lines("age-chart", "Age of what is delivered", ages, "s", age_caption),
        plotter.lines("budget-chart", "What lies in the cache", budgets, unit, caption),
        plotter.lines("memory-chart", "Memory", memory, "bytes", "Of the processes. GB are 10⁹ bytes."),
    ]


def _steps(plotter: Plotter) -> _Charts:
    split = [
        ("perf/compute_time", "compute", "blue"),
        ("perf/data_time", "data", "sky"),
        ("perf/dispatch_wait", "wait", "red"),
    ]
    caption = "Labels: means over the run. data: getting a batch that exists. wait: until there was one."
    calls = [("perf/infer_batch_time", "call", "green")]
    calls_caption = "Without queueing and publication, failed tries included."
    return [
        plotter.stack("step-chart", "Time of an optimizer step", split, caption),
        plotter.lines("call-chart", "Time of a producer's call", calls, "s", calls_caption),
    ]


def _of_trajectories(found: Trajectories, gone: Sequence[Trajectory], plotter: Plotter) -> _Charts:
    shown = gone or found.episodes
    which = "replaced" if gone else "cached"
    budget = found.assigned_chunks
    mark = None if budget is None else (float(budget), f"K = {budget}")
    use = "How often each was used." if budget is None else "How far the allowance was used."
    rest = " What is missing to K retired unused." if budget is not None and gone else ""
    coverage = [one.anchors / one.length for one in shown if one.length]
    return [
        plotter.histogram(
            "reuse-chart",
            f"Deliveries per {which} trajectory",
            np.array([one.delivered for one in shown], np.float64),
            "delivered selections",
            f"{use}{rest}",
            mark,
        ),
        plotter.histogram(
            "anchors-chart",
            f"Frames seen per {which} trajectory",
            np.array(coverage, np.float64) * 100,
            "unique anchors, % of its frames",
            "An anchor is the current frame of a selection; a selection is no pass over the trajectory.",
        ),
        plotter.generations(found.episodes),
    ]
