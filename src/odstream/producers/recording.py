"""From steps to episodes: which scene is tried next, where its frames go, whether the result is accepted.

Shapes: ``S`` rows of storage, ``T`` frames per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.errors import DemonstrationError
from odstream.producers.base import Episode, FieldKey, RolloutSpec, Staging
from odstream.producers.demo import as_flags
from odstream.producers.player import Ending
from odstream.producers.spaces import Leaf, require_finite

Validator = Callable[[Episode, dict[FieldKey, NDArray[Any]]], Any]
"""``accept(episode, frames)``; ``frames`` are read-only views ``[length, ...]`` by field."""


def scene_seed(seed: int, scene: int, attempt: int) -> int:
    """The seed in ``[0, 2**32)`` of one attempt at one scene: a hash of all three, the same on every machine."""
    return int(np.random.SeedSequence(seed, spawn_key=(scene, attempt)).generate_state(1)[0])


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at one scene."""

    scene: int
    number: int
    """From 1."""
    seed: int


class Scenes:
    """Numbers scenes, counts attempts, derives seeds. A scene stays open until one attempt is accepted."""

    def __init__(self, seed: int | None, max_attempts: int) -> None:
        self._seed = int(np.random.SeedSequence(seed).entropy)  # type: ignore[arg-type]
        self._max_attempts = max_attempts
        self._next_scene = 0
        self._left = 0

    def open(self, count: int) -> None:
        """Allow ``count`` new scenes; those left over from before are forgotten."""
        self._left = count

    @property
    def exhausted(self) -> bool:
        """Whether every allowed scene was begun."""
        return self._left == 0

    def begin(self) -> Attempt:
        """Return the first attempt at the next scene."""
        scene = self._next_scene
        self._next_scene += 1
        self._left -= 1
        return Attempt(scene, 1, scene_seed(self._seed, scene, 1))

    def again(self, attempt: Attempt, failure: str | None) -> Attempt:
        """Return the next attempt at the same scene, with another seed.

        Raises:
            DemonstrationError: If there were ``max_generation_attempts`` already.
        """
        if attempt.number >= self._max_attempts:
            raise DemonstrationError(
                f"scene {attempt.scene} was not accepted in {attempt.number} attempts "
                f"(max_generation_attempts={self._max_attempts}); the last one failed because {failure}"
            )
        number = attempt.number + 1
        return Attempt(attempt.scene, number, scene_seed(self._seed, attempt.scene, number))


class Recorder:
    """Writes frames into claimed rows and turns finished rows into episodes.

    Raises:
        ValueError: If the staging arrays are not what the spec says.
    """

    def __init__(
        self,
        spec: RolloutSpec,
        staging: Staging,
        *,
        max_episode_steps: int,
        accept: Validator | None,
        instruction: str | None,
    ) -> None:
        self._accept = accept
        self._instruction = instruction
        self.claim = staging.claim
        self.leaves = tuple(Leaf(key, (), field) for key, field in spec.fields.items())
        self.arrays = [_checked(staging, leaf, max_episode_steps) for leaf in self.leaves]

    def finish(self, row: int, length: int, attempt: Attempt, seed: int | None, ending: Ending) -> Episode:
        """Judge what was recorded in ``row``.

        Raises:
            EnvironmentContractError: If a recorded number is not finite.
            Exception: Whatever the validator raised, unchanged.
        """
        where = f"[frame, ...] of scene {attempt.scene}, attempt {attempt.number} (seed {seed})"
        frames = {leaf.key: array[row, :length] for leaf, array in zip(self.leaves, self.arrays, strict=True)}
        for leaf in self.leaves:
            require_finite(leaf, frames[leaf.key], where)
        episode = Episode(
            row=row,
            length=length,
            accepted=ending.failure is None,
            failure=ending.failure,
            segments=ending.segments,
            terminated=ending.terminated,
            truncated=ending.truncated,
            instruction=self._instruction,
            scene=attempt.scene,
            seed=seed,
        )
        if self._accept is None or not episode.accepted:
            return episode
        for view in frames.values():
            view.flags.writeable = False
        if as_flags(self._accept(episode, frames), 1, "gym_config['accept']")[0]:
            return episode
        return replace(episode, accepted=False, failure="gym_config['accept'] said no")


def _checked(staging: Staging, leaf: Leaf, max_episode_steps: int) -> NDArray[Any]:
    array = staging.arrays.get(leaf.key)
    wanted = (max_episode_steps, *leaf.spec.shape)
    if array is None or array.shape[1:] != wanted or array.dtype != leaf.spec.dtype:
        found = None if array is None else (array.shape, array.dtype)
        raise ValueError(f"staging array {leaf.name} must be [S, {wanted}] {leaf.spec.dtype}, got {found}")
    return array
