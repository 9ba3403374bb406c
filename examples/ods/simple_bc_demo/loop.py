"""The training loop. It knows one contract, the source's contexts, and no arm.

The learner's time is in one state at a time, on the meter: ``wait`` and ``pace`` (told by whoever draws), ``fetch``,
``compute``, ``eval``, ``checkpoint``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict

from examples.ods.simple_bc_demo.settings import LoopCfg
from odstream.envs.franka.evaluate import Evaluation
from odstream.envs.franka.policy import ChunkPolicy, Learner
from odstream.perf import ExposureRecorder, LearnerMeter

Draw = Callable[[], TensorDict]
"""Returns the next batch of contexts, owned; waits for it if it has to."""
Evaluate = Callable[[ChunkPolicy], Evaluation]


@dataclass(slots=True)
class Hooks:
    """What happens beside the training. Times of these calls are not the learner's."""

    on_update: Callable[[int, float], object] = lambda updates, loss: None
    """Gets the updates done and the latest loss."""
    on_evaluation: Callable[[int, Evaluation], object] = lambda updates, evaluation: None
    save: Callable[[int], object] = lambda updates: None
    """Writes a checkpoint to resume from."""


@dataclass(slots=True)
class Training:
    """One training, from its first batch or from where a checkpoint left it."""

    learner: Learner
    draw: Draw
    cfg: LoopCfg
    evaluate: Evaluate
    meter: LearnerMeter = field(default_factory=LearnerMeter)
    exposure: ExposureRecorder = field(default_factory=ExposureRecorder)
    hooks: Hooks = field(default_factory=Hooks)
    updates: int = 0
    """Optimizer steps done, those before a resume included."""
    _held: deque[TensorDict] = field(default_factory=deque)

    def run(self) -> None:
        """Train up to ``cfg.updates`` and evaluate on the way and at the end.

        Raises:
            FloatingPointError: If the loss is not finite. The selections of that update count as failed.
            Exception: What drawing raises.
        """
        if self.updates == 0:
            self._freeze_normalisation()
        while self.updates < self.cfg.updates:
            if self.updates in self.cfg.evaluate_at:
                self._evaluate()
            self.hooks.on_update(self.updates + 1, self._update())
            self.updates += 1
            if self.updates % self.cfg.checkpoint_every == 0 or self.updates == self.cfg.updates:
                with self.meter.during("checkpoint"):
                    self.hooks.save(self.updates)
        self._evaluate()

    def _freeze_normalisation(self) -> None:
        """Take it from the first batches, that is from the first cache; they are trained on afterwards."""
        with self.meter.during("fetch"):
            self._held.extend(self.draw() for _ in range(self.cfg.first_batches))
        first: Any = torch.cat(list(self._held))
        self.learner.policy.freeze_normalisation(first)

    def _update(self) -> float:
        with self.meter.during("fetch"):
            batch = self._held.popleft() if self._held else self.draw()
            self.meter.deliver(len(batch))
            self.exposure.delivered(batch, self.learner.policy.cfg.history - 1)
        try:
            with self.meter.update():
                loss = self.learner.update(batch, self.updates / self.cfg.updates)
                if not math.isfinite(loss):
                    raise FloatingPointError(f"the loss of update {self.updates + 1} is {loss}")
        except BaseException:
            self.exposure.failed()
            raise
        self.exposure.completed()
        return loss

    def _evaluate(self) -> None:
        with self.meter.during("eval"):
            evaluation = self.evaluate(self.learner.policy)
        self.hooks.on_evaluation(self.updates, evaluation)
