"""Train the policy on a live stream of episodes, and watch it learn.

The learner's time is spent in one state at a time: ``wait`` (there is no data), ``fetch`` (a batch is drawn and
copied), ``compute`` (the update) or ``evaluate``. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from odstream.envs.franka.environment import FrankaPickPlace
from odstream.envs.franka.evaluate import Evaluation, evaluate
from odstream.envs.franka.policy import Context, Learner
from odstream.errors import DataUnavailableError

State = Literal["wait", "fetch", "compute", "evaluate"]
NORMALISATION_CONTEXTS = 4096
_RETRY_S = 0.005


class EpisodeStream(Protocol):
    """What the training needs of an engine."""

    def sample_batch_with_context(self, batch_size: int, history_length: int, prediction_horizon: int) -> Context:
        """Draw contexts."""

    def request_refill(self) -> object:
        """Ask for a new generation of episodes, unless one is under way. Called before each update; may wait."""

    def get_stats(self) -> Mapping[str, Any]:
        """Count episodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCfg:
    """How long to train, and when to look at the result."""

    updates: int = 2500
    """Optimizer steps."""
    batch_size: int = 256
    """Contexts per step."""
    max_training_s: float = 75.0
    """On a slow machine the training ends here, with the learning rate already down. Evaluation not counted."""
    evaluate_at: tuple[int, ...] = (0, 50, 100, 200, 400, 800, 1600)
    """Updates at which the policy is evaluated on the way."""
    scenes: int = 50
    """Scenes of each evaluation on the way."""
    final_scenes: int = 100
    """Scenes of the evaluation at the end."""
    data_timeout_s: float = 60.0
    """How long to wait for data before giving up."""

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "scenes", "final_scenes"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("max_training_s", "data_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a positive number of seconds, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The policy at one moment of its training."""

    updates: int
    training_s: float
    """Seconds of training so far, evaluation not counted"""
    episodes: int
    """Accepted episodes so far"""
    evaluation: Evaluation


@dataclass
class Stopwatch:
    """Adds up the time spent in each state. What else happens, such as a batch that arrives, it does not mind."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[State, float] = field(
        default_factory=lambda: {"wait": 0.0, "fetch": 0.0, "compute": 0.0, "evaluate": 0.0}
    )

    @contextmanager
    def measure(self, state: State) -> Iterator[None]:
        """Count the time of a ``with`` block, also if it raises."""
        started = self.clock()
        try:
            yield
        finally:
            self.seconds[state] += self.clock() - started

    def preparing(self) -> AbstractContextManager[None]:
        """Count the time in which the stream makes the next batch due: a planned one waits here."""
        return self.measure("wait")

    def running(self, updates: int) -> AbstractContextManager[object]:
        """Return a context for the whole training, of so many updates; on a running stream."""
        return nullcontext()

    def delivered(self, context: Context, current: int) -> None:
        """Take note of a batch that an update will use; ``current`` is the index of its current frame."""

    def completed(self, loss: float) -> None:
        """Take note of an update that is complete."""

    @property
    def training_s(self) -> float:
        """Everything but evaluation."""
        return sum(self.seconds.values()) - self.seconds["evaluate"]


class Training:
    """One training run on one stream."""

    def __init__(
        self,
        stream: EpisodeStream,
        learner: Learner,
        cfg: TrainingCfg,
        scenes: Callable[[int], FrankaPickPlace],
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            stream: Where contexts come from; already started.
            learner: What is trained.
            cfg: For how long.
            scenes: Builds an environment of so many scenes, for evaluation.
            stopwatch: Follows the training. None: one that adds up seconds, and no more.
        """
        self._stream = stream
        self._learner = learner
        self._cfg = cfg
        self._scenes = scenes
        self.stopwatch = Stopwatch() if stopwatch is None else stopwatch
        self.curve: list[CurvePoint] = []
        self.updates = 0

    def run(self, on_update: Callable[[int, float], None], on_evaluation: Callable[[CurvePoint], None]) -> None:
        """Train, and evaluate on the way and at the end.

        Args:
            on_update: Called with the updates done and the latest loss.
            on_evaluation: Called with each new point of the curve.

        Raises:
            TimeoutError: If no data came within ``data_timeout_s``.
            Exception: Whatever the stream raised.
        """
        with self.stopwatch.running(self._cfg.updates):
            self._run(on_update, on_evaluation)

    def _run(self, on_update: Callable[[int, float], None], on_evaluation: Callable[[CurvePoint], None]) -> None:
        cfg, policy = self._cfg, self._learner.policy
        policy.freeze_normalisation(self._draw(NORMALISATION_CONTEXTS))
        on_the_way = self._scenes(cfg.scenes)
        while self.progress < 1.0:
            if self.updates in cfg.evaluate_at:
                on_evaluation(self._evaluate(on_the_way))
            with self.stopwatch.preparing():
                self._stream.request_refill()
            loss = self._update()
            on_update(self.updates, loss)
        on_evaluation(self._evaluate(self._scenes(cfg.final_scenes)))

    @property
    def progress(self) -> float:
        """From 0 to 1: by updates, or by time where that is further."""
        return max(self.updates / self._cfg.updates, self.stopwatch.training_s / self._cfg.max_training_s)

    def _update(self) -> float:
        context = self._draw(self._cfg.batch_size)
        self.stopwatch.delivered(context, self._learner.policy.cfg.history - 1)
        with self.stopwatch.measure("compute"):
            loss = self._learner.update(context, self.progress)
        self.updates += 1
        self.stopwatch.completed(loss)
        return loss

    def _draw(self, contexts: int) -> Context:
        shape = self._learner.policy.cfg
        deadline = self.stopwatch.clock() + self._cfg.data_timeout_s
        while True:
            try:
                with self.stopwatch.measure("fetch"):
                    return self._stream.sample_batch_with_context(contexts, shape.history, shape.chunk)
            except DataUnavailableError as error:
                if self.stopwatch.clock() > deadline:
                    raise TimeoutError(f"no data within data_timeout_s={self._cfg.data_timeout_s}") from error
                with self.stopwatch.measure("wait"):
                    time.sleep(_RETRY_S)

    def _evaluate(self, scenes: FrankaPickPlace) -> CurvePoint:
        episodes = int(self._stream.get_stats()["successful_episodes"])
        training_s = self.stopwatch.training_s
        with self.stopwatch.measure("evaluate"):
            evaluation = evaluate(self._learner.policy, scenes)
        self.curve.append(CurvePoint(self.updates, training_s, episodes, evaluation))
        return self.curve[-1]
