"""Collects what a comparison of a run with its plan needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from odstream.calibration.comparison import (
    Comparison,
    LearnerWork,
    RefillRequest,
    RunRecords,
    Wait,
    compare_run,
)
from odstream.calibration.documents import PlanInputs
from odstream.errors import EngineStateError
from odstream.runtime import FlowEngine, ODSFlowController, ODSFlowControllerCfg

_KEPT = ("kind", "episode_id", "generation", "monotonic_ns")


class ObservedEngine(FlowEngine, Protocol):
    """An engine with budgets, and what is read of it at the end."""

    @property
    def bytes_per_episode(self) -> int:
        """E."""

    def get_sampling_budget_snapshot(self) -> Mapping[str, Any]:
        """The ledger."""


class RunObserver(Protocol):
    """Whoever else wants to know what the controller of a planned run reports."""

    def on_events(self, events: Sequence[Mapping[str, Any]]) -> object:
        """Take lifecycle events."""

    def on_interval(self, kind: str, started: float, ended: float) -> object:
        """Take a wait that has ended."""


class RunRecorder:
    """Observes a planned run: hand its ``on_*`` methods to the `ODSFlowController`, and count what was delivered.

    Args:
        learner: Returns what the learner has done so far. Called at every refill request.
    """

    def __init__(self, learner: Callable[[], LearnerWork]) -> None:
        self._learner = learner
        self._refills: list[RefillRequest] = []
        self._events: list[dict[str, Any]] = []
        self._waits: list[Wait] = []
        self._delivered: Counter[int] = Counter()
        self.waited_s = 0.0
        """Seconds in waits of all kinds that have ended."""

    def on_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Keep what a lifecycle event says of an episode; the frames are left out."""
        self._events += ({name: event[name] for name in _KEPT} for event in events)

    def on_refill(self, generation: int, requested_at: float) -> None:
        """Note a refill request, and how far the learner is."""
        self._refills.append(RefillRequest(generation=generation, requested_at_s=requested_at, learner=self._learner()))

    def on_interval(self, kind: str, started: float, ended: float) -> None:
        """Note a wait; one of length zero is none."""
        if ended > started:
            self.waited_s += ended - started
            self._waits.append(Wait(kind=kind, started_s=started, ended_s=ended))

    def delivered(self, episode_ids: Iterable[int]) -> None:
        """Count one delivery for each entry: the episodes of a batch's current frames."""
        self._delivered.update(episode_ids)

    def records(self, engine: ObservedEngine) -> RunRecords:
        """Return everything that was observed.

        Args:
            engine: Stopped, so that nothing is produced any more, and its lifecycle log drained after that.
        """
        return RunRecords(
            refills=tuple(self._refills),
            events=tuple(self._events),
            waits=tuple(self._waits),
            delivered_chunks=dict(self._delivered),
            ledger=engine.get_sampling_budget_snapshot(),
            bytes_per_episode=engine.bytes_per_episode,
        )


class PlannedRun:
    """A plan that is about to be followed: gives the run its controller, and compares afterwards.

    Args:
        inputs: What the plan follows from.
        cfg: Of the controller.
    """

    def __init__(self, inputs: PlanInputs, cfg: ODSFlowControllerCfg | None = None) -> None:
        self.inputs, self.plan = inputs, inputs.plan()
        self._cfg = cfg
        self._run: tuple[ObservedEngine, ODSFlowController, RunRecorder] | None = None

    def control(
        self, engine: ObservedEngine, learner: Callable[[], LearnerWork], observer: RunObserver | None = None
    ) -> tuple[ODSFlowController, RunRecorder]:
        """Return the controller of a running engine, and the recorder to tell of deliveries.

        Args:
            engine: Configured from the plan.
            learner: Returns what the learner has done so far. Called at every refill request.
            observer: Told of events and waits as well, after the recorder.

        Raises:
            ValueError: If the engine was not configured from the plan.
        """
        recorder = RunRecorder(learner)
        observers = (recorder,) if observer is None else (recorder, observer)
        controller = ODSFlowController(
            engine,
            self._cfg,
            plan=self.plan,
            on_events=_all(one.on_events for one in observers),
            on_refill=recorder.on_refill,
            on_interval=_all(one.on_interval for one in observers),
        )
        self._run = (engine, controller, recorder)
        return controller, recorder

    def compare(self) -> Comparison:
        """Compare the run with the plan, after the engine has stopped.

        Raises:
            EngineStateError: If there was no run.
        """
        if self._run is None:
            raise EngineStateError("there is nothing to compare: control() was not called")
        engine, controller, recorder = self._run
        controller.drain_events()
        return compare_run(
            self.plan,
            recorder.records(engine),
            planned_first_publication_s=self.inputs.runtime.first_publication_p95_seconds,
        )


def _all(calls: Iterable[Callable[..., object]]) -> Callable[..., None]:
    every = tuple(calls)

    def call(*arguments: Any) -> None:
        for one in every:
            one(*arguments)

    return call
