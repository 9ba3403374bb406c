"""Every setting of the engine: its default, its range, and a clear refusal before any process starts."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.errors import EngineStateError
from odstream.validation import INT64_MAX
from tests.fakes.producers import Script

POSITIVE_INTS = ["buffer_size", "max_episode_steps", "refill_threshold", "max_generation_attempts"]
POSITIVE_INTS += ["language_buffer_bytes", "episode_sample_budget", "episode_sample_hard_limit"]
WIDTHS = ["state_dim", "action_dim"]
SECONDS = ["initialization_timeout", "shutdown_timeout"]
BUDGET = {"episode_sample_budget": 3, "episode_sample_hard_limit": 3}


def cfg(**changes: Any) -> OnlineDataEngineCfg:
    pair = BUDGET if set(BUDGET) & set(changes) else {}
    return OnlineDataEngineCfg(**(pair | changes))


@pytest.mark.spec("ENG-02")
def test_these_are_the_defaults() -> None:
    assert {field.name: getattr(cfg(), field.name) for field in fields(OnlineDataEngineCfg)} == {
        "gym_config": {},
        "buffer_size": 16,
        "max_episode_steps": 300,
        "state_dim": None,
        "action_dim": None,
        "action_semantics": "expert_controller_command",
        "action_contracts": None,
        "action_config": {},
        "refill_policy": "sample_threshold",
        "refill_threshold": 50,
        "episode_sample_budget": None,
        "episode_sample_hard_limit": None,
        "include_provenance": False,
        "lifecycle_event_capacity": 0,
        "max_generation_attempts": 3,
        "initialization_timeout": 300.0,
        "shutdown_timeout": 5.0,
        "buffer_device": "cpu",
        "language_buffer_bytes": 2**20,
    }


def test_settings_are_named_and_cannot_be_changed_or_invented() -> None:
    with pytest.raises(TypeError):
        OnlineDataEngineCfg({}, 4)  # type: ignore[misc]
    with pytest.raises(TypeError, match="buffer_sise"):
        OnlineDataEngineCfg(buffer_sise=4)  # type: ignore[call-arg]
    with pytest.raises((FrozenInstanceError, AttributeError)):
        cfg().buffer_size = 4  # type: ignore[misc]


@pytest.mark.spec("ENG-02", "QUOTA-01")
@pytest.mark.parametrize("value", [True, 1.0, math.nan, "4", [4], 4 + 0j])
@pytest.mark.parametrize("name", POSITIVE_INTS + WIDTHS + ["lifecycle_event_capacity"])
def test_a_count_of_the_wrong_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be an int, got "):
        cfg(**{name: value})


@pytest.mark.spec("ENG-02", "QUOTA-01")
@pytest.mark.parametrize("value", [0, -1, -(2**70), 2**63])
@pytest.mark.parametrize("name", POSITIVE_INTS + WIDTHS)
def test_a_count_out_of_range_is_refused(name: str, value: int) -> None:
    """Field case N07."""
    with pytest.raises(ValueError, match=f"^{name} must be at least 1.*, got {value}$"):
        cfg(**{name: value})


@pytest.mark.parametrize("name", set(POSITIVE_INTS + WIDTHS) - {"episode_sample_hard_limit", "episode_sample_budget"})
def test_the_smallest_count_is_one(name: str) -> None:
    assert getattr(cfg(**{name: 1}), name) == 1


@pytest.mark.parametrize("name", POSITIVE_INTS[:5] + ["lifecycle_event_capacity"])
def test_a_required_count_cannot_be_left_out(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be an int, got None"):
        cfg(**{name: None})


@pytest.mark.spec("ENG-02")
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, -math.inf, pytest.param(10**400, id="huge")])
@pytest.mark.parametrize("name", SECONDS)
def test_a_time_is_finite_and_positive(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be finite and greater than 0, got "):
        cfg(**{name: value})


@pytest.mark.parametrize("value", [True, "5", None])
@pytest.mark.parametrize("name", SECONDS)
def test_a_time_is_a_number(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be a number, got "):
        cfg(**{name: value})


@pytest.mark.spec("QUOTA-01")
@pytest.mark.parametrize(
    ("budget", "limit", "message"),
    [
        (3, None, "must be given together or not at all, got 3 and None"),
        (None, 3, "must be given together or not at all, got None and 3"),
        (4, 3, "episode_sample_budget must be at most episode_sample_hard_limit=3, got 4"),
        (INT64_MAX, INT64_MAX, rf"episode_sample_budget \* buffer_size must be at most {INT64_MAX}"),
        (2**59, 2**60, rf"episode_sample_budget \* buffer_size must be at most {INT64_MAX}.*, got {2**59} \* 16"),
    ],
)
def test_budget_and_limit_must_fit_each_other(budget: int | None, limit: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cfg(episode_sample_budget=budget, episode_sample_hard_limit=limit)


@pytest.mark.spec("QUOTA-01")
@pytest.mark.parametrize(
    ("budget", "limit", "slots"), [(1, 1, 1), (3, 5, 2), (2**59 - 1, INT64_MAX, 16), (INT64_MAX, INT64_MAX, 1)]
)
def test_budgets_up_to_what_can_be_counted_are_fine(budget: int, limit: int, slots: int) -> None:
    settings = cfg(
        episode_sample_budget=budget, episode_sample_hard_limit=limit, buffer_size=slots, refill_policy="manual"
    )
    assert settings.episode_sample_budget == budget


@pytest.mark.parametrize("budget", [3, 4])
def test_budgets_that_are_used_up_before_a_refill_starts_by_itself_are_refused(budget: int) -> None:
    """The learner would be told to wait for a refill that never comes."""
    with pytest.raises(ValueError, match=rf"must be greater than refill_threshold=4, got {budget}"):
        cfg(episode_sample_budget=budget, episode_sample_hard_limit=9, refill_threshold=4)
    assert cfg(episode_sample_budget=5, episode_sample_hard_limit=9, refill_threshold=4)


@pytest.mark.spec("ENG-23")
@pytest.mark.parametrize(("capacity", "slots"), [(2, 4), (3, 4), (1, 1), (-1, 4)])
def test_a_log_that_would_hold_production_back_for_ever_is_refused(capacity: int, slots: int) -> None:
    """Field case Q01."""
    with pytest.raises(ValueError, match=f"^lifecycle_event_capacity must be .*at least .*, got {capacity}$"):
        cfg(lifecycle_event_capacity=capacity, buffer_size=slots)


@pytest.mark.parametrize(("capacity", "slots"), [(0, 4), (4, 4), (5, 4), (2, 1), (2, 2)])
def test_a_log_that_holds_the_initial_fill_and_one_replacement_is_fine(capacity: int, slots: int) -> None:
    """Field case Q01."""
    assert cfg(lifecycle_event_capacity=capacity, buffer_size=slots).lifecycle_event_capacity == capacity


@pytest.mark.spec("ENG-02", "ENG-18")
@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("refill_policy", "automatic", ValueError, "one of 'sample_threshold', 'manual', got 'automatic'"),
        ("refill_policy", None, ValueError, "one of 'sample_threshold', 'manual', got None"),
        ("include_provenance", 1, TypeError, "must be a bool, got 1"),
        ("include_provenance", None, TypeError, "must be a bool, got None"),
        ("buffer_device", "cuda:0", ValueError, "must be 'cpu'.*, got 'cuda:0'"),
        ("buffer_device", None, ValueError, "must be 'cpu'.*, got None"),
        ("gym_config", None, TypeError, "must be a mapping, got NoneType"),
        ("gym_config", [("id", "x")], TypeError, "must be a mapping, got list"),
    ],
)
def test_other_settings_are_checked_as_well(name: str, value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{name} {message}" if name != "refill_policy" else message):
        cfg(**{name: value})
    if name == "buffer_device":
        with pytest.raises(error, match=name):
            cfg(**{name: value}, **BUDGET)


REQUESTS = {"action_semantics": "policy_request", "action_dim": 7, "action_contracts": ("a@1", "b@2")}


@pytest.mark.spec("ENG-02", "ENG-20")
def test_requests_need_a_width_and_contracts() -> None:
    assert cfg(**REQUESTS).action_contracts == ("a@1", "b@2")
    for missing in ({"action_dim": None}, {"action_contracts": None}, {"action_contracts": ()}):
        with pytest.raises(ValueError, match="'policy_request' needs action_dim and at least one of action_contracts"):
            cfg(**(REQUESTS | missing))


@pytest.mark.spec("ENG-02", "ENG-20")
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"action_semantics": "request"}, ValueError, "^action_semantics must be one of .*, got 'request'"),
        ({"action_semantics": None}, ValueError, "^action_semantics must be one of .*, got None"),
        ({"action_contracts": ["a@1"]}, TypeError, r"^action_contracts must be a tuple .*, got \['a@1'\]"),
        ({"action_contracts": "a@1"}, TypeError, "^action_contracts must be a tuple .*, got 'a@1'"),
        ({"action_contracts": ("a@1", "gripper")}, ValueError, "^action_contracts.1. must be 'word.word@version'"),
        ({"action_contracts": (2,)}, ValueError, "^action_contracts.0. must be 'word.word@version'.*got 2"),
        (
            {"action_semantics": "expert_controller_command"},
            ValueError,
            "^action_contracts must be None unless action_semantics is 'policy_request', got .'a@1', 'b@2'. with",
        ),
        ({"action_config": [("scale", 1)]}, TypeError, "^action_config must be a mapping with string keys"),
        ({"action_config": {1: 2}}, TypeError, "^action_config must be a mapping with string keys, got {1: 2}"),
        ({"action_config": {"f": lambda: 0}}, ValueError, "^action_config cannot travel to the producer process"),
    ],
)
def test_what_is_recorded_must_be_said_without_contradiction(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cfg(**(REQUESTS | changes))


@pytest.mark.parametrize("value", [None, {}, OnlineDataEngineCfg])
def test_an_engine_needs_its_configuration(value: Any) -> None:
    with pytest.raises(TypeError, match="^cfg must be an OnlineDataEngineCfg, got "):
        OnlineDataEngine(value)


# ------------------------------------------------------------- arguments of sampling calls


def engine() -> OnlineDataEngine:
    """An engine that was never started: arguments are checked before its state."""
    return OnlineDataEngine(cfg(max_episode_steps=20), producer=Script())


@pytest.mark.spec("ENG-15")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 4), ValueError, "^batch_size must be at least 1, got 0"),
        ((True, 4), TypeError, "^batch_size must be an int, got True"),
        ((4.0, 4), TypeError, "^batch_size must be an int, got 4.0"),
        ((4, 0), ValueError, "^chunk_size must be at least 1 and at most 20, got 0"),
        ((4, 21), ValueError, "^chunk_size must be at least 1 and at most 20, got 21"),
        ((4, None), TypeError, "^chunk_size must be an int"),
        ((4, 4, "frames"), ValueError, "^sampling_mode must be one of 'episode', 'segment', 'boundary', got 'frames'"),
        ((4, 4, None), ValueError, "^sampling_mode must be one of"),
        ((4, 1, "boundary"), ValueError, "^chunk_size must be at least 2 in sampling_mode 'boundary', got 1"),
    ],
)
def test_a_chunk_that_cannot_exist_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    """Field case W17."""
    with pytest.raises(error, match=message):
        engine().sample_batch(*arguments)


@pytest.mark.spec("CTX-01", "CTX-04")
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "^batch_size must be at least 1"),
        ({"history_length": 0}, ValueError, "^history_length must be at least 1 and at most 20, got 0"),
        ({"history_length": 21}, ValueError, "^history_length must be at least 1 and at most 20, got 21"),
        ({"prediction_horizon": 0}, ValueError, "^prediction_horizon must be at least 1 and at most 20, got 0"),
        ({"prediction_horizon": True}, TypeError, "^prediction_horizon must be an int, got True"),
        ({"sampling_mode": "boundary"}, ValueError, "^sampling_mode must be one of 'episode', 'segment', got"),
        ({"generations": ()}, ValueError, "^generations must be None or a tuple of at least one generation"),
        ({"generations": [1]}, ValueError, "^generations must be None or a tuple"),
        ({"generations": 1}, ValueError, "^generations must be None or a tuple"),
        ({"generations": (0,)}, ValueError, "^generations must be at least 1, got 0"),
        ({"generations": (True,)}, TypeError, "^generations must be an int, got True"),
        ({"generator": 7}, TypeError, "^generator must be a torch.Generator or None, got 7"),
    ],
)
def test_a_context_that_cannot_exist_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        engine().sample_batch_with_context(
            **({"batch_size": 4, "history_length": 2, "prediction_horizon": 3} | changes)
        )


@pytest.mark.spec("ENG-04")
def test_good_arguments_meet_the_state_of_the_engine() -> None:
    for call in (lambda: engine().sample_batch(4, 20), lambda: engine().sample_batch_with_context(4, 20, 20)):
        with pytest.raises(EngineStateError, match="needs a READY engine, this one is CREATED"):
            call()


def test_a_cache_smaller_than_the_batch_of_environments_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"buffer_size must be at least gym_config\['num_envs'\]=4, got 2"):
        OnlineDataEngineCfg(gym_config={"id": "CartPole-v1", "num_envs": 4}, buffer_size=2)
