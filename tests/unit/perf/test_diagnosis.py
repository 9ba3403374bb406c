from __future__ import annotations

from typing import Any

import pytest

from odstream.perf.diagnosis import Diagnosis, Steady, diagnose
from odstream.perf.facts import Facts

pytestmark = pytest.mark.spec("PERF-06")


def facts(**changes: Any) -> Facts:
    """A pipeline in which nothing is remarkable, changed."""
    learner = {"wait": 0.0, "pace": 0.0, "fetch": 0.3, "compute": 0.7, "eval": 0.0, "checkpoint": 0.0, "other": 0.0}
    producer = {"busy": 1.0, "publish": 0.0, "blocked": 0.0, "starved": 0.0, "down": 0.0}
    for state in list(changes):
        for role in (learner, producer):
            if state in role:
                role[state] = changes.pop(state)
    numbers: dict[str, Any] = {
        "duration_s": 10.0,
        "steps": 20,
        "intervals": 5,
        "step_s": 0.5,
        "step_skew_s": 0.0,
        "data_s": 0.15,
        "compute_s": 0.35,
        "wait_s": 0.0,
        "train_per_s": 100.0,
        "infer_per_s": 100.0,
        "infer_stale": False,
        "call_s": 1.0,
        "thru_per_s": 100.0,
        "slots": 4,
        "slots_down": 0,
        "accepted": 100,
        "failed": 0,
        "lost": 0,
        "age_p50_s": None,
        "age_p95_s": None,
    }
    return Facts(**{**numbers, **changes}, learner=learner, producer=producer)


@pytest.mark.parametrize(
    ("changes", "verdict", "cause"),
    [
        ({"steps": 19}, "insufficient", ""),
        ({"intervals": 4}, "insufficient", ""),
        ({"pace": 0.05}, "paced by plan", ""),
        ({"pace": 0.05, "blocked": 0.5}, "paced by plan", ""),
        ({"pace": 0.049}, "balanced", ""),
        ({"pace": 0.05, "wait": 0.10}, "production", ""),
        ({"wait": 0.10}, "production", ""),
        ({"wait": 0.099}, "balanced", ""),
        ({"wait": 0.10, "blocked": 0.099}, "production", ""),
        ({"wait": 0.10, "starved": 0.20}, "production", "tasks"),
        ({"wait": 0.10, "starved": 0.199}, "production", ""),
        ({"wait": 0.10, "busy": 0.7, "publish": 0.3}, "production", "publication"),
        ({"wait": 0.10, "busy": 0.71, "publish": 0.29}, "production", ""),
        ({"blocked": 0.10, "data_s": 0.6, "compute_s": 0.4}, "training", "data path"),
        ({"blocked": 0.10, "data_s": 0.25, "compute_s": 0.75}, "training", "compute"),
        ({"blocked": 0.10, "data_s": 0.4, "compute_s": 0.6}, "training", "data path and compute"),
        ({"blocked": 0.10, "wait": 0.10}, "buffer", ""),
        ({"other": 0.15}, "overhead", "other"),
        ({"other": 0.05, "eval": 0.06, "checkpoint": 0.05}, "overhead", "eval"),
        ({"other": 0.05, "eval": 0.09}, "balanced", ""),
        ({"blocked": 0.5, "eval": 0.5, "fetch": 0.1, "compute": 0.4}, "overhead", "eval"),
        (
            {"blocked": 0.5, "eval": 0.49, "fetch": 0.1, "compute": 0.41, "data_s": 0.2},
            "training",
            "data path and compute",
        ),
        ({}, "balanced", ""),
    ],
)
def test_each_rule_holds_from_its_threshold_on(changes: dict[str, Any], verdict: str, cause: str) -> None:
    found = diagnose(facts(**changes))
    assert (found.verdict, found.cause) == (verdict, cause)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"down": 0.05, "slots_down": 2}, "producers down: 2 of 4 now"),
        ({"failed": 2}, "2% of the generations failed"),
        ({"lost": 2}, "2% of the generations were lost"),
        ({"steps": 0, "down": 1.0, "slots_down": 4}, "producers down: 4 of 4 now"),
        ({"wait": 0.2, "infer_per_s": 200.0}, "capacity not realised: I = 200.0 > T = 100.0"),
        ({"blocked": 0.2, "train_per_s": 200.0}, "capacity not realised: T = 200.0 > I = 100.0"),
        ({"thru_per_s": 79.0}, "capacity not realised: thru = 79.0 is 79% of min"),
        ({"wait": 0.2, "infer_per_s": 25.0, "thru_per_s": 25.0}, "4.0 times the producers, or a reuse K larger"),
    ],
)
def test_what_is_remarkable_is_said(changes: dict[str, Any], words: str) -> None:
    assert words in str(diagnose(facts(**changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"down": 0.049},
        {"failed": 1},
        {"thru_per_s": 81.0},
        {"pace": 0.5, "thru_per_s": 10.0},  # deliberate
        {"wait": 0.2, "infer_per_s": 105.0},  # equal, as far as can be measured
        {"infer_per_s": None, "thru_per_s": 1.0},
        {"blocked": 0.2, "infer_per_s": 4.0, "train_per_s": 6400.0, "reuse_known": False},
        {"infer_per_s": 400.0, "thru_per_s": 10.0, "reuse_known": False},
    ],
)
def test_what_is_not_remarkable_is_not_said(changes: dict[str, Any]) -> None:
    assert diagnose(facts(**changes)).notes == ()


def test_without_a_known_reuse_no_number_of_producers_is_advised() -> None:
    found = diagnose(facts(wait=0.2, infer_per_s=4.0, train_per_s=400.0, reuse_known=False))
    assert (found.verdict, found.advice) == ("production", "more producers, or a faster simulation")


def test_a_verdict_changes_only_after_two_equal_windows() -> None:
    production, training = Diagnosis("production"), Diagnosis("training", "compute")
    other_cause = Diagnosis("training", "data path")
    steady = Steady()
    sequence = [production, production, training, production, training, other_cause, training, training, other_cause]
    assert [steady.update(one).verdict for one in sequence] == [
        "insufficient",
        *["production"] * 6,
        "training",
        "training",
    ]
    assert steady.current.cause == "compute"


def test_while_a_verdict_holds_its_advice_is_the_newest() -> None:
    steady = Steady()
    for advice in ("first", "second", "third"):
        steady.update(Diagnosis("production", advice=advice))
    assert steady.current.advice == "third"
