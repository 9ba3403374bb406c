"""Demonstrations that an environment plans by itself: segments of actions, played lazily.

Shapes: ``P`` rows of a natively batched environment, 1 for a single environment.

An environment offers ``create_demo_segments()``, an iterable of `DemoSegment`, or ``create_demo_action_list()``,
the actions of one segment. Both may be generators: a segment is asked for only after every action of the one
before it was executed, so a plan can look at the scene that its own actions produced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from odstream.errors import EnvironmentContractError
from odstream.producers.base import Segment

__all__ = ["DemoSegment"]

Rows = NDArray[np.bool_]
"""``[P]`` one flag per row."""

SEGMENTS_METHOD = "create_demo_segments"
ACTION_LIST_METHOD = "create_demo_action_list"
SUCCESS_METHOD = "is_task_success"


@dataclass(frozen=True)
class DemoSegment:
    """One sub-task of a demonstration."""

    actions: Iterable[Any]
    """What to command, step by step; may be lazy. For a natively batched environment each is ``[P, ...]``."""
    name: str = "segment"
    """Name of the sub-task."""
    instruction: str | None = None
    """Language for these frames; None means the episode's own."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """For the task's own use. Not recorded."""
    validator: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """Called without arguments once all actions are executed; returns a flag, or ``[P]`` flags. False fails the row."""
    failure_policy: Literal["batch_abort", "row_independent"] = "batch_abort"
    """What a row that fails means for the others of a batch: they fail too, or they carry on."""

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name:
            raise ValueError(f"DemoSegment.name must be a non-empty string, got {name!r}")
        if isinstance(self.actions, (str, bytes)) or not isinstance(self.actions, Iterable):
            raise TypeError(f"DemoSegment.actions must be an iterable of actions, got {self.actions!r}")
        if self.instruction is not None and not isinstance(self.instruction, str):
            raise TypeError(f"DemoSegment.instruction must be a string or None, got {self.instruction!r}")
        if self.validator is not None and not callable(self.validator):
            raise TypeError(f"DemoSegment.validator must be callable or None, got {self.validator!r}")
        if self.failure_policy not in ("batch_abort", "row_independent"):
            raise ValueError(
                f"DemoSegment.failure_policy must be 'batch_abort' or 'row_independent', got {self.failure_policy!r}"
            )


@dataclass(frozen=True, slots=True)
class Command:
    """The next action of a plan."""

    action: Any
    segment: DemoSegment
    index: int
    """Index of the segment within the plan."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a plan says about the rows after a segment, or about the whole task at its end."""

    passed: Rows
    reason: str
    """Why a row that did not pass failed, in words."""
    aborts_batch: bool = False
    """Whether one failed row fails the others of its batch."""


def find_method(environment: Any, name: str) -> Callable[..., Any] | None:
    """Look a method up on an environment and through its wrappers; None if nobody has it."""
    getter = getattr(environment, "get_wrapper_attr", None)
    try:
        method = getattr(environment, name) if getter is None else getter(name)
    except AttributeError:
        method = getattr(getattr(environment, "unwrapped", None), name, None)
    return method if callable(method) else None


def has_plan(environment: Any) -> bool:
    """Whether the environment plans demonstrations by itself."""
    return any(find_method(environment, name) is not None for name in (SEGMENTS_METHOD, ACTION_LIST_METHOD))


def play(environment: Any, num_rows: int = 1) -> Iterator[Command | Verdict]:
    """Play one plan of an environment that was just reset.

    Each `Command` is to be executed before the next item is asked for. After the last command of a segment
    comes its `Verdict`; the caller stops playing once no row is left. Closing the iterator closes the plan's own
    iterators, so a generator's ``finally`` runs.

    Raises:
        EnvironmentContractError: If the plan is not made of `DemoSegment` or a validator answers something else
            than flags.
        Exception: Whatever the plan raised, unchanged.
    """
    segments = _segments(environment)
    index = -1
    try:
        for index, segment in enumerate(segments):
            if not isinstance(segment, DemoSegment):
                raise EnvironmentContractError(f"{SEGMENTS_METHOD}() must give DemoSegment objects, got {segment!r}")
            yield from _play_segment(segment, index, num_rows)
    finally:
        _close(segments)
    if index < 0:
        yield Verdict(np.zeros(num_rows, np.bool_), f"{SEGMENTS_METHOD}() planned no segment")
        return
    judge = find_method(environment, SUCCESS_METHOD)
    if judge is not None:
        yield Verdict(as_flags(judge(), num_rows, f"{SUCCESS_METHOD}()"), f"{SUCCESS_METHOD}() said no after the plan")


def _play_segment(segment: DemoSegment, index: int, num_rows: int) -> Iterator[Command | Verdict]:
    actions = iter(segment.actions)
    empty = True
    try:
        for action in actions:
            empty = False
            yield Command(action, segment, index)
    finally:
        _close(actions)
    aborts = segment.failure_policy == "batch_abort"
    if empty:
        yield Verdict(np.zeros(num_rows, np.bool_), f"segment {segment.name!r} has no actions", aborts)
        return
    verdict = True if segment.validator is None else segment.validator()
    passed = as_flags(verdict, num_rows, f"validator of segment {segment.name!r}")
    yield Verdict(passed, f"validator of segment {segment.name!r} said no", aborts)


def _segments(environment: Any) -> Iterator[Any]:
    planner = find_method(environment, SEGMENTS_METHOD)
    if planner is not None:
        return iter(planner())
    planner = find_method(environment, ACTION_LIST_METHOD)
    if planner is None:
        raise EnvironmentContractError(f"the environment has neither {SEGMENTS_METHOD}() nor {ACTION_LIST_METHOD}()")
    actions = planner()
    return iter([DemoSegment(actions=() if actions is None else actions, name="episode")])


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if callable(close):
        close()


def as_flags(value: Any, num_rows: int, what: str) -> Rows:
    """Turn a flag, or one flag per row, into ``[P]`` flags.

    Raises:
        EnvironmentContractError: If it is neither; the message names ``what``.
    """
    flags = np.asarray(value)
    if flags.dtype.kind not in "biuf" or flags.size not in (1, num_rows) or not np.isfinite(flags).all():
        raise EnvironmentContractError(f"{what} must give a flag or {num_rows} flags, got {value!r}")
    return np.broadcast_to(flags.reshape(-1).astype(np.bool_), (num_rows,))


class SegmentLog:
    """Remembers at which frame each segment of one attempt began."""

    def __init__(self) -> None:
        self._starts: list[tuple[DemoSegment, int]] = []
        self._index = -1

    def note(self, command: Command, frame: int) -> None:
        """Note that ``command`` is executed at ``frame``."""
        if command.index != self._index:
            self._index = command.index
            self._starts.append((command.segment, frame))

    def segments(self, length: int) -> tuple[Segment, ...]:
        """The segments of an attempt of ``length`` frames: consecutive, covering all of them."""
        begun = [(segment, start) for segment, start in self._starts if start < length]
        if not begun:
            return ()
        ends: Sequence[int] = [*(start for _, start in begun[1:]), length]
        return tuple(
            Segment(start=start, end=end, name=segment.name, instruction=segment.instruction)
            for (segment, start), end in zip(begun, ends, strict=True)
        )
