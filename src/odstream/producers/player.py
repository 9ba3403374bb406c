"""One environment and whoever drives it, an expert or the environment's own plan, frame by frame.

A frame pairs an observation with the action that was chosen on it and the reward of that step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from odstream.errors import EnvironmentContractError
from odstream.producers.action_recording import ActionChannel, ActionReport, Taken, open_channel
from odstream.producers.base import ProducerContext, Segment
from odstream.producers.demo import Command, SegmentLog, Verdict, as_flags, has_plan, play
from odstream.producers.expert_segments import SegmentTrace
from odstream.producers.gym_config import GymConfig, build_environment, resolve
from odstream.producers.spaces import (
    REWARD,
    Leaf,
    check_keys,
    observation_leaves,
    read,
)

Values = tuple[NDArray[Any], ...]
"""One frame: the observation's leaves in their order, the action, the reward. Owned copies."""

_ONLY_ROW = np.ones(1, np.bool_)


@dataclass(frozen=True, slots=True)
class Description:
    """What an environment records."""

    observation: tuple[Leaf, ...]
    action: Leaf
    step_dt: float | None
    report: ActionReport
    """What the action means."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended."""

    failure: str | None = None
    """Why it failed; None if it did not."""
    terminated: bool = False
    truncated: bool = False
    segments: tuple[Segment, ...] = ()


class Advance(NamedTuple):
    """One step of an attempt: a frame, or its end, or both."""

    values: Values | None
    ending: Ending | None


class Player(Protocol):
    """Where single environments are driven: in this process, or in one of their own."""

    @property
    def description(self) -> Description:
        """What is recorded."""

    def request(self, seed: int | None) -> None:
        """Ask for the next frame; with a seed, reset first. Does not block."""

    def collect(self, should_stop: Callable[[], bool]) -> Advance | None:
        """Wait for what was asked for; None if ``should_stop`` turned true before it came."""

    def begin_close(self) -> None:
        """Announce `close`, so that several players can close at once. Does not block."""

    def close(self) -> None:
        """Close the environment. Idempotent."""


def describe(environment: Any, observation_space: gym.Space[Any], channel: ActionChannel) -> Description:
    """Read the fields and the control period off an environment.

    Raises:
        EnvironmentContractError: If a space cannot be recorded.
    """
    return Description(
        observation_leaves(observation_space), channel.leaf, _declared_period(environment), channel.report
    )


def _declared_period(environment: Any) -> float | None:
    owner = getattr(environment, "unwrapped", environment)
    period = _positive(getattr(owner, "dt", None))
    rate = _positive((getattr(owner, "metadata", None) or {}).get("render_fps"))
    return period or (1.0 / rate if rate else None)


def _positive(value: Any) -> float | None:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def own_expert(config: GymConfig) -> Callable[..., Any]:
    """The configured expert, as one environment's own copy; a class is instantiated without arguments.

    Raises:
        EnvironmentContractError: If it cannot be imported.
    """
    assert config.expert is not None
    expert = resolve(config.expert, "expert")
    return expert() if isinstance(expert, type) else copy.deepcopy(expert)


def succeeded(info: Mapping[str, Any], key: str | None) -> bool:
    """Whether ``info[key]`` is there and true."""
    if key is None or key not in info:
        return False
    flag = info[key]
    return bool(flag if isinstance(flag, (bool, np.bool_)) else as_flags(flag, 1, f"info[{key!r}]")[0])


def never_succeeded(key: str, info: Mapping[str, Any]) -> str:
    """Say in words that ``info[key]`` never turned true; ``info`` is the last one."""
    return f"info[{key!r}] never turned true" + ("" if key in info else f"; info has only {sorted(info)}")


