"""From the records of many runs to one table. Pure.

Counts of scenes are summed over seeds; everything else is given as mean, least and most over the seeds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from examples.ods.simple_bc_demo.evaluate import TOLERANCES_CM
from examples.ods.simple_bc_demo.intervals import paired_t, wilson

RESULTS_FORMAT, RESULTS_VERSION = "odstream.bc-demo.comparison", 1

_LEGEND = (
    "Brackets: 95 % intervals. Of a rate: Wilson's, over the scenes, for the policies that were trained here; other "
    "seeds give other policies, and seeds share their scenes. Of a difference: Student's t over the seeds, paired by "
    "seed; without width where all seeds agree. Ranges: least and most of the seeds. Times count from the start of the "
    "process and depend on what else the machine does; time to 80 % is that of the first evaluation that shows it, "
    "evaluations themselves left out (a live producer goes on meanwhile). Retired allowance: selections that episodes "
    "took with them when they were replaced."
)

Records = Mapping[str, Any]


def _collection_s(run: Records) -> float:
    """Seconds before there was data: measuring and planning, the first fill; or collecting, writing, loading."""
    phases_s: dict[str, float] = run["phases_s"]
    return sum(phases_s.get(name, 0.0) for name in ("calibrate", "start", "collect", "write", "load"))


def _memory_mb(run: Records) -> float:
    uses: dict[str, dict[str, float] | None] = run["resources"]
    return sum(use["peak_bytes"] for use in uses.values() if use) / 1e6


def _waited_s(run: Records) -> float:
    states_s: dict[str, float] = run["learner_states_s"]
    return states_s["wait"] + states_s["pace"]


def _largest_share(run: Records) -> float:
    shares: dict[str, float] = run["generation_shares"]
    return max(shares.values(), default=0.0)


NUMBERS: dict[str, tuple[str, Callable[[Records], float | None]]] = {
    "time to first update (s)": ("{:.1f}", lambda run: run["latencies"]["first_update_s"]),
    "time to 80 % (s)": ("{:.1f}", lambda run: run["latencies"]["success_80_s"]),
    "wall time (s)": ("{:.0f}", lambda run: run["total_s"]),
    "data ready after (s)": ("{:.1f}", _collection_s),
    "updates": ("{:.0f}", lambda run: run["work"]["updates"]),
    "demonstrations": ("{:.0f}", lambda run: run["data"]["published_episodes"]),
    "selections completed": ("{:.0f}", lambda run: run["work"]["completed"]),
    "selections per trajectory, mean": ("{:.0f}", lambda run: run["exposure"]["selections_per_trajectory"]["mean"]),
    "selections per trajectory, most": ("{:.0f}", lambda run: run["exposure"]["selections_per_trajectory"]["most"]),
    "anchors per frame": ("{:.2f}", lambda run: run["exposure"]["anchors_per_frame"]),
    "supervised appearances per frame": ("{:.0f}", lambda run: run["exposure"]["supervised_appearances_per_frame"]),
    "generations used": ("{:.0f}", lambda run: len(run["generation_shares"])),
    "largest generation share": ("{:.2f}", _largest_share),
    "learner waited and was paced (s)": ("{:.1f}", _waited_s),
    "peak memory, learner + producer (MB)": ("{:.0f}", _memory_mb),
    "retired allowance (selections)": ("{:.0f}", lambda run: run["accounting"]["retired"]),
    "unaccounted selections": (
        "{:.0f}",
        lambda run: abs(run["accounting"]["unaccounted"] or 0) + abs(run["accounting"]["uncounted"]),
    ),
}
"""Rows of the table below the success rates: how each is written, and where it is found."""


def compare(runs: Sequence[Records]) -> dict[str, Any]:
    """Return the comparison as a document.

    Args:
        runs: Of any arms and seeds, finished.
    """
    arms: dict[str, list[Records]] = {}
    for run in runs:
        arms.setdefault(run["mode"], []).append(run)
    compared = {mode: _arm(of_mode) for mode, of_mode in arms.items()}
    return {
        "format": RESULTS_FORMAT,
        "version": RESULTS_VERSION,
        "seeds": sorted({run["seed"] for run in runs}),
        "arms": compared,
        "live_minus": _differences(compared),
    }


def _arm(runs: Sequence[Records]) -> dict[str, Any]:
    success = {}
    for name in (f"{cm}_cm" for cm in TOLERANCES_CM):
        entries = [run["evaluation"]["success"][name] for run in runs]
        solved, scenes = sum(entry["solved"] for entry in entries), sum(entry["scenes"] for entry in entries)
        success[name] = {
            "solved": solved,
            "scenes": scenes,
            "rate": solved / scenes,
            "interval_95": wilson(solved, scenes),
            "per_seed": [
                {"seed": run["seed"], **{key: entry[key] for key in ("solved", "scenes", "rate", "interval_95")}}
                for run, entry in zip(runs, entries, strict=True)
            ],
        }
    return {
        "runs": len(runs),
        "success": success,
        "numbers": {name: _spread([read(run) for run in runs]) for name, (_, read) in NUMBERS.items()},
        "generation_shares": {str(run["seed"]): run["generation_shares"] for run in runs},
    }


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean, least and most of what is known, and for how many runs it is not."""
    known = [value for value in values if value is not None]
    return {
        "mean": mean(known) if known else None,
        "least": min(known, default=None),
        "most": max(known, default=None),
        "unknown": len(values) - len(known),
    }


