"""Settings of the online engine. Checked when constructed, before any process starts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from odstream.producers.actions import ACTION_SEMANTICS, ActionSemantics, check_contract
from odstream.validation import INT64_MAX, check_choice, check_finite, check_int

__all__ = ["OnlineDataEngineCfg", "RefillPolicy"]

RefillPolicy = Literal["sample_threshold", "manual"]

_EVENTS_PER_REPLACEMENT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineDataEngineCfg:
    """How large the cache is, who fills it, and when.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If a setting is out of range, or two contradict each other.
    """

    gym_config: Mapping[str, Any] = field(default_factory=dict)
    """The environment and its expert; see `odstream.producers.environment`. Empty if the engine gets a producer."""

    buffer_size: int = 16
    """C: complete episodes that can be read at once. At least the number of environments."""

    max_episode_steps: int = 300
    """T: frames per episode at most. An attempt that does not end within them fails and is retried."""

    state_dim: int | None = None
    """Width of the robot's state. None: as the environment reports it. Otherwise it is checked."""

    action_dim: int | None = None
    """Width of an action. None: `state_dim` where that is given, else as the environment reports it."""

    action_semantics: ActionSemantics = "expert_controller_command"
    """What is stored as the action. ``"expert_controller_command"``: what the expert commands. ``"policy_request"``:
    what a policy would have to request; needs `action_dim` and `action_contracts`, and an environment with an action
    manager. See `odstream.producers.action_recording`."""

    action_contracts: tuple[str, ...] | None = None
    """With ``"policy_request"``: the contract of each term of a request, in order; compared with the environment's
    action manager before the first transition. None otherwise."""

    action_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the environment's action manager, such as scales. Where not empty, the environment is built with
    the keyword argument ``action_config``; it says which settings there are."""

    refill_policy: RefillPolicy = "sample_threshold"
    """``"sample_threshold"``: a refill starts after enough selections. ``"manual"``: the owner asks for it."""

    refill_threshold: int = 50
    """Selections per slot between two automatic refills: one starts after ``refill_threshold * buffer_size``."""

    episode_sample_budget: int | None = None
    """K: how often each episode may be selected. None, together with the hard limit: as often as one likes."""

    episode_sample_hard_limit: int | None = None
    """Ceiling for `episode_sample_budget`."""

    include_provenance: bool = False
    """Whether every frame carries its identity and times (``ods_*`` fields)."""

    lifecycle_event_capacity: int = 0
    """Records in the publication and eviction log. 0: no log. A full log holds the producer back until it is drained;
    it must hold the initial fill, one record per slot, since nobody can drain it before `start` returns."""

    max_generation_attempts: int = 3
    """Attempts per scene before production fails."""

    initialization_timeout: float = 300.0
    """Seconds that `start` waits for the initial fill at most."""

    shutdown_timeout: float = 5.0
    """Seconds that `stop` waits for the producer to close by itself."""

    buffer_device: str = "cpu"
    """Where the cache lies: in shared memory of the CPU, always."""

    language_buffer_bytes: int = 1024 * 1024
    """Room for all distinct instructions of a run: their UTF-8 bytes, and about 15 more each."""

    def __post_init__(self) -> None:
        if not isinstance(self.gym_config, Mapping):
            raise TypeError(f"gym_config must be a mapping, got {type(self.gym_config).__name__}")
        check_int("buffer_size", self.buffer_size, 1)
        check_int("max_episode_steps", self.max_episode_steps, 1, 2**31 - 1)
        for name in ("state_dim", "action_dim"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1)
        self._check_actions()
        check_choice("refill_policy", self.refill_policy, ("sample_threshold", "manual"))
        check_int("refill_threshold", self.refill_threshold, 1)
        check_int("max_generation_attempts", self.max_generation_attempts, 1)
        check_finite("initialization_timeout", self.initialization_timeout)
        check_finite("shutdown_timeout", self.shutdown_timeout)
        check_int("language_buffer_bytes", self.language_buffer_bytes, 1)
        if not isinstance(self.include_provenance, bool):
            raise TypeError(f"include_provenance must be a bool, got {self.include_provenance!r}")
        if self.buffer_device != "cpu":
            raise ValueError(f"buffer_device must be 'cpu': the cache is shared CPU memory, got {self.buffer_device!r}")
        self._check_budget()
        self._check_events()
        num_envs = self.gym_config.get("num_envs")
        if type(num_envs) is int and num_envs > self.buffer_size:
            raise ValueError(f"buffer_size must be at least gym_config['num_envs']={num_envs}, got {self.buffer_size}")

    def _check_actions(self) -> None:
        check_choice("action_semantics", self.action_semantics, ACTION_SEMANTICS)
        contracts = self.action_contracts
        if contracts is not None and not isinstance(contracts, tuple):
            raise TypeError(f"action_contracts must be a tuple of contract ids or None, got {contracts!r}")
        for number, contract in enumerate(contracts or ()):
            check_contract(f"action_contracts[{number}]", contract)
        if self.action_semantics == "policy_request":
            if self.action_dim is None or not contracts:
                raise ValueError(
                    "action_semantics='policy_request' needs action_dim and at least one of action_contracts, "
                    f"got action_dim={self.action_dim} and action_contracts={contracts!r}"
                )
        elif contracts is not None:
            raise ValueError(
                f"action_contracts must be None unless action_semantics is 'policy_request', got {contracts!r} "
                f"with action_semantics={self.action_semantics!r}"
            )
        if not isinstance(self.action_config, Mapping) or not all(isinstance(key, str) for key in self.action_config):
            raise TypeError(f"action_config must be a mapping with string keys, got {self.action_config!r}")
        try:
            pickle.dumps(dict(self.action_config))
        except Exception as error:
            raise ValueError(
                f"action_config cannot travel to the producer process, got {self.action_config!r}: {error}"
            ) from error

    def _check_budget(self) -> None:
        budget, limit = self.episode_sample_budget, self.episode_sample_hard_limit
        if budget is None and limit is None:
            return
        if budget is None or limit is None:
            raise ValueError(
                "episode_sample_budget and episode_sample_hard_limit must be given together or not at all, "
                f"got {budget!r} and {limit!r}"
            )
        check_int("episode_sample_hard_limit", limit, 1)
        check_int("episode_sample_budget", budget, 1)
        if budget * self.buffer_size > INT64_MAX:
            raise ValueError(
                f"episode_sample_budget * buffer_size must be at most {INT64_MAX}, so that it can be counted, "
                f"got {budget} * {self.buffer_size}"
            )
        if budget > limit:
            raise ValueError(f"episode_sample_budget must be at most episode_sample_hard_limit={limit}, got {budget}")
        if self.refill_policy == "sample_threshold" and budget <= self.refill_threshold:
            raise ValueError(
                f"episode_sample_budget must be greater than refill_threshold={self.refill_threshold}, got {budget}: "
                "with refill_policy='sample_threshold' it would be used up before a refill starts by itself; "
                "lower refill_threshold, or choose refill_policy='manual'"
            )

    def _check_events(self) -> None:
        check_int("lifecycle_event_capacity", self.lifecycle_event_capacity, 0)
        needed = max(self.buffer_size, _EVENTS_PER_REPLACEMENT)
        if 0 < self.lifecycle_event_capacity < needed:
            raise ValueError(
                f"lifecycle_event_capacity must be 0 or at least {needed}, so that the initial fill of "
                f"buffer_size={self.buffer_size} episodes fits before anybody can drain it, and so does the "
                f"replacement of one, got {self.lifecycle_event_capacity}"
            )
