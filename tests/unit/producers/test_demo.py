"""Plans, played lazily."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from odstream.errors import EnvironmentContractError
from odstream.producers.base import Segment
from odstream.producers.demo import Command, DemoSegment, SegmentLog, Verdict, as_flags, find_method, has_plan, play
from tests.fakes.environments import ActionListEnv, CountingEnv, SegmentEnv, SegmentVectorEnv


class Planner:
    """Offers whatever segments it was given."""

    def __init__(self, *segments: Any) -> None:
        self.segments = segments

    def create_demo_segments(self) -> Any:
        return self.segments


class JudgingPlanner(Planner):
    def is_task_success(self) -> list[bool]:
        return [True, False]


def verdicts(environment: Any, num_rows: int = 1) -> list[Verdict]:
    return [item for item in play(environment, num_rows) if isinstance(item, Verdict)]


@pytest.mark.spec("ENG-14")
def test_a_segment_is_planned_only_after_the_one_before_was_executed_and_validated() -> None:
    environment = SegmentEnv(plan=(("a", 2), ("b", 1)))
    environment.reset()
    for item in play(environment):
        if isinstance(item, Command):
            environment.step(item.action)
    assert environment.log == [
        *("plan a", "step 0", "step 1", "validate a"),
        *("plan b", "step 2", "validate b"),
        "cleanup",
    ]


def test_a_plan_that_is_given_up_is_closed_at_once() -> None:
    closed = []

    def actions() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append("actions")

    plan = play(Planner(DemoSegment(actions())))
    next(plan)
    plan.close()  # type: ignore[attr-defined]
    assert closed == ["actions"]

    environment = SegmentEnv()
    environment.reset()
    plan = play(environment)
    next(plan)
    plan.close()  # type: ignore[attr-defined]
    assert environment.log[-1] == "cleanup"


@pytest.mark.spec("ENG-14")
def test_an_action_list_is_one_segment() -> None:
    environment = ActionListEnv(count=3)
    environment.reset()
    items = list(play(environment))
    assert [(item.index, item.segment.name) for item in items if isinstance(item, Command)] == [(0, "episode")] * 3
    assert [bool(item.passed[0]) for item in items if isinstance(item, Verdict)] == [True]


def test_an_array_of_actions_is_a_list_of_actions() -> None:
    commands = [item for item in play(Planner(DemoSegment(np.zeros((4, 2))))) if isinstance(item, Command)]
    assert len(commands) == 4


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (Planner(), "planned no segment"),
        (Planner(DemoSegment([], name="idle")), "segment 'idle' has no actions"),
    ],
)
def test_an_empty_plan_is_a_failure_in_words(environment: Any, reason: str) -> None:
    (verdict,) = verdicts(environment, 2)
    assert not verdict.passed.any()
    assert reason in verdict.reason


def test_no_action_list_is_a_failure_in_words() -> None:
    environment = ActionListEnv(unplannable=(1,))
    environment.reset()
    (verdict,) = verdicts(environment)
    assert (bool(verdict.passed[0]), verdict.reason) == (False, "segment 'episode' has no actions")


def test_a_validator_answers_for_each_row() -> None:
    segment = DemoSegment([0], name="s", validator=lambda: [True, False], failure_policy="row_independent")
    (verdict,) = verdicts(Planner(segment), 2)
    assert verdict.passed.tolist() == [True, False]
    assert verdict.reason == "validator of segment 's' said no"
    assert not verdict.aborts_batch


def test_the_task_has_the_last_word_after_its_plan() -> None:
    first, last = verdicts(JudgingPlanner(DemoSegment([0])), 2)
    assert first.passed.all()
    assert last.passed.tolist() == [True, False]
    assert "is_task_success" in last.reason


@pytest.mark.parametrize("value", [None, "yes", [True, False, True], np.nan, [[]]])
def test_anything_but_flags_is_refused_by_name(value: Any) -> None:
    with pytest.raises(EnvironmentContractError, match="validator of segment 's' must give a flag or 2 flags"):
        as_flags(value, 2, "validator of segment 's'")


@pytest.mark.parametrize("value", [True, 1, 1.0, np.True_, [1, 1], np.ones((2, 1))])
def test_flags_come_in_many_forms(value: Any) -> None:
    assert as_flags(value, 2, "x").tolist() == [True, True]


def test_a_plan_of_something_else_is_refused() -> None:
    with pytest.raises(EnvironmentContractError, match="must give DemoSegment objects, got 5"):
        next(iter(play(Planner(5))))


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"actions": 5}, TypeError, "actions"),
        ({"actions": "abc"}, TypeError, "actions"),
        ({"actions": [], "name": ""}, ValueError, "name"),
        ({"actions": [], "name": 3}, ValueError, "name"),
        ({"actions": [], "instruction": 3}, TypeError, "instruction"),
        ({"actions": [], "validator": True}, TypeError, "validator"),
        ({"actions": [], "failure_policy": "ignore"}, ValueError, "failure_policy"),
    ],
)
def test_a_wrong_segment_is_refused_and_the_field_named(
    arguments: dict[str, Any], error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=rf"DemoSegment\.{name}"):
        DemoSegment(**arguments)


def test_plans_are_found_through_wrappers() -> None:
    wrapped = gym.wrappers.TimeLimit(SegmentEnv(), 5)
    assert has_plan(wrapped)
    assert find_method(wrapped, "create_demo_segments") is not None
    assert has_plan(SegmentVectorEnv(2))
    assert not has_plan(gym.wrappers.TimeLimit(CountingEnv(), 5))


def test_the_log_covers_every_frame_with_consecutive_segments() -> None:
    log = SegmentLog()
    a, b = DemoSegment([], name="a", instruction="do a"), DemoSegment([], name="b")
    for frame, (index, segment) in enumerate([(0, a), (0, a), (1, b), (1, b)]):
        log.note(Command(0, segment, index), frame)
    assert log.segments(4) == (
        Segment(start=0, end=2, name="a", instruction="do a"),
        Segment(start=2, end=4, name="b"),
    )
    assert log.segments(2) == (Segment(start=0, end=2, name="a", instruction="do a"),)
    assert log.segments(0) == ()
