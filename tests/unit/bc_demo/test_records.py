"""Records of a run, from what was counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.ods.simple_bc_demo.journal import Journal
from examples.ods.simple_bc_demo.records import (
    accounting_of,
    exposure_of,
    generation_shares,
    good_at_s,
    point_of,
)
from examples.ods.simple_bc_demo.resources import process_age_s, use_of, use_of_child
from odstream.envs.franka.evaluate import Evaluation
from odstream.perf import LearnerMeter, Trajectories, Trajectory

pytestmark = [pytest.mark.franka, pytest.mark.spec("APP-03")]


def trajectory(number: int, completed: int, **others: Any) -> Trajectory:
    fields = {"generation": 1, "length": 10, "published_s": 0.0, "evicted_s": None, "anchors": 5}
    fields |= {"delivered": completed, "supervised_frames": 3 * completed} | others
    return Trajectory(episode_id=number, completed=completed, **fields)


def trajectories(*episodes: Trajectory) -> Trajectories:
    completed = sum(one.completed for one in episodes)
    totals = {"delivered": completed, "completed": completed, "failed": 0, "in_flight": 0}
    return Trajectories(run_id=1, assigned_chunks=None, episodes=episodes, totals=totals)


def test_exposure_says_how_often_and_how_thoroughly_trajectories_were_used() -> None:
    found = exposure_of(trajectories(trajectory(0, 10), trajectory(1, 30), trajectory(2, 0)))
    assert found == {
        "trajectories": 3,
        "used": 2,
        "selections_per_trajectory": {"least": 0, "mean": 40 / 3, "most": 30},
        "anchors_per_frame": 0.5,
        "supervised_appearances_per_frame": 6.0,
    }


def test_exposure_of_trajectories_of_unknown_length_has_no_shares_of_frames() -> None:
    found = exposure_of(trajectories(trajectory(0, 10, length=None)))
    assert found["anchors_per_frame"] is None
    assert exposure_of(trajectories())["selections_per_trajectory"] is None


def test_generation_shares_are_of_completed_selections() -> None:
    episodes = (trajectory(0, 10), trajectory(1, 20, generation=2), trajectory(2, 10, generation=2))
    assert generation_shares(trajectories(*episodes)) == {"1": 0.25, "2": 0.75}
    assert generation_shares(trajectories()) == {}


@pytest.mark.parametrize(
    ("accounting", "before", "unaccounted", "uncounted"),
    [
        ({"assigned": 100, "delivered": 40, "remaining": 50, "retired": 10}, 0, 0, 0),
        ({"assigned": 100, "delivered": 41, "remaining": 50, "retired": 7}, 0, 2, 1),
        ({"assigned": None, "delivered": 60, "remaining": None, "retired": 0}, 20, None, 0),
    ],
)
def test_every_selection_is_accounted_for_or_missed(
    accounting: dict[str, Any], before: int, unaccounted: int | None, uncounted: int
) -> None:
    found = accounting_of({"accounting": accounting}, trajectories(trajectory(0, 40)), before)
    assert (found["unaccounted"], found["uncounted"], found["completed"]) == (unaccounted, uncounted, 40)


def test_time_to_eighty_percent_leaves_evaluations_out() -> None:
    now_s = 100.0
    journal = Journal(5.0, clock=lambda: now_s)
    meter = LearnerMeter(clock_ns=lambda: int(now_s * 1e9))
    curve = []
    for updates, rate in ((50, 0.6), (100, 0.8), (200, 1.0)):
        now_s += 10.0
        with meter.during("eval"):
            now_s += 2.0
        solved = np.arange(5) < rate * 5
        curve.append(point_of(updates, Evaluation(solved, np.zeros(5), solved), journal, meter))
    assert [point["at_s"] for point in curve] == [17.0, 29.0, 41.0]
    assert good_at_s(curve) == 25.0
    assert good_at_s(curve[:1]) is None


def test_phases_add_up_also_after_an_error_and_marks_stay() -> None:
    now_s = 0.0
    journal = Journal(clock=lambda: now_s)
    for _ in range(2):
        with pytest.raises(KeyError), journal.phase("load"):
            now_s += 1.5
            raise KeyError
        journal.mark("first")
    assert journal.phases_s == {"load": 3.0}
    assert journal.marks_s == {"first": 1.5}
    assert journal.since(2_000_000_000) == 2.0


def test_processes_are_read() -> None:
    import os

    mine = use_of(os.getpid())
    assert mine is not None
    assert mine.peak_bytes > 10_000_000
    assert mine.cpu_s > 0.0
    assert process_age_s() > 0.0
    assert use_of_child("nobody") is None
    assert use_of(2**22 + 1) is None
