"""A natively batched environment whose rows begin and end on their own, whatever its autoreset mode.

Shapes: ``P`` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from odstream.errors import EnvironmentContractError
from odstream.producers.demo import Rows, as_flags
from odstream.producers.spaces import REWARD, check_keys, merge, read


@dataclass(frozen=True, slots=True)
class BatchStep:
    """What one step did. A row whose step was spent on a reset has false flags and a reward of no meaning."""

    rewards: NDArray[Any]
    """``[P]`` float32."""
    terminated: Rows
    truncated: Rows
    ended: Rows
    """Terminated or truncated."""
    success: Rows
    info: Mapping[str, Any]
    """The info that ``success`` was looked up in."""


class Batch:
    """Turns Gymnasium's three autoreset modes into one: rows are *fresh* when a new scene lies before them.

    In mode ``Disabled`` the caller makes a row fresh with `renew`, at any time and with a seed of its own; a row
    that ended and that nobody renewed is reset before the next step, so that no row is stepped past its end. The
    environment must honour ``reset(seed=[int or None per row], options={"reset_mask": flags})``.
    In the autoresetting modes a row becomes fresh by itself after its end, unseeded.

    Raises:
        EnvironmentContractError: If the environment does not declare its autoreset mode.
    """

    def __init__(self, environment: VectorEnv[Any, Any, Any], success_key: str | None) -> None:
        mode = environment.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise EnvironmentContractError(
                f"the natively batched {environment} must declare metadata['autoreset_mode'] as one of "
                f"{[str(item) for item in AutoresetMode]}, got {mode!r}"
            )
        self._environment = environment
        self._mode = mode
        self._success_key = success_key
        self._nothing: Rows = np.zeros(environment.num_envs, np.bool_)
        self._over: Rows = self._nothing
        self.observation: Any = None
        """The current batch, as the environment gave it."""
        self.fresh: Rows = self._nothing
        """``[P]`` rows whose current observation is the first of a scene."""

    @property
    def resets_itself(self) -> bool:
        """Whether rows become fresh by themselves, and cannot be made so."""
        return self._mode != AutoresetMode.DISABLED

    def restart(self, seed: int) -> None:
        """Reset all rows of an autoresetting environment; all become fresh."""
        observation, _ = self._environment.reset(seed=seed)
        check_keys(self._environment.single_observation_space, observation)
        self.observation = observation
        self.fresh, self._over = ~self._nothing, self._nothing

    def renew(self, rows: Rows, seeds: Sequence[int | None]) -> None:
        """Reset ``rows`` of an environment without autoreset, each with its seed; they become fresh."""
        if self.observation is None:
            rows = ~self._nothing
        given = [seed if chosen else None for seed, chosen in zip(seeds, rows, strict=True)]
        observation, _ = self._environment.reset(seed=given, options={"reset_mask": rows.copy()})  # type: ignore[arg-type]
        space = self._environment.single_observation_space
        check_keys(space, observation)
        # Only the rows that were reset are taken over: what an environment returns for the others is its own affair.
        self.observation = observation if rows.all() else merge(space, observation, self.observation, rows)
        self.fresh, self._over = self.fresh | rows, self._over & ~rows

    def step(self, actions: Any) -> BatchStep:
        """Step every row, with whatever the environment takes. The observation before is no longer valid afterwards."""
        resetting = self._over
        if not self.resets_itself and resetting.any():
            self.renew(resetting, [None] * len(resetting))
            resetting = self._nothing
        observation, rewards, terminated, truncated, info = self._environment.step(actions)
        self.observation = observation
        terminated = self._flags(terminated, "terminated") & ~resetting
        truncated = self._flags(truncated, "truncated") & ~resetting
        ended: Rows = terminated | truncated
        final = self._final_info(info, ended)
        success = self._success(final) & ~resetting
        if self._mode == AutoresetMode.SAME_STEP:
            self.fresh = ended
        else:
            self.fresh, self._over = resetting, ended
        return BatchStep(read(REWARD, rewards, ended.shape), terminated, truncated, ended, success, final)

    def _flags(self, value: Any, name: str) -> Rows:
        if type(value) is np.ndarray and value.dtype == np.bool_ and value.shape == self._nothing.shape:
            return value
        return as_flags(value, len(self._nothing), name)

    def _final_info(self, info: Mapping[str, Any], ended: Rows) -> Mapping[str, Any]:
        """In same-step mode the info of a row that ended lies apart, because the row's own is that of its reset."""
        key = self._success_key
        if self._mode != AutoresetMode.SAME_STEP or key is None or not ended.any():
            return info
        final = info.get("final_info", {})
        now, last = self._lookup(info, key), self._lookup(final, key)
        return {**(final if isinstance(final, Mapping) else {}), key: np.where(ended, last, now)}

    def _success(self, info: Mapping[str, Any]) -> Rows:
        return self._nothing if self._success_key is None else self._lookup(info, self._success_key)

    def _lookup(self, info: Any, key: str) -> Rows:
        if not isinstance(info, Mapping) or key not in info:
            return self._nothing
        value = info[key]
        if getattr(value, "dtype", None) == np.object_:  # Gymnasium fills what an environment did not report with None
            value = [item is not None and bool(item) for item in value]
        return self._flags(value, f"info[{key!r}]")
