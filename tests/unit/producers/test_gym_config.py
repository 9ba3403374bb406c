"""What is refused before any process starts, and in which words."""

from __future__ import annotations

import functools
import math
import pickle
from typing import Any

import gymnasium as gym
import pytest

from odstream.errors import EnvironmentContractError
from odstream.producers.environment import EnvironmentProducerFactory
from odstream.producers.gym_config import KEYS, GymConfig, build_environment, resolve, validate_gym_config
from tests.fakes.environments import CountingEnv, CountingVectorEnv, plus_hundred


def config(**changes: Any) -> dict[str, Any]:
    return {"factory": CountingEnv, "expert": plus_hundred, **changes}


def test_the_defaults_are_one_environment_in_this_process() -> None:
    checked = validate_gym_config({"id": "CartPole-v1"})
    assert (checked.num_envs, checked.vectorization, checked.seed, dict(checked.kwargs)) == (1, "sync", None, {})


def test_none_means_the_default() -> None:
    assert validate_gym_config({"id": "CartPole-v1", **dict.fromkeys(set(KEYS) - {"id"})}) == GymConfig(
        id="CartPole-v1"
    )


def test_checking_twice_changes_nothing() -> None:
    checked = validate_gym_config(config())
    assert validate_gym_config(checked) is checked


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("num_env", "num_envs"), ("vectorisation", "vectorization"), ("exprt", "expert"), ("sede", "seed")],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(typo: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"unknown key '{typo}'; did you mean '{meant}'"):
        validate_gym_config(config(**{typo: 1}))


@pytest.mark.parametrize("both", [{}, {"id": "CartPole-v1", "factory": CountingEnv}])
def test_exactly_one_of_id_and_factory_is_needed(both: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of 'id' and 'factory'"):
        validate_gym_config(both)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("num_envs", True, TypeError),
        ("num_envs", 2.0, TypeError),
        ("num_envs", 0, ValueError),
        ("num_envs", -1, ValueError),
        ("vectorization", "threads", ValueError),
        ("vectorization", 1, ValueError),
        ("expert", 3, TypeError),
        ("expert", "no_colon", ValueError),
        ("expert", ":name", ValueError),
        ("factory", "module:", ValueError),
        ("accept", [], TypeError),
        ("success", True, TypeError),
        ("success", " ", ValueError),
        ("seed", False, TypeError),
        ("seed", -1, ValueError),
        ("seed", 1.5, TypeError),
        ("kwargs", [1], TypeError),
        ("kwargs", {1: 2}, TypeError),
        ("instruction", "", ValueError),
        ("instruction", 5, TypeError),
        ("step_dt", 0, ValueError),
        ("step_dt", math.nan, ValueError),
        ("step_dt", math.inf, ValueError),
        ("step_dt", "0.05", TypeError),
        ("step_dt", True, TypeError),
        ("state_key", 1, TypeError),
    ],
)
def test_a_wrong_value_is_refused_and_named(key: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"gym_config\['{key}'\]"):
        validate_gym_config(config(**{key: value}))


@pytest.mark.parametrize("value", [None, 3, [("id", "CartPole-v1")]])
def test_a_config_that_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="gym_config must be a mapping"):
        validate_gym_config(value)


@pytest.mark.parametrize("key", ["expert", "factory", "accept"])
def test_a_lambda_is_refused_before_any_process_starts(key: str) -> None:
    """Field case U03."""
    with pytest.raises(ValueError, match=rf"gym_config\['{key}'\] cannot travel .*lambda.*does not pickle"):
        EnvironmentProducerFactory(config(**{key: lambda *_: None}))


def test_a_local_function_inside_the_arguments_is_refused() -> None:
    """Field case U03."""

    def local() -> None: ...

    with pytest.raises(ValueError, match=r"gym_config\['kwargs'\] cannot travel"):
        validate_gym_config(config(kwargs={"callback": local}))


def test_what_was_accepted_travels() -> None:
    """Field case U03."""
    factory = EnvironmentProducerFactory(config(expert=functools.partial(plus_hundred), kwargs={"lengths": (3,)}))
    assert pickle.loads(pickle.dumps(factory)).gym_config["kwargs"] == {"lengths": (3,)}


def test_a_name_is_resolved_to_what_it_names() -> None:
    assert resolve("tests.fakes.environments:plus_hundred", "expert") is plus_hundred
    assert resolve(plus_hundred, "expert") is plus_hundred


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("tests.fakes.environments:missing", "cannot be imported: .*'missing'"),
        ("tests.fakes.environments:RESET_REWARD", "is not callable"),
    ],
)
def test_a_name_that_leads_nowhere_is_named(reference: str, words: str) -> None:
    with pytest.raises(EnvironmentContractError, match=rf"gym_config\['expert'\] = '{reference}' {words}"):
        resolve(reference, "expert")


@pytest.mark.parametrize("name", ["NoSuchEnv-v0", "no_such_module:Env-v0", "CartPole-v99"])
def test_an_id_that_cannot_be_made_is_named(name: str) -> None:
    with pytest.raises(EnvironmentContractError, match=rf"gym_config\['id'\] = '{name}' cannot be made"):
        build_environment(validate_gym_config({"id": name}))


def test_a_factory_must_return_an_environment() -> None:
    with pytest.raises(EnvironmentContractError, match="must return a gymnasium.Env"):
        build_environment(validate_gym_config({"factory": dict}))


def test_an_id_is_made_with_its_arguments() -> None:
    environment = build_environment(validate_gym_config({"id": "CartPole-v1", "kwargs": {"max_episode_steps": 7}}))
    assert isinstance(environment, gym.Env)
    assert environment.spec is not None
    assert environment.spec.max_episode_steps == 7
    environment.close()


def test_a_factory_that_takes_num_envs_receives_it() -> None:
    environment = build_environment(validate_gym_config({"factory": CountingVectorEnv, "num_envs": 5}))
    assert isinstance(environment, CountingVectorEnv)
    assert environment.num_envs == 5


def test_a_factory_can_be_given_by_name() -> None:
    built = build_environment(
        validate_gym_config({"factory": "tests.fakes.environments:CountingEnv", "kwargs": {"lengths": (9,)}})
    )
    assert isinstance(built, CountingEnv)
    assert built.lengths == (9,)
