"""A Gymnasium environment with an expert, or with demonstrations of its own, as a producer.

Three ways of stepping, one behaviour: P single environments in this process, each in a process of its own, or one
natively batched environment. What is the same in all of them:

* A frame is the observation that was seen, the action that was chosen on it, and the reward of that step.
* Nothing is clipped. The action is stored and given to the environment as the expert chose it; where the
  environment has an action manager, as `odstream.producers.action_recording` says.
* Scene ``k`` of attempt ``n`` is reset with ``scene_seed(seed, k, n)``. With the same ``gym_config`` the episodes are
  bitwise the same in every run. Single environments, and natively batched ones without autoreset whose rows do not
  influence each other, also give the same set of episodes for any P; their order depends on P.
* An expert may keep state if it has ``reset(observation)``, called at the start of every episode (a batched one:
  ``reset(observation, rows)`` with ``[P]`` flags of the rows that begin). Each single environment has its own copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gymnasium.vector import VectorEnv

from odstream.errors import EnvironmentContractError
from odstream.producers.base import Episode, ProducerContext, RolloutSpec, Staging, never
from odstream.producers.gym_config import GymConfig, build_environment, resolve, validate_gym_config
from odstream.producers.player import Description, Player, build_player, close_after
from odstream.producers.processes import RemotePlayer
from odstream.producers.recording import Recorder, Scenes
from odstream.producers.seats import SingleEnvironments
from odstream.producers.spaces import REWARD, Leaf, action_width
from odstream.producers.vector import BatchedEnvironment

__all__ = ["EnvironmentProducerFactory", "GymConfig", "GymEnvironmentProducer", "validate_gym_config"]

STATE_NAMES = ("state", "agent_pos")
"""Top-level observation fields that are taken for the robot's state where none is named."""


class Stage(Protocol):
    """Environments of one kind."""

    @property
    def description(self) -> Description:
        """What is recorded."""

    def produce(self, scenes: Scenes, recorder: Recorder, should_stop: Callable[[], bool]) -> Iterator[Episode]:
        """Yield finished attempts until every open scene was accepted."""

    def close(self) -> None:
        """Close the environments. Idempotent."""


@dataclass(frozen=True, slots=True)
class EnvironmentProducerFactory:
    """Builds a `GymEnvironmentProducer` in the worker process. Pickles if ``gym_config`` does."""

    gym_config: Mapping[str, Any] | GymConfig

    def __post_init__(self) -> None:
        validate_gym_config(self.gym_config)

    def __call__(self, context: ProducerContext) -> GymEnvironmentProducer:
        """Build the environments."""
        return GymEnvironmentProducer(self.gym_config, context)