def _differences(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how much more often live solved a scene than each other arm."""
    if "live" not in arms:
        return {}
    found: dict[str, Any] = {}
    for mode in arms.keys() - {"live"}:
        found[mode] = {}
        for name, live in arms["live"]["success"].items():
            other = arms[mode]["success"][name]
            ours, theirs = ({one["seed"]: one["rate"] for one in arm["per_seed"]} for arm in (live, other))
            pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
            found[mode][name] = {"difference": mean(pairs) if pairs else None, "interval_95": paired_t(pairs)}
    return {mode: found[mode] for mode in arms if mode in found}


# ---------------------------------------------------------------- in words


def to_markdown(results: Mapping[str, Any]) -> str:
    """Return the table: one column per arm."""
    arms = results["arms"]
    seeds = len(results["seeds"])
    lines = [
        f"# Comparison over {seeds} seed{'s' if seeds != 1 else ''}",
        "",
        "| | " + " | ".join(arms) + " |",
        "| --- |" + " ---: |" * len(arms),
    ]
    for cm in TOLERANCES_CM:
        cells = [_success_cell(arm["success"][f"{cm}_cm"]) for arm in arms.values()]
        lines.append(f"| solved within {cm} cm, all seeds | " + " | ".join(cells) + " |")
    for cm in TOLERANCES_CM:
        cells = [
            ", ".join(f"{one['rate']:.0%}" for one in arm["success"][f"{cm}_cm"]["per_seed"]) for arm in arms.values()
        ]
        lines.append(f"| within {cm} cm, seed by seed | " + " | ".join(cells) + " |")
    for name, (form, _) in NUMBERS.items():
        cells = [_number_cell(arm["numbers"][name], form) for arm in arms.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", *_difference_lines(results["live_minus"]), ""]
    lines += textwrap.wrap(_LEGEND, 118)
    return "\n".join(lines) + "\n"


def _difference_lines(differences: Mapping[str, Any]) -> list[str]:
    lines = []
    for mode, by_tolerance in differences.items():
        parts = [
            f"{_difference(entry)} within {name.replace('_', ' ')}"
            for name, entry in by_tolerance.items()
            if entry["difference"] is not None
        ]
        lines.append(f"- live minus {mode}: {'; '.join(parts)}")
    return lines


def _difference(entry: Mapping[str, Any]) -> str:
    interval = entry["interval_95"]
    return f"{entry['difference']:+.1%}" + (f" [{interval[0]:+.1%}, {interval[1]:+.1%}]" if interval else "")


def _success_cell(entry: Mapping[str, Any]) -> str:
    low, high = entry["interval_95"]
    return f"{entry['rate']:.1%} [{low:.1%}, {high:.1%}] of {entry['scenes']}"


def _number_cell(entry: Mapping[str, Any], form: str) -> str:
    if entry["mean"] is None:
        return "-"
    text = form.format(entry["mean"])
    if form.format(entry["least"]) != form.format(entry["most"]):
        text += f" ({form.format(entry['least'])} to {form.format(entry['most'])})"
    return text + (f", {entry['unknown']} without" if entry["unknown"] else "")