class EnvironmentPlayer:
    """A `Player` in this process. An expert, where one is configured, goes before the environment's own plan.

    Raises:
        EnvironmentContractError: If there is neither an expert nor a plan, or a space cannot be recorded.
    """

    def __init__(self, environment: gym.Env[Any, Any], config: GymConfig, context: ProducerContext) -> None:
        self._environment = environment
        self._success_key = config.success
        self._limit = context.max_episode_steps
        self._planned = config.expert is None
        if self._planned and not has_plan(environment):
            raise EnvironmentContractError(no_driver(environment))
        self._expert: Any = None if self._planned else own_expert(config)
        self._trace = SegmentTrace(self._expert, 1, self._limit)
        self._channel = open_channel(environment, environment.action_space, context.action_semantics, ())
        self._description = describe(environment, environment.observation_space, self._channel)
        self._plan: Iterator[Command | Verdict] = iter(())
        self._log = SegmentLog()
        self._observation: Any = None
        self._frame = 0
        self._info: Mapping[str, Any] = {}
        self._requested: int | None = None
        self._closed = False

    @property
    def description(self) -> Description:
        """What is recorded."""
        return self._description

    def request(self, seed: int | None) -> None:
        """Note what `collect` is to do."""
        self._requested = seed

    def collect(self, should_stop: Callable[[], bool]) -> Advance | None:
        """Reset if that was asked for, then play one frame."""
        if should_stop():
            return None
        if self._requested is not None:
            self.begin(self._requested)
        return self.advance()

    def begin(self, seed: int) -> None:
        """Abandon the attempt in progress and reset to a new scene."""
        self._end_plan()
        observation, self._info = self._environment.reset(seed=seed)
        check_keys(self._environment.observation_space, observation)
        self._observation = observation
        self._frame = 0
        self._log = SegmentLog()
        if self._planned:
            self._plan = play(self._environment)
        elif hasattr(self._expert, "reset"):
            self._expert.reset(observation)

    def advance(self) -> Advance:
        """Play one frame. Not to be called after an ending, before `begin`."""
        observed = [np.array(read(leaf, self._observation)) for leaf in self._description.observation]
        taken = self._next_command()
        if isinstance(taken, Ending):
            return Advance(None, taken)
        stored = np.array(taken.stored)
        self._observation, reward, terminated, truncated, self._info = self._environment.step(_owned(taken.given))
        self._frame += 1
        values = (*observed, stored, read(REWARD, reward))
        return Advance(values, self._ending(bool(terminated), bool(truncated)))

    def _next_command(self) -> Taken | Ending:
        """The next action, checked; or how the attempt ended before it."""
        action, whose = None, "the plan"
        if self._expert is not None:
            action, whose = self._expert(self._observation), "the expert"
            self._trace.note(np.array([self._frame]))
        else:
            item = self._next_item()
            if isinstance(item, Ending):
                return item
            action = item.action
        taken = self._channel.take(action, _ONLY_ROW, whose, f"of frame {self._frame}, from {whose}")
        return self._end(taken.refused[0]) if taken.refused else taken

    def _next_item(self) -> Command | Ending:
        """The plan's next command, with its verdicts taken into account."""
        failure = None
        for item in self._plan:
            if isinstance(item, Command):
                if self._frame == self._limit:
                    return self._end(self._too_long())
                self._log.note(item, self._frame)
                return item
            if not item.passed[0]:
                failure = item.reason
                break
        if failure is None and self._success_key is not None:
            failure = never_succeeded(self._success_key, self._info) + " during the plan"
        return self._end(failure)

    def _ending(self, terminated: bool, truncated: bool) -> Ending | None:
        """Decide after a step whether and how the attempt is over."""
        if succeeded(self._info, self._success_key):
            return self._end(None, terminated, truncated)
        if terminated or truncated:
            failure = self._failure(terminated)
            return self._end(failure, terminated, truncated)
        if self._frame == self._limit and not self._planned:
            return self._end(self._too_long())
        return None

    def _failure(self, terminated: bool) -> str | None:
        if self._success_key is not None:
            return never_succeeded(self._success_key, self._info)
        return cut_short(terminated) if self._planned else None

    def _too_long(self) -> str:
        return too_long(self._limit)

    def _end(self, failure: str | None, terminated: bool = False, truncated: bool = False) -> Ending:
        self._end_plan()
        log = self._log.segments(self._frame) if self._planned else self._trace.cut(0, self._frame)
        return Ending(failure, terminated, truncated, log)

    def _end_plan(self) -> None:
        close = getattr(self._plan, "close", None)
        self._plan = iter(())
        if close is not None:
            close()

    def begin_close(self) -> None:
        """Do nothing: `close` does it all."""

    def close(self) -> None:
        """Close the plan and the environment. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._end_plan()
        finally:
            self._environment.close()


def _owned(given: Any) -> Any:
    """A copy for the environment. A scalar becomes a numpy scalar, which every discrete environment takes."""
    if not isinstance(given, np.ndarray):
        return given
    return given.copy() if given.ndim else given[()]


def too_long(limit: int) -> str:
    """Say that an attempt did not end within ``limit`` frames."""
    return f"the episode is longer than max_episode_steps={limit}"


def cut_short(terminated: bool) -> str | None:
    """What a plan that the environment ended means, without a success rule: a truncated one failed."""
    return None if terminated else "the environment truncated the episode before its plan was over"


def no_driver(environment: Any) -> str:
    """Say that nobody can drive this environment."""
    return (
        f"gym_config has no 'expert', and the environment {environment} has neither create_demo_segments() "
        "nor create_demo_action_list(): nobody can produce demonstrations"
    )


def build_player(
    config: GymConfig, context: ProducerContext, environment: gym.Env[Any, Any] | None = None
) -> EnvironmentPlayer:
    """Give one single environment its driver, building it where none is given; it is closed if that fails.

    Raises:
        EnvironmentContractError: If the environment is natively batched, or as `EnvironmentPlayer` says.
        Exception: Whatever the environment raised, unchanged.
    """
    built = build_environment(config) if environment is None else environment
    try:
        if not isinstance(built, gym.Env):
            raise EnvironmentContractError(
                f"gym_config['vectorization'] = {config.vectorization!r} is for single environments; "
                f"the factory built the natively batched {built}: leave 'vectorization' out"
            )
        return EnvironmentPlayer(built, config, context)
    except BaseException as error:
        close_after(error, built)
        raise


def close_after(error: BaseException, *things: Any) -> None:
    """Close everything because of ``error``, which stays the one to be raised; failures to close become its notes."""
    for thing in things:
        try:
            thing.close()
        except Exception as failure:
            error.add_note(f"closing {thing} failed as well: {failure!r}")