class GymEnvironmentProducer:
    """A `Producer` over any Gymnasium environment. Construction builds the environments; `close` ends them.

    Raises:
        TypeError, ValueError: As `validate_gym_config` says.
        EnvironmentContractError: If the environment cannot be imported, has neither an expert nor demonstrations,
            or does not record what can be stored.
        Exception: Whatever the environment raised, unchanged.
    """

    def __init__(self, gym_config: Mapping[str, Any] | GymConfig, context: ProducerContext) -> None:
        config = with_action_config(validate_gym_config(gym_config), context.action_config)
        self._config = config
        self._limit = context.max_episode_steps
        self._accept = None if config.accept is None else resolve(config.accept, "accept")
        self._scenes = Scenes(config.seed, context.max_generation_attempts)
        self._stage = build_stage(config, context)
        try:
            self._spec = rollout_spec(config, self._stage.description)
        except BaseException:
            self._stage.close()
            raise

    @property
    def spec(self) -> RolloutSpec:
        """What will be recorded."""
        return self._spec

    def produce(self, count: int, staging: Staging, *, should_stop: Callable[[], bool] = never) -> Iterator[Episode]:
        """Yield finished attempts until ``count`` scenes were accepted; see `Producer.produce`.

        After an early end by ``should_stop``, rows that were claimed and not given away are the caller's again.

        Raises:
            DemonstrationError: If one scene failed ``max_generation_attempts`` times.
            EnvironmentContractError: If a number is not finite, or a value is not what its space declares.
            ChildProcessError: If an environment's process died.
            Exception: Whatever the environment, the plan, the expert or the validator raised, unchanged.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"count must be a positive integer, got {count!r}")
        recorder = Recorder(
            self._spec,
            staging,
            max_episode_steps=self._limit,
            accept=self._accept,
            instruction=self._config.instruction,
        )
        self._scenes.open(count)
        return self._stage.produce(self._scenes, recorder, should_stop)

    def close(self) -> None:
        """Close the environments and end their processes. Idempotent.

        Raises:
            Exception: Whatever an environment raised while it was closed, after all were.
        """
        self._stage.close()


def with_action_config(config: GymConfig, action_config: Mapping[str, Any]) -> GymConfig:
    """Let the environment be built with ``action_config`` as a keyword argument, where that is not empty.

    Raises:
        ValueError: If its own keyword arguments hold one as well.
    """
    if not action_config:
        return config
    if "action_config" in config.kwargs:
        raise ValueError("action_config must be given once: as a setting of the engine, or in gym_config['kwargs']")
    return replace(config, kwargs={**config.kwargs, "action_config": dict(action_config)})


def build_stage(config: GymConfig, context: ProducerContext) -> Stage:
    """Build the environments and their drivers. Nothing stays open or running if that fails."""
    players: list[Player] = []
    try:
        if config.vectorization == "async":
            players.extend(RemotePlayer(config, context, index) for index in range(config.num_envs))
            return SingleEnvironments(players)
        environment = build_environment(config)
        if isinstance(environment, VectorEnv):
            return build_batched(environment, config, context)
        players.append(build_player(config, context, environment))
        players.extend(build_player(config, context) for _ in range(config.num_envs - 1))
        return SingleEnvironments(players)
    except BaseException as error:
        close_after(error, *players)
        raise


def build_batched(
    environment: VectorEnv[Any, Any, Any], config: GymConfig, context: ProducerContext
) -> BatchedEnvironment:
    """Wrap a natively batched environment; it is closed if that fails."""
    try:
        return BatchedEnvironment(environment, config, context)
    except BaseException as error:
        close_after(error, environment)
        raise


def rollout_spec(config: GymConfig, description: Description) -> RolloutSpec:
    """Assemble what is recorded: the observation's leaves, then ``actions``, then ``rewards``."""
    leaves = (*description.observation, description.action, REWARD)
    report = description.report
    return RolloutSpec(
        num_envs=config.num_envs,
        fields={leaf.key: leaf.spec for leaf in leaves},
        state_dim=state_width(config.state_key, description.observation),
        action_dim=action_width(description.action),
        step_dt=config.step_dt or description.step_dt,
        action_semantics=report.semantics,
        action_descriptors=report.descriptors,
        expert_action_spec=report.expert_action_spec,
        joint_names=report.joint_names,
    )


def state_width(state_key: str | None, leaves: Sequence[Leaf]) -> int | None:
    """Width of the robot's state: the named field, else a flat observation, else one with a usual name, else None.

    Raises:
        EnvironmentContractError: If the named field does not exist or is no flat vector.
    """
    flat = {leaf.key: leaf.spec.shape[0] for leaf in leaves if len(leaf.spec.shape) == 1}
    if state_key is None:
        usual = [("obs",), *(("obs", name) for name in STATE_NAMES)]
        return next((flat[key] for key in usual if key in flat), None)
    key = ("obs", *state_key.split("."))
    if key not in flat:
        vectors = [".".join(key[1:]) for key in flat if len(key) > 1]
        raise EnvironmentContractError(
            f"gym_config['state_key'] = {state_key!r} is no flat vector of the observation; those are {vectors}"
        )
    return flat[key]
