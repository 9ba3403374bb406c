"""Windows over which metrics are computed: differences of counters between two edges, per process, then summed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from odstream.perf.ages import AgeHistogram
from odstream.perf.meter import Snapshot
from odstream.validation import check_finite, check_int

__all__ = ["Difference", "Window", "WindowCfg", "Windows", "difference"]

_EDGES_PER_WINDOW = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowCfg:
    """How long a window is: as long as the longest of three minima, so that slow steps widen it.

    Raises:
        TypeError, ValueError: If a field is out of range.
    """

    min_s: float = 10.0
    """Seconds at least."""
    min_steps: int = 20
    """Optimizer steps at least."""
    min_intervals: int = 5
    """Completed calls of producers at least."""
    max_s: float = 600.0
    """Seconds at most, unless a single step takes longer."""

    def __post_init__(self) -> None:
        check_finite("min_s", self.min_s)
        check_int("min_steps", self.min_steps, 1)
        check_int("min_intervals", self.min_intervals, 0)
        check_finite("max_s", self.max_s)
        if self.max_s < self.min_s:
            raise ValueError(f"max_s must be at least min_s={self.min_s}, got {self.max_s}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What one process did within a window."""

    role: Literal["learner", "producer"]
    name: str
    incarnation: int
    state: str
    """At the right edge."""
    states_ns: Mapping[str, int]
    counts: Mapping[str, int]
    ages: AgeHistogram

    @property
    def wall_ns(self) -> int:
        """Time of this process within the window: the sum of its states."""
        return sum(self.states_ns.values())

    @property
    def key(self) -> tuple[str, str, int]:
        """Identity of the process, other after a restart."""
        return (self.role, self.name, self.incarnation)


def difference(before: Snapshot | None, after: Snapshot) -> Difference:
    """Return what happened between two snapshots of one process.

    Args:
        before: None if the process started within the window.
        after: The later one.

    Raises:
        ValueError: If a counter decreased: a process that starts again needs another ``incarnation``.
    """
    states_ns, counts = dict(after.states_ns), dict(after.counts)
    if before is not None:
        for now, then in ((states_ns, before.states_ns), (counts, before.counts)):
            for name, value in then.items():
                now[name] = now.get(name, 0) - value
                if now[name] < 0:
                    raise ValueError(
                        f"{name} of the {after.role} {after.name!r} decreased by {-now[name]}: "
                        "a process that starts again needs another incarnation"
                    )
    return Difference(
        role=after.role,
        name=after.name,
        incarnation=after.incarnation,
        state=after.state,
        states_ns=states_ns,
        counts=counts,
        ages=after.ages if before is None else after.ages.since(before.ages),
    )


@dataclass(frozen=True, slots=True)
class Window:
    """What every process did between two edges."""

    duration_ns: int
    """Between the edges, on the observer's clock."""
    processes: tuple[Difference, ...]
    totals: Mapping[str, int]
    """Sums of all counters since the start, of processes that have ended too."""
    complete: bool
    """Whether it holds the configured minima."""

    @property
    def learners(self) -> tuple[Difference, ...]:
        """The ranks."""
        return tuple(process for process in self.processes if process.role == "learner")

    @property
    def producers(self) -> tuple[Difference, ...]:
        """The slots."""
        return tuple(process for process in self.processes if process.role == "producer")


class _Edge(NamedTuple):
    at_ns: int
    snapshots: dict[tuple[str, str, int], Snapshot]
    steps: int
    intervals: int


class Windows:
    """Keeps the edges that the next windows need.

    Args:
        cfg: How long a window is.
        clock_ns: Monotonic nanoseconds of the observer.
    """

    def __init__(self, cfg: WindowCfg | None = None, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.cfg = WindowCfg() if cfg is None else cfg
        self._clock_ns = clock_ns
        self._edges: deque[_Edge] = deque()
        self._latest: dict[tuple[str, str, int], Snapshot] = {}
        self._spacing_ns = int(self.cfg.min_s * 1e9) // _EDGES_PER_WINDOW

    def due(self, now_ns: int) -> bool:
        """Return whether it is time for an edge: at most ten lie within the shortest window."""
        return not self._edges or now_ns - self._edges[-1].at_ns >= self._spacing_ns

    def restart(self, snapshots: Sequence[Snapshot], at_ns: int | None = None) -> None:
        """Forget all edges and begin with this one; see `add`. What lies before it, a warm-up, is in no window."""
        self._edges.clear()
        self._edges.append(self._edge(snapshots, at_ns))

    def add(self, snapshots: Sequence[Snapshot], at_ns: int | None = None) -> Window | None:
        """Add an edge and return the shortest window up to it that holds the minima, or the longest there is.

        Args:
            snapshots: One of every process.
            at_ns: When they were taken. None: now.

        Returns:
            The window; None at the first edge.

        Raises:
            ValueError: If two snapshots are of one process, or a counter decreased.
        """
        edge = self._edge(snapshots, at_ns)
        self._edges.append(edge)
        if len(self._edges) == 1:
            return None
        while len(self._edges) > 2 and (self._holds(self._edges[1], edge) or self._too_long(edge)):
            self._edges.popleft()
        left = self._edges[0]
        processes = tuple(difference(left.snapshots.get(key), after) for key, after in edge.snapshots.items())
        return Window(edge.at_ns - left.at_ns, processes, self._totals(), self._holds(left, edge))

    def _edge(self, snapshots: Sequence[Snapshot], at_ns: int | None) -> _Edge:
        by_key: dict[tuple[str, str, int], Snapshot] = {(one.role, one.name, one.incarnation): one for one in snapshots}
        if len(by_key) < len(snapshots):
            raise ValueError(f"names must be unique within a role, got {[(one.role, one.name) for one in snapshots]}")
        self._latest.update(by_key)
        steps = max((one.counts["steps"] for one in snapshots if one.role == "learner"), default=0)
        intervals = sum(one.counts["calls"] for one in self._latest.values() if one.role == "producer")
        return _Edge(self._clock_ns() if at_ns is None else at_ns, by_key, steps, intervals)

    def _holds(self, left: _Edge, right: _Edge) -> bool:
        cfg = self.cfg
        return (
            right.at_ns - left.at_ns >= cfg.min_s * 1e9
            and right.steps - left.steps >= cfg.min_steps
            and right.intervals - left.intervals >= cfg.min_intervals
        )

    def _too_long(self, right: _Edge) -> bool:
        return right.at_ns - self._edges[0].at_ns > self.cfg.max_s * 1e9

    def _totals(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for one in self._latest.values():
            for name, value in one.counts.items():
                totals[name] = totals.get(name, 0) + value
        return totals
