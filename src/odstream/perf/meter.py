"""Time in state: where the wall time of a learner and of each producer went. Imports the standard library and numpy.

A meter is in exactly one state at a time and adds up nanoseconds per state on one monotonic clock, so that its states
sum to its wall time. Snapshots hold durations and counts, never readings of the clock, and may cross machines.
A meter belongs to one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Literal, Protocol, TypeVar

from odstream.perf.ages import AgeHistogram
from odstream.validation import check_choice, check_int

__all__ = [
    "LEARNER_STATES",
    "PRODUCER_STATES",
    "DeviceTimer",
    "LearnerMeter",
    "LearnerState",
    "MeteredBatches",
    "ProducerMeter",
    "ProducerState",
    "Snapshot",
    "StateMeter",
    "StepTimes",
    "metered",
]

LearnerState = Literal["wait", "pace", "fetch", "compute", "eval", "checkpoint", "other", "warmup"]
ProducerState = Literal["busy", "publish", "blocked", "starved", "down"]

LEARNER_STATES: tuple[LearnerState, ...] = (
    "wait",
    "pace",
    "fetch",
    "compute",
    "eval",
    "checkpoint",
    "other",
    "warmup",
)
"""``wait``: no eligible data or quota. ``pace``: held back by the plan. ``fetch``: sample, copy, collate, host to
device. ``compute``: forward, backward, optimizer. ``warmup``: fetch and compute of the first steps."""
PRODUCER_STATES: tuple[ProducerState, ...] = ("busy", "publish", "blocked", "starved", "down")
"""``busy``: simulate or generate, failed tries included. ``blocked``: held back (no room, log full, no refill asked
for). ``starved``: nothing to work on. ``down``: not running."""

_STATE_OF_INTERVAL = {"data_wait": "wait", "quota_wait": "wait", "usage_throttle": "pace"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one meter has added up so far."""

    role: Literal["learner", "producer"]
    name: str
    """Of the process or slot; unique within its role."""
    incarnation: int = 0
    """Differs after a restart, when the sums begin at zero again."""
    state: str
    """The state at this moment."""
    states_ns: dict[str, int]
    """Nanoseconds per state."""
    counts: dict[str, int]
    """Counters that never decrease."""
    ages: AgeHistogram = field(default_factory=AgeHistogram, compare=False)
    """Ages of what was delivered."""

    @property
    def wall_ns(self) -> int:
        """Age of the meter: the sum of its states."""
        return sum(self.states_ns.values())


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Nanoseconds of one optimizer step, each spent once."""

    data_ns: int
    """Fetch."""
    compute_ns: int
    """Compute, on the host's clock."""
    wait_ns: int
    """Wait for data since the step before."""

    @property
    def step_ns(self) -> int:
        """Fetch and compute; waiting is no part of a step."""
        return self.data_ns + self.compute_ns


class DeviceTimer(Protocol):
    """Times work on a device that runs behind the host; `odstream.perf.device.CudaTimer` is one."""

    def begin(self) -> None:
        """Mark the start of an update."""

    def end(self, *, completes_step: bool) -> None:
        """Mark the end of what `begin` started."""

    def collect(self) -> tuple[int, int]:
        """Return nanoseconds and completed steps of marks that the device has passed since the last call.

        Never waits for the device.
        """


class MeteredBatches(Generic[_T]):
    """Batches that are metered while they are iterated over.

    Each ``for`` gets an iterator that nobody else holds, so that leaving the loop, by ``break`` too, ends the metering
    there and then.
    """

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Iterator[_T]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[_T]:
        return self._begin()


