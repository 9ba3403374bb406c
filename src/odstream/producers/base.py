"""The producer seam: what a producer reports, where it records, what it hands over.

Shapes: ``S`` rows of storage, ``T`` frames per row, ``P`` environments.

A producer writes frames straight into rows that nobody can sample yet. It claims a row when an episode
begins and gives it away by yielding the finished `Episode`; the caller decides what becomes of it. A row
that was claimed for an attempt that failed is given away with the failed `Episode` just the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from odstream.producers.actions import ActionDescriptor, ActionSemantics, ExpertActionSpec

FieldKey = tuple[str, ...]
"""Path of a field in a sampled batch: ``("obs",)``, ``("obs", "arm", "q")``, ``("actions",)``, ``("rewards",)``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldSpec:
    """Shape and dtype of one field of one frame."""

    shape: tuple[int, ...]
    """Shape without the frame axis; ``()`` for a scalar. Every extent is positive."""
    dtype: np.dtype[Any]
    """Any boolean, integer, floating or complex dtype, in native byte order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutSpec:
    """What a producer is about to record. The engine checks it before the first transition."""

    num_envs: int
    """P: episodes that are in progress at once, at most."""
    fields: Mapping[FieldKey, FieldSpec]
    """Everything recorded per step: at least one ``("obs", ...)``, ``("actions",)`` and ``("rewards",)`` (float32)."""
    state_dim: int | None
    """Width of the robot's state where the environment has one flat state vector, else None."""
    action_dim: int
    """Width of the flat action vector, or 1 for a discrete action."""
    step_dt: float | None = None
    """Control period in seconds, where the environment declares one."""
    action_semantics: str = "expert_controller_command"
    """What is stored as the action; see `odstream.producers.actions.ActionSemantics`."""
    action_descriptors: tuple[ActionDescriptor, ...] = ()
    """Terms of the recorded request in the order of their columns; empty where no request is recorded."""
    expert_action_spec: ExpertActionSpec | None = None
    """Layout of the recorded controller command; None where none is recorded, and for a plain environment."""
    joint_names: tuple[str, ...] | None = None
    """The controlled joints in the environment's order; None for a plain environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A half-open range of frames ``[start, end)`` that serves one sub-task."""

    start: int
    end: int
    name: str = "episode"
    instruction: str | None = None
    """Language for this segment; None means the episode's own."""
    attempt: int = 0
    """How often this segment had been tried before, within the same episode."""
    accepted: bool = True
    """Whether its frames may be sampled in segment and boundary mode; a try that failed within an accepted episode may
    not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """A finished attempt. Its frames ``0 .. length-1`` lie in ``row`` of the staging arrays."""

    row: int
    length: int
    accepted: bool
    """Whether it may be published. A failed attempt is reported so that it is counted, never published."""
    failure: str | None = None
    """Why it was not accepted, in words."""
    segments: tuple[Segment, ...] = ()
    """Consecutive segments that cover all frames; empty means one segment."""
    terminated: bool = False
    """Whether the environment terminated the episode at its last frame."""
    truncated: bool = False
    """Whether the episode ended at its last frame by truncation."""
    instruction: str | None = None
    """Language for the whole episode."""
    valid: NDArray[np.bool_] | None = None
    """``[length]`` real frames; None means all. A false frame is a gap that no window crosses."""
    continuity_id: NDArray[np.int64] | None = None
    """``[length]`` changes where time jumps; None means no jump."""
    scene: int = -1
    """Index of the scene (consecutive per producer), for diagnosis."""
    seed: int | None = None
    """Seed the scene was reset with, where it was seeded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staging:
    """Where to record."""

    arrays: Mapping[FieldKey, NDArray[Any]]
    """Per field a writable view ``[S, T, *shape]``. Only claimed rows may be written."""
    claim: Callable[[], int]
    """Returns a free row. At most P rows may be claimed and not yet given away."""

    @property
    def max_episode_steps(self) -> int:
        """T: frames that fit into a row. A longer episode is a failed attempt."""
        return int(next(iter(self.arrays.values())).shape[1])


def never() -> bool:
    """Never ask to stop."""
    return False


class Producer(Protocol):
    """Makes complete episodes. Lives in the worker process; used by one thread.

    A producer may start processes of its own as long as `close` ends them.
    """

    @property
    def spec(self) -> RolloutSpec:
        """What will be recorded; known once constructed, constant afterwards."""

    def produce(self, count: int, staging: Staging, *, should_stop: Callable[[], bool] = never) -> Iterator[Episode]:
        """Yield finished attempts until ``count`` of them were accepted.

        Exactly ``count`` scenes are begun; each is tried until it is accepted, so a fill never prefers short
        episodes. ``should_stop`` is polled before every step; when it turns true the iterator ends early and
        unfinished episodes are abandoned. The caller may take as long as it likes between two items.

        Raises:
            DemonstrationError: If one scene failed ``max_generation_attempts`` times.
            Exception: Whatever the environment or the expert raised, unchanged.
        """

    def close(self) -> None:
        """Close environments and end child processes. Idempotent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerContext:
    """What the engine tells a producer factory."""

    max_episode_steps: int
    """T: an episode that does not end within T frames is a failed attempt."""
    max_generation_attempts: int
    """Attempts per scene before `DemonstrationError`."""
    action_semantics: ActionSemantics = "expert_controller_command"
    """What is to be stored as the action. A producer that cannot says so in its spec."""
    action_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the environment's action manager."""


ProducerFactory = Callable[[ProducerContext], Producer]
"""Builds a producer inside the worker process; must be picklable."""
