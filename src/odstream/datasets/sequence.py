"""The one contract between sources and learners: which contexts are wanted, and what a batch of them holds.

Letters: ``B`` batch, ``H`` history, ``F`` horizon, ``L = H + F - 1`` frames per context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDict

from odstream.cache.windows import SamplingMode
from odstream.errors import DataBudgetExhaustedError, DataUnavailableError
from odstream.validation import check_choice, check_int

__all__ = [
    "BatchSource",
    "DataBudgetExhaustedError",
    "DataUnavailableError",
    "SequenceSpecCfg",
    "check_spec",
]


@dataclass(frozen=True, slots=True)
class SequenceSpecCfg:
    """Which contexts to draw.

    Raises:
        TypeError: If a field has the wrong type.
        ValueError: If a field is out of range.
    """

    history_length: int
    """H: frames up to and including the current one, at least 1."""

    prediction_horizon: int
    """F: frames from the current one on, at least 1."""

    sampling_mode: SamplingMode = "episode"
    """``"episode"``: contexts may span segments. ``"segment"``: each stays within one accepted segment."""

    generations: tuple[int, ...] | None = None
    """Draw only from episodes of these generations, each at least 1; a list becomes a tuple. None: from all. A source
    that does not know generations refuses a filter."""

    def __post_init__(self) -> None:
        check_int("history_length", self.history_length, 1)
        check_int("prediction_horizon", self.prediction_horizon, 1)
        check_choice("sampling_mode", self.sampling_mode, ("episode", "segment"))
        if self.generations is None:
            return
        if not isinstance(self.generations, (tuple, list)) or not self.generations:
            raise ValueError(f"generations must be None or list at least one generation, got {self.generations!r}")
        for index, generation in enumerate(self.generations):
            check_int(f"generations[{index}]", generation, 1)
        object.__setattr__(self, "generations", tuple(self.generations))

    @property
    def length(self) -> int:
        """L."""
        return self.history_length + self.prediction_horizon - 1


@runtime_checkable
class BatchSource(Protocol):
    """Where contexts come from: a live engine, resident tensors, a stored dataset.

    A learner that uses nothing else can be handed any of them. A source waits for nothing, retries nothing and, where
    it samples a live engine, starts and stops nothing.
    """

    @property
    def schema(self) -> Mapping[str, Any]:
        """What observations and actions mean; see `odstream.datasets.schema`."""

    @property
    def source_id(self) -> str:
        """Identity of the data: the same name for the same data."""

    def sample_context(
        self, batch_size: int, spec: SequenceSpecCfg, *, generator: torch.Generator | None = None
    ) -> TensorDict:
        """Return ``B`` contexts as an owned TensorDict ``[B, L]``. The current frame is at ``H - 1`` and always real.

        - ``obs``: ``[B, L, ...]`` or nested; the observation that the action of the same frame was chosen on.
        - ``actions``: ``[B, L, ...]``.
        - ``valid``: ``[B, L]`` bool, real frames. Where it is False numbers are 0 and ids -1.
        - ``loss_mask``: ``[B, L]`` bool, real frames from the current one on.
        - ``frame_ids``: ``[B, L, 3]`` int64, run, episode and frame of the recording.

        What else was recorded is there, too, under the names that the engine uses.

        Args:
            batch_size: B.
            spec: What to draw.
            generator: Source of randomness, on the CPU; None for the source's own.

        Raises:
            DataUnavailableError: If no episode has an eligible frame. Fixed data does not change by waiting.
            DataBudgetExhaustedError: If eligible episodes cannot fund the whole batch. Nothing was debited.
            ValueError: If the source lacks what ``spec`` filters by.
        """


def check_spec(spec: object) -> None:
    """Refuse anything but a `SequenceSpecCfg`, which has checked itself."""
    if not isinstance(spec, SequenceSpecCfg):
        raise TypeError(f"spec must be a SequenceSpecCfg, got {spec!r} ({type(spec).__name__})")