class StateMeter:
    """Adds up the time spent in each of several states.

    Args:
        states: All states.
        initial: The state to begin in.
        clock_ns: Monotonic nanoseconds.
    """

    def __init__(self, states: Sequence[str], *, initial: str, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        check_choice("initial", initial, states)
        self._totals = dict.fromkeys(states, 0)
        self._account = {state: state for state in states}
        self._state = initial
        self._clock_ns = clock_ns
        self._since_ns = clock_ns()

    @property
    def state(self) -> str:
        """The state now."""
        return self._state

    @property
    def since_ns(self) -> int:
        """When it was entered, or time was last added up: what a clock said then, for whoever needs no newer time."""
        return self._since_ns

    def enter(self, state: str) -> None:
        """Change the state.

        Raises:
            ValueError: If there is no such state.
        """
        if state not in self._totals:
            check_choice("state", state, tuple(self._totals))
        now_ns = self._clock_ns()
        self._totals[self._account[self._state]] += now_ns - self._since_ns
        self._since_ns = now_ns
        self._state = state

    def during(self, state: str) -> _Stay:
        """Return a context in ``state``; the state before it is restored at its end, also after an error."""
        return _Stay(self, state)

    def move(self, state: str, duration_ns: int) -> None:
        """Count ``duration_ns`` of the time since the last change of state as time in ``state``.

        More than has passed since then is not moved: nothing is counted twice.
        """
        check_choice("state", state, tuple(self._totals))
        check_int("duration_ns", duration_ns, 0)
        now_ns = self._clock_ns()
        moved_ns = min(duration_ns, now_ns - self._since_ns)
        self._totals[self._account[state]] += moved_ns
        self._since_ns += moved_ns

    def totals_ns(self) -> dict[str, int]:
        """Return nanoseconds per state up to now; they sum to the age of the meter."""
        self._settle()
        return dict(self._totals)

    def _settle(self) -> None:
        now_ns = self._clock_ns()
        self._totals[self._account[self._state]] += now_ns - self._since_ns
        self._since_ns = now_ns


class _Stay:
    __slots__ = ("_before", "_meter", "_state")

    def __init__(self, meter: StateMeter, state: str) -> None:
        self._meter, self._state = meter, state

    def __enter__(self) -> None:
        self._before = self._meter.state
        self._meter.enter(self._state)

    def __exit__(self, _type: object, _error: object, _traceback: object) -> None:
        self._meter.enter(self._before)


class LearnerMeter(StateMeter):
    """The learner's time and counts.

    Two lines meter an ordinary loop; its body counts as ``compute``::

        meter = LearnerMeter()
        for batch in meter.batches(loader, size=64):
            ...

    Args:
        name: Of this rank.
        warmup_steps: Steps whose fetch and compute count as ``warmup``: they compile and fill caches.
        timer: Times the updates on their device. None: the host's clock.
        clock_ns: Monotonic nanoseconds.
    """

    def __init__(
        self,
        name: str = "rank0",
        *,
        warmup_steps: int = 1,
        timer: DeviceTimer | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(LEARNER_STATES, initial="other", clock_ns=clock_ns)
        self.name = name
        self.ages = AgeHistogram()
        """Ages of what was delivered; add to it."""
        self.on_step: Callable[[], object] | None = None
        """Called when a step is complete, in state ``other``."""
        self._counts = dict.fromkeys(
            ("steps", "warmup_steps", "delivered", "completed", "failed_updates", "device_ns", "device_steps"), 0
        )
        self._warmup_steps = check_int("warmup_steps", warmup_steps, 0)
        self._timer = timer
        self._timing = self._paused = False
        self._step_began = self._step_ended = (0, 0, 0)
        if warmup_steps:
            self._account.update(fetch="warmup", compute="warmup")

    def during(self, state: str) -> _Stay:
        """Return a context in ``state``; the state before it is restored at its end, also after an error.

        Within an update, the device's clock stands still for it, as for an evaluation in its midst.
        """
        return _Untimed(self, state) if self._timing else _Stay(self, state)

    @property
    def warming_up(self) -> bool:
        """Whether the first steps are still under way."""
        return self._counts["steps"] < self._warmup_steps

    @property
    def steps(self) -> int:
        """Completed optimizer steps, those of the warm-up too."""
        return self._counts["steps"]

    @property
    def last_step(self) -> StepTimes | None:
        """The last step; None if it was a warm-up."""
        if self._counts["steps"] <= self._warmup_steps:
            return None
        return StepTimes(*(end - begin for begin, end in zip(self._step_began, self._step_ended, strict=True)))

    @property
    def in_flight(self) -> int:
        """Selections that were delivered and neither completed nor failed."""
        counts = self._counts
        return counts["delivered"] - counts["completed"] - counts["failed_updates"]

    def batches(
        self,
        loader: Iterable[_T],
        *,
        size: int | Callable[[_T], int],
        accumulate: int = 1,
        steps: int | None = None,
    ) -> MeteredBatches[_T]:
        """Return what yields what ``loader`` yields: ``fetch`` until it is there, then ``compute`` until the next.

        Asking for the next batch completes the step. A batch that was left by ``break`` or an error stays in flight
        until `complete` or `fail` is called; ``steps`` ends a loop without leaving one.

        Args:
            loader: Any iterable.
            size: Selections in a batch, or a function that counts them.
            accumulate: Batches per optimizer step.
            steps: Optimizer steps until the iteration ends, without asking ``loader`` for more. None: with ``loader``.

        Raises:
            ValueError, TypeError: If ``size``, ``accumulate`` or ``steps`` is no positive integer.
        """
        if not callable(size):
            check_int("size", size, 1)
        check_int("accumulate", accumulate, 1)
        if steps is not None:
            check_int("steps", steps, 1)
        return MeteredBatches(lambda: self._batches(iter(loader), size, accumulate, steps))

    def _batches(
        self, source: Iterator[_T], size: int | Callable[[_T], int], accumulate: int, steps: int | None
    ) -> Iterator[_T]:
        held = taken = 0
        try:
            while taken != steps:
                self.enter("fetch")
                try:
                    batch = next(source)
                except StopIteration:
                    return
                self.deliver(size(batch) if callable(size) else size)
                self.begin_compute()
                yield batch
                held += 1
                if held % accumulate == 0 and self.in_flight:
                    self.complete()
                    taken += 1
                else:
                    self._end_compute(completes_step=False)
        finally:
            self._pause()
            self.enter("other")

    def update(self) -> _Update:
        """Return a context for one optimizer step on what is in flight: completed at its end, failed by an error."""
        return _Update(self)

    def deliver(self, selections: int) -> None:
        """Count selections that this process has received."""
        self._counts["delivered"] += check_int("selections", selections, 0)

    def begin_compute(self) -> None:
        """Enter ``compute`` and start the device's clock."""
        self.enter("compute")
        if self._timer is not None:
            self._begin_timing()

    def complete(self) -> None:
        """Count one optimizer step on everything in flight, and enter ``other``."""
        if self._timer is not None:
            if self._paused:  # what was timed of this step has ended before; it is a step all the same
                self._begin_timing()
            self._end_compute(completes_step=True)
        self.enter("other")
        counts, totals = self._counts, self._totals
        if counts["steps"] < self._warmup_steps:
            counts["warmup_steps"] += 1
            if counts["steps"] + 1 == self._warmup_steps:
                self._account.update(fetch="fetch", compute="compute")
        self._step_began = self._step_ended
        self._step_ended = (totals["fetch"], totals["compute"], totals["wait"])
        counts["completed"] = counts["delivered"] - counts["failed_updates"]
        counts["steps"] += 1
        if self.on_step is not None:
            self.on_step()

    def fail(self) -> None:
        """Count everything in flight as lost to a failed update, and enter ``other``."""
        self._end_compute(completes_step=False)
        self._paused = False
        self.enter("other")
        self._counts["failed_updates"] += self.in_flight

    def _pause(self) -> None:
        if self._timing:
            self._end_compute(completes_step=False)
            self._paused = True

    def _begin_timing(self) -> None:
        self._paused = False
        if self._timer is not None and not self.warming_up:
            self._timer.begin()
            self._timing = True

    def _end_compute(self, *, completes_step: bool) -> None:
        if self._timer is not None and self._timing:
            self._timer.end(completes_step=completes_step)
            self._timing = False

    def on_interval(self, kind: str, started_s: float, ended_s: float) -> None:
        """Count a wait that has just ended. Give it to `odstream.runtime.ODSFlowController` as ``on_interval``.

        Raises:
            ValueError: If the kind of wait is unknown.
        """
        check_choice("kind", kind, tuple(_STATE_OF_INTERVAL))
        self.move(_STATE_OF_INTERVAL[kind], max(0, round((ended_s - started_s) * 1e9)))

    def snapshot(self) -> Snapshot:
        """Return what was added up so far, with what the device has finished by now. Never waits."""
        if self._timer is not None:
            device_ns, device_steps = self._timer.collect()
            self._counts["device_ns"] += device_ns
            self._counts["device_steps"] += device_steps
        return Snapshot(
            role="learner",
            name=self.name,
            state=self._state,
            states_ns=self.totals_ns(),
            counts=dict(self._counts),
            ages=self.ages.copy(),
        )


class _Untimed(_Stay):
    __slots__ = ("_learner",)

    def __init__(self, learner: LearnerMeter, state: str) -> None:
        super().__init__(learner, state)
        self._learner = learner

    def __enter__(self) -> None:
        super().__enter__()
        self._learner._pause()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        super().__exit__(kind, error, traceback)
        if self._learner._paused:
            self._learner._begin_timing()


class _Update:
    __slots__ = ("_meter",)

    def __init__(self, meter: LearnerMeter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._meter.begin_compute()

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        if kind is None:
            self._meter.complete()
        else:
            self._meter.fail()


class ProducerMeter(StateMeter):
    """The time and counts of one producer slot.

    Enter states as they change, and call `finish` when a call of the producer has ended and its results are
    published. Time of calls that have not ended is in the states, and in no rate.

    Args:
        name: Of the slot.
        incarnation: Of the process that works for it.
        clock_ns: Monotonic nanoseconds.
    """

    def __init__(
        self, name: str = "producer0", *, incarnation: int = 0, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        super().__init__(PRODUCER_STATES, initial="starved", clock_ns=clock_ns)
        self.name = name
        self.incarnation = incarnation
        self._counts = dict.fromkeys(
            ("calls", "accepted", "failed", "published", "lost", "service_busy_ns", "service_publish_ns"), 0
        )
        self._finished = (0, 0)

    def finish(self, *, accepted: int = 0, failed: int = 0, lost: int = 0) -> None:
        """Count a call that has ended, and enter ``starved``.

        Args:
            accepted: Episodes that were accepted.
            failed: Attempts that were not.
            lost: Accepted episodes that were never published.
        """
        for name, value in (("accepted", accepted), ("failed", failed)):
            check_int(name, value, 0)
        check_int("lost", lost, 0, accepted)
        self.enter("starved")
        busy_ns, publish_ns = self._totals["busy"], self._totals["publish"]
        counts = self._counts
        counts["calls"] += 1
        counts["accepted"] += accepted
        counts["failed"] += failed
        counts["lost"] += lost
        counts["published"] += accepted - lost
        counts["service_busy_ns"] += busy_ns - self._finished[0]
        counts["service_publish_ns"] += publish_ns - self._finished[1]
        self._finished = (busy_ns, publish_ns)

    def snapshot(self) -> Snapshot:
        """Return what was added up so far."""
        return Snapshot(
            role="producer",
            name=self.name,
            incarnation=self.incarnation,
            state=self._state,
            states_ns=self.totals_ns(),
            counts=dict(self._counts),
        )


def metered(
    loader: Iterable[_T], meter: LearnerMeter | None, *, size: int | Callable[[_T], int] | None = None
) -> Iterable[_T]:
    """Return ``meter.batches(loader)``, or without a meter ``loader`` itself, so that being off costs nothing.

    Args:
        loader: Any iterable.
        meter: The meter, or None.
        size: Selections per batch, or a function that counts them. None: ``len`` of the batch.
    """
    if meter is None:
        return loader
    return meter.batches(loader, size=_length if size is None else size)


def _length(batch: object) -> int:
    if not isinstance(batch, Sized):
        raise TypeError(f"size must be given: a batch of type {type(batch).__name__} has no length")
    return len(batch)
