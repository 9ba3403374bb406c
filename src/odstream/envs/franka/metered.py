"""The training with performance metrics: its stopwatch tells them what happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from odstream.engine import OnlineDataEngine
from odstream.envs.franka.policy import Context
from odstream.envs.franka.training import State, Stopwatch
from odstream.perf.meter import LearnerState
from odstream.perf.training import TrainingMetrics

_LEARNER_STATES: dict[State, LearnerState] = {"wait": "wait", "fetch": "fetch", "evaluate": "eval"}
"""All but ``compute``, which `completed` ends: on a device it has a clock of its own."""


class MeteredStopwatch(Stopwatch):
    """A stopwatch that meters.

    Args:
        metrics: Open.
        engine: What the training samples; attached while the training runs.
    """

    def __init__(self, metrics: TrainingMetrics, engine: OnlineDataEngine) -> None:
        super().__init__()
        self._metrics, self._engine = metrics, engine

    @contextmanager
    def running(self, updates: int) -> Iterator[None]:
        """Meter from here on, and end it while the engine still runs."""
        self._metrics.attach(self._engine, steps=updates)
        try:
            yield
        finally:
            self._metrics.detach()

    @contextmanager
    def measure(self, state: State) -> Iterator[None]:
        """Count the time of a ``with`` block, also if it raises."""
        meter = self._metrics.meter
        with super().measure(state):
            if state == "compute":
                meter.begin_compute()
                yield
            else:
                with meter.during(_LEARNER_STATES[state]):
                    yield

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Count as waiting; of it, metrics take what the flow controller says that it waited or paced."""
        with super().measure("wait"):
            yield

    def delivered(self, context: Context, current: int) -> None:
        """Count a batch."""
        self._metrics.delivered(context, current)

    def completed(self, loss: float) -> None:
        """Count a step; a record may follow."""
        self._metrics.completed(loss)


class MetricsBar:
    """The progress of a metered training: the metrics draw their own bar.

    Args:
        metrics: Open.
    """

    def __init__(self, metrics: TrainingMetrics) -> None:
        self._metrics = metrics

    def update(self, updates: int, loss: float, solved: str) -> None:
        """Leave it to the metrics, which were told of the step."""

    def write(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._metrics.write(text)
