"""A pipeline of producers, a pool and a learner on a simulated clock, metered by the real meters.

Processes are generators that yield seconds to sleep, or a condition to wait for. Events happen in order of time and,
at one time, of their making, so that every run is the same.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from odstream.perf.facts import PoolReading
from odstream.perf.meter import LearnerMeter, ProducerMeter
from odstream.perf.monitor import PerfMonitor
from odstream.perf.records import Record
from odstream.perf.shape import PipelineShape

Wait = float | Callable[[], bool]
Process = Generator[Wait, None, None]


class Simulation:
    """A clock and the processes that live by it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._ready: list[tuple[int, int, Process]] = []
        self._waiting: list[tuple[Callable[[], bool], Process]] = []
        self._order = 0

    def clock_ns(self) -> int:
        return self.now_ns

    @property
    def now_s(self) -> float:
        return self.now_ns / 1e9

    def start(self, process: Process) -> None:
        self._schedule(process, 0.0)

    def run(self, until_s: float) -> None:
        """Run to a time; an error if everybody waits for ever."""
        while True:
            self._wake()
            if not self._ready:
                raise RuntimeError(f"deadlock at {self.now_s} s: everybody waits")
            at_ns, _, process = self._ready[0]
            if at_ns > until_s * 1e9:
                return
            heapq.heappop(self._ready)
            self.now_ns = at_ns
            self._advance(process)

    def _schedule(self, process: Process, delay_s: float) -> None:
        self._order += 1
        heapq.heappush(self._ready, (self.now_ns + round(delay_s * 1e9), self._order, process))

    def _advance(self, process: Process) -> None:
        try:
            wait = next(process)
        except StopIteration:
            return
        if callable(wait):
            self._waiting.append((wait, process))
        else:
            self._schedule(process, wait)

    def _wake(self) -> None:
        """Resume one whose condition holds at a time, since it may take what the next one waits for."""
        progress = True
        while progress:
            progress = False
            for index, (condition, process) in enumerate(self._waiting):
                if condition():
                    del self._waiting[index]
                    self._advance(process)
                    progress = True
                    break


@dataclass(kw_only=True)
class Engine:
    """One producer slot."""

    call_s: float | tuple[float, ...]
    """Of every call, or of calls in turn."""
    publish_s: float = 0.0
    fails: Callable[[int], bool] = lambda call: False
    """Whether the n-th call fails as a whole."""
    down_from_s: float = float("inf")
    queued: int = 0
    """Requests that always wait on it while it serves one."""

    def duration_s(self, call: int) -> float:
        return self.call_s[call % len(self.call_s)] if isinstance(self.call_s, tuple) else self.call_s


@dataclass(kw_only=True)
class Learner:
    """One training loop."""

    fetch_s: float = 0.0
    compute_s: float = 0.0
    pace_s: float = 0.0
    other_s: float = 0.0
    evaluate_every: int = 0
    evaluate_s: float = 0.0


@dataclass
class Outcome:
    """What was recorded, and what really happened."""

    monitor: PerfMonitor
    records: list[Record]
    completed_between: Callable[[int, int], int]
    ended_ns: int
    meters: Sequence[ProducerMeter]
    recorded_at_ns: list[int]
    latencies_s: list[float]
    """From a request to its result, queueing included; of engines with requests queued on them."""

    @property
    def last(self) -> Record:
        return self.records[-1]


@dataclass
class _Pool:
    level: int = 0
    capacity: int | None = None
    delivered: int = 0

    def has_room(self, selections: int) -> bool:
        return self.capacity is None or self.level + selections <= self.capacity


@dataclass
class _Collector:
    simulation: Simulation
    records: list[Record] = field(default_factory=list)
    at_ns: list[int] = field(default_factory=list)

    def write(self, record: Record) -> None:
        self.records.append(record)
        self.at_ns.append(self.simulation.now_ns)

    def close(self) -> None:
        pass


def simulate(
    shape: PipelineShape,
    engines: Sequence[Engine],
    learner: Learner,
    *,
    duration_s: float = 60.0,
    round_robin: bool = False,
) -> Outcome:
    """Run a pipeline and return what its monitor recorded."""
    simulation = Simulation()
    pool = _Pool(capacity=shape.pool_capacity)
    meters = [ProducerMeter(f"engine{number}", clock_ns=simulation.clock_ns) for number, _ in enumerate(engines)]
    meter = LearnerMeter(clock_ns=simulation.clock_ns)
    collector = _Collector(simulation)
    monitor = PerfMonitor(
        meter,
        shape,
        producers=meters,
        pool=lambda: PoolReading(ready=pool.level),
        sinks=[collector],
        clock_ns=simulation.clock_ns,
        unix_ns=lambda: 0,
    )
    turn = _Turn(len(engines)) if round_robin else None
    latencies_s: list[float] = []
    for number, engine in enumerate(engines):
        simulation.start(_produce(simulation, shape, engine, meters[number], pool, turn, number, latencies_s))
    completions: list[int] = []
    simulation.start(_learn(simulation, shape, learner, meter, pool, completions))
    simulation.run(duration_s)

    def completed_between(start_ns: int, end_ns: int) -> int:
        return shape.batch_size * sum(start_ns < at_ns <= end_ns for at_ns in completions)

    return Outcome(
        monitor, collector.records, completed_between, simulation.now_ns, meters, collector.at_ns, latencies_s
    )


class _Turn:
    """Hands tasks to engines in turn: a round begins when the slowest has ended the last one."""

    def __init__(self, engines: int) -> None:
        self.begun = [0] * engines
        self.ended = [0] * engines

    def may_begin(self, number: int) -> bool:
        return self.begun[number] == min(self.ended)


def _produce(
    simulation: Simulation,
    shape: PipelineShape,
    engine: Engine,
    meter: ProducerMeter,
    pool: _Pool,
    turn: _Turn | None,
    number: int,
    latencies_s: list[float],
) -> Process:
    handed = shape.producer_batch * shape.selections_per_episode
    requested_s = deque([0.0] * (engine.queued + 1))  # each result is followed by a new request
    call = 0
    while True:
        if turn is not None:
            yield lambda: turn.may_begin(number)
            turn.begun[number] += 1
        if simulation.now_s >= engine.down_from_s:
            meter.enter("down")
            return
        meter.enter("busy")
        yield engine.duration_s(call)
        call += 1
        if engine.fails(call):
            meter.finish(failed=shape.producer_batch)
        else:
            meter.enter("blocked")
            yield lambda: pool.has_room(handed)
            meter.enter("publish")
            yield engine.publish_s
            pool.level += handed
            meter.finish(accepted=shape.producer_batch)
        latencies_s.append(simulation.now_s - requested_s.popleft())
        requested_s.append(simulation.now_s)
        if turn is not None:
            turn.ended[number] += 1


def _learn(
    simulation: Simulation,
    shape: PipelineShape,
    learner: Learner,
    meter: LearnerMeter,
    pool: _Pool,
    completions: list[int],
) -> Process:
    step = 0
    while True:
        with meter.during("pace"):
            yield learner.pace_s
        with meter.during("wait"):
            yield lambda: pool.level >= shape.batch_size
        with meter.during("fetch"):
            pool.level -= shape.batch_size
            pool.delivered += shape.batch_size
            yield learner.fetch_s
        meter.deliver(shape.batch_size)
        with meter.update():
            yield learner.compute_s
            completions.append(simulation.now_ns)
        step += 1
        with meter.during("other"):
            yield learner.other_s
        if learner.evaluate_every and step % learner.evaluate_every == 0:
            with meter.during("eval"):
                yield learner.evaluate_s
