"""``gym_config``: what a user says about an environment and its expert, checked before any process starts."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import VectorEnv

from odstream.errors import EnvironmentContractError
from odstream.validation import check_choice, check_finite, check_int

__all__ = ["GymConfig", "validate_gym_config"]

Reference = Callable[..., Any] | str
"""A callable that pickles, or ``"module:name"``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GymConfig:
    """A checked ``gym_config``. Exactly one of ``id`` and ``factory`` is given."""

    id: str | None = None
    """Id for `gymnasium.make`, ``"CartPole-v1"`` or ``"module:Id"``."""
    factory: Reference | None = None
    """Builds one environment, or a natively batched one of P rows. A parameter named ``num_envs`` receives P."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for `gymnasium.make` or the factory."""
    num_envs: int = 1
    """P, at least 1: episodes in progress at once."""
    vectorization: Literal["sync", "async"] = "sync"
    """Single environments are stepped in one process, or each in a process of its own. Not for a batched one."""
    expert: Reference | None = None
    """``expert(observation) -> action``; None if the environment plans demonstrations by itself."""
    success: str | None = None
    """Key of ``info`` whose truth ends an episode as accepted. None: an episode that ends by itself is accepted."""
    accept: Reference | None = None
    """``accept(episode, frames) -> bool``: the last word on an episode that succeeded."""
    seed: int | None = None
    """Seed of all scenes, at least 0. None: another one in each run."""
    instruction: str | None = None
    """Language for every episode."""
    step_dt: float | None = None
    """Control period in seconds, positive. None: what the environment declares, if it does."""
    state_key: str | None = None
    """Dotted name, inside the observation, of the flat vector that is the robot's state."""


KEYS = tuple(item.name for item in fields(GymConfig))


def validate_gym_config(gym_config: Mapping[str, Any] | GymConfig) -> GymConfig:
    """Check a ``gym_config``. Imports and builds nothing.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a key is unknown, a value is out of range, or a value cannot travel to another process.
    """
    if isinstance(gym_config, GymConfig):
        return gym_config
    if not isinstance(gym_config, Mapping):
        raise TypeError(f"gym_config must be a mapping, got {gym_config!r}")
    for key in gym_config:
        if key not in KEYS:
            close = difflib.get_close_matches(str(key), KEYS, n=1, cutoff=0.0)
            raise ValueError(
                f"gym_config has an unknown key {key!r}; did you mean {close[0]!r}? Known: {', '.join(KEYS)}"
            )
    values = dict(gym_config)
    if (values.get("id") is None) == (values.get("factory") is None):
        raise ValueError(
            "gym_config needs exactly one of 'id' and 'factory', "
            f"got id={values.get('id')!r} and factory={values.get('factory')!r}"
        )
    for key, check in _CHECKS.items():
        if values.get(key) is not None:
            values[key] = check(f"gym_config[{key!r}]", values[key])
        elif key not in _OPTIONAL:
            values.pop(key, None)
    return GymConfig(**values)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {value!r}")
    if not value.strip():
        raise ValueError(f"{name} must not be empty, got {value!r}")
    return value


def _reference(name: str, value: Any) -> Reference:
    if isinstance(value, str):
        module, colon, attribute = value.partition(":")
        if not (module and colon and attribute):
            raise ValueError(f"{name} must be a callable or 'module:name', got {value!r}")
        return value
    if not callable(value):
        raise TypeError(f"{name} must be a callable or 'module:name', got {value!r}")
    _portable(name, value)
    return value  # type: ignore[no-any-return]


def _kwargs(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must be a mapping with string keys, got {value!r}")
    _portable(name, value)
    return dict(value)


def _portable(name: str, value: Any) -> None:
    try:
        pickle.dumps(value)
    except Exception as error:
        raise ValueError(
            f"{name} cannot travel to the producer process: {value!r} does not pickle ({error}). "
            "Lambdas and local functions do not: use one of module level, functools.partial, or 'module:name'."
        ) from error


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "id": _text,
    "factory": _reference,
    "kwargs": _kwargs,
    "num_envs": lambda name, value: check_int(name, value, 1),
    "vectorization": lambda name, value: check_choice(name, value, ("sync", "async")),
    "expert": _reference,
    "success": _text,
    "accept": _reference,
    "seed": lambda name, value: check_int(name, value, 0),
    "instruction": _text,
    "step_dt": check_finite,
    "state_key": _text,
}
_OPTIONAL = tuple(item.name for item in fields(GymConfig) if item.default is None)


def resolve(reference: Reference, key: str) -> Callable[..., Any]:
    """Import what ``"module:name"`` refers to.

    Raises:
        EnvironmentContractError: If it cannot be imported or is not callable; the message names ``gym_config[key]``.
    """
    if not isinstance(reference, str):
        return reference
    module_name, _, attribute = reference.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise EnvironmentContractError(f"gym_config[{key!r}] = {reference!r} cannot be imported: {error}") from error
    if not callable(target):
        raise EnvironmentContractError(f"gym_config[{key!r}] = {reference!r} is not callable: {target!r}")
    return target  # type: ignore[no-any-return]


def build_environment(config: GymConfig) -> gym.Env[Any, Any] | VectorEnv[Any, Any, Any]:
    """Build the environment once.

    Raises:
        EnvironmentContractError: If it cannot be found or imported, or is no Gymnasium environment.
        Exception: Whatever the environment raised, unchanged.
    """
    if config.id is not None:
        try:
            return gym.make(config.id, **{"disable_env_checker": True, **config.kwargs})
        except (ImportError, gym.error.Error) as error:
            raise EnvironmentContractError(f"gym_config['id'] = {config.id!r} cannot be made: {error}") from error
    assert config.factory is not None
    factory = resolve(config.factory, "factory")
    kwargs = dict(config.kwargs)
    if "num_envs" not in kwargs and _takes_num_envs(factory):
        kwargs["num_envs"] = config.num_envs
    environment = factory(**kwargs)
    if not isinstance(environment, (gym.Env, VectorEnv)):
        raise EnvironmentContractError(
            f"gym_config['factory'] must return a gymnasium.Env or gymnasium.vector.VectorEnv, got {environment!r}"
        )
    return environment


def _takes_num_envs(factory: Callable[..., Any]) -> bool:
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False
