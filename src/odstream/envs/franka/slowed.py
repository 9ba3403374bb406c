"""The same task on a simulator that takes longer: for trying a plan whose producer is the slow side."""

from __future__ import annotations

import time
from typing import Any

from odstream.envs.franka.environment import Batch, FrankaPickPlace, Info
from odstream.producers.actions import ControllerAction
from odstream.validation import check_finite


class SlowedFranka(FrankaPickPlace):
    """`FrankaPickPlace`, with a pause in each step. What happens in a scene is the same, to the bit.

    Args:
        num_envs: P.
        seconds_per_step: Added to each control step of the whole batch; positive.
        settings: As `FrankaPickPlace`.
    """

    def __init__(self, num_envs: int = 1, *, seconds_per_step: float, **settings: Any) -> None:
        self._pause_s = check_finite("seconds_per_step", seconds_per_step)
        super().__init__(num_envs, **settings)

    def step(self, actions: Batch | ControllerAction) -> tuple[Batch, Any, Any, Any, Info]:
        """Pause, then step; see `FrankaPickPlace.step`."""
        time.sleep(self._pause_s)
        return super().step(actions)
