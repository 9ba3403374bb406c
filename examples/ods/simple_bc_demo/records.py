"""What a run leaves in words and numbers: what was produced, delivered, trained on, waited for, and used up."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from examples.ods.simple_bc_demo.evaluate import rates
from examples.ods.simple_bc_demo.journal import Journal
from examples.ods.simple_bc_demo.resources import use_of
from odstream.envs.franka.evaluate import Evaluation
from odstream.perf import LearnerMeter, Trajectories

RECORDS, TRAJECTORIES = "records.json", "trajectories.json"
RECORDS_FORMAT, RECORDS_VERSION = "odstream.bc-demo.records", 1
GOOD = 0.8
"""The rate whose first sight is noted."""


def point_of(updates: int, evaluation: Evaluation, journal: Journal, meter: LearnerMeter) -> dict[str, Any]:
    """Return one point of the curve, right after its evaluation."""
    evaluating_s = meter.totals_ns()["eval"] / 1e9
    return {
        "updates": updates,
        "at_s": journal.now_s,
        "at_s_without_evaluations": journal.now_s - evaluating_s,
        "success": rates(evaluation),
    }


def good_at_s(curve: Sequence[Mapping[str, Any]]) -> float | None:
    """Return when a point of the curve first was `GOOD`, evaluations on the way left out; None: never."""
    good = (point["at_s_without_evaluations"] for point in curve if point["success"]["3_cm"]["rate"] >= GOOD)
    return next(good, None)


def exposure_of(trajectories: Trajectories) -> dict[str, Any]:
    """Return how evenly and how thoroughly trajectories were used."""
    completed = [one.completed for one in trajectories.episodes]
    used = [one for one in trajectories.episodes if one.completed]
    known = [one for one in used if one.length]
    frames = sum(one.length or 0 for one in known)
    return {
        "trajectories": len(completed),
        "used": len(used),
        "selections_per_trajectory": _spread(completed),
        "anchors_per_frame": sum(one.anchors for one in known) / frames if frames else None,
        "supervised_appearances_per_frame": sum(one.supervised_frames for one in known) / frames if frames else None,
    }


def generation_shares(trajectories: Trajectories) -> dict[str, float]:
    """Return the share of the completed selections that came from each generation."""
    chunks: Counter[str] = Counter()
    for one in trajectories.episodes:
        chunks[str(one.generation)] += one.completed
    total = chunks.total()
    return {generation: count / total for generation, count in chunks.items() if count} if total else {}


def accounting_of(facts: Mapping[str, Any], trajectories: Trajectories, delivered_before: int) -> dict[str, Any]:
    """Return what became of every selection, and by how many the source's count and the loop's differ.

    Args:
        facts: The arm's.
        trajectories: The loop's.
        delivered_before: Deliveries in the source's count that are of the run before a resume.
    """
    account, totals = dict(facts["accounting"]), trajectories.totals
    account["uncounted"] = account["delivered"] - delivered_before - totals["delivered"]
    account["unaccounted"] = None  # where nothing is granted, nothing can be left over
    if account["assigned"] is not None:
        rest = account["delivered"] + account["remaining"] + account["retired"]
        account["unaccounted"] = account["assigned"] - rest
    return {**account, **{name: totals[name] for name in ("completed", "failed", "in_flight")}}


def records_of(
    *,
    header: Mapping[str, Any],
    facts: Mapping[str, Any],
    trajectories: Trajectories,
    delivered_before: int,
    meter: LearnerMeter,
    journal: Journal,
    curve: Sequence[Mapping[str, Any]],
    updates: int,
) -> dict[str, Any]:
    """Return the document, without the final evaluation. All times in seconds."""
    states_s = {state: nanoseconds / 1e9 for state, nanoseconds in meter.totals_ns().items()}
    learner = use_of(os.getpid())
    return {
        "format": RECORDS_FORMAT,
        "version": RECORDS_VERSION,
        **header,
        "work": {"updates": updates, "updates_of_this_run": meter.steps, **trajectories.totals},
        "data": {name: facts.get(name) for name in ("source_id", "published_episodes", "cached_episodes")},
        "failed_attempts": facts.get("failed_attempts"),
        "accounting": accounting_of(facts, trajectories, delivered_before),
        "exposure": exposure_of(trajectories),
        "generation_shares": generation_shares(trajectories),
        "latencies": {
            "first_publication_s": facts.get("first_publication_s"),
            "waits": facts.get("waits"),
            "first_update_s": journal.marks_s.get("first_update"),
            "success_80_s": good_at_s(curve),
        },
        "learner_states_s": states_s,
        "planned_and_observed": facts.get("planned_and_observed"),
        "phases_s": dict(journal.phases_s),
        "resources": {
            "learner": None if learner is None else asdict(learner),
            "producer": None if facts.get("producer") is None else asdict(facts["producer"]),
        },
        "curve": list(curve),
    }


def summary(records: Mapping[str, Any], folder: object) -> str:
    """Return one screen for the terminal."""
    account, work, latencies = records["accounting"], records["work"], records["latencies"]
    states, phases, resources = records["learner_states_s"], records["phases_s"], records["resources"]
    final = records["evaluation"]["success"]
    each = records["exposure"]["selections_per_trajectory"] or {"least": 0, "mean": 0.0, "most": 0}
    lines = [
        f"solved      {_rate(final['3_cm'])}; 2 cm {final['2_cm']['rate']:.0%}, 1 cm {final['1_cm']['rate']:.0%}",
        f"work        {work['updates']:,} updates, {work['completed']:,} selections completed, {work['failed']} failed",
        f"data        {records['data']['published_episodes']:,} demonstrations; used {each['least']} to {each['most']} "
        f"times, {each['mean']:.0f} on average",
        "accounting  " + _account(account),
        f"first       update after {_s(latencies['first_update_s'])}, 80 % after {_s(latencies['success_80_s'])} "
        "(evaluations left out)",
        f"learner     computed {states['compute'] + states['warmup']:.1f} s, fetched {states['fetch']:.1f} s, waited "
        f"{states['wait']:.1f} s, was paced {states['pace']:.1f} s, evaluated {states['eval']:.1f} s",
        "phases      " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items()),
        "memory      "
        + ", ".join(f"{name} {use['peak_bytes'] / 1e6:.0f} MB" for name, use in resources.items() if use)
        + "; CPU "
        + ", ".join(f"{name} {use['cpu_s']:.1f} s" for name, use in resources.items() if use),
        f"total       {records['total_s']:.1f} s; {folder}",
        f"report      odstream report {folder}",
    ]
    return "\n".join(lines)


def _account(account: Mapping[str, Any]) -> str:
    granted = "" if account["assigned"] is None else f"{account['assigned']:,} granted, "
    left = "" if account["remaining"] is None else f"{account['remaining']:,} left, "
    return (
        f"{granted}{account['delivered']:,} delivered, {left}{account['retired']:,} retired unused, "
        f"{(account['unaccounted'] or 0) + account['uncounted']} unaccounted for"
    )


def _rate(entry: Mapping[str, Any]) -> str:
    low, high = entry["interval_95"]
    return f"{entry['rate']:.0%} of {entry['scenes']} held-out scenes (95 % interval {low:.0%} to {high:.0%})"


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"


def _spread(counts: Sequence[int]) -> dict[str, float] | None:
    if not counts:
        return None
    return {"least": min(counts), "mean": sum(counts) / len(counts), "most": max(counts)}
