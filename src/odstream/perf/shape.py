"""The sizes of a pipeline. A combination that could only hang is refused here, before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from odstream.validation import check_int

__all__ = ["PipelineShape"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineShape:
    """How many selections move at once, and how many fit between producer and learner.

    Raises:
        TypeError, ValueError: If a field is out of range, or producer and learner could come to wait for each other.
    """

    batch_size: int
    """Selections per optimizer step over all ranks, the global batch size."""
    selections_per_episode: int = 1
    """K: what one accepted episode is worth. The budget, or the configured reuse."""
    reuse_known: bool = True
    """Whether K is known. If not it is taken as it stands, and no verdict compares what producers could make with what
    training consumes."""
    producer_batch: int = 1
    """Episodes that one call of a producer hands over together."""
    pool_capacity: int | None = None
    """Selections that fit between producer and learner. None: more than ever wait there, or old ones make room."""

    def __post_init__(self) -> None:
        check_int("batch_size", self.batch_size, 1)
        check_int("selections_per_episode", self.selections_per_episode, 1)
        check_int("producer_batch", self.producer_batch, 1)
        if self.pool_capacity is None:
            return
        capacity = check_int("pool_capacity", self.pool_capacity, 1)
        handed = self.producer_batch * self.selections_per_episode
        if capacity < self.batch_size:
            raise ValueError(
                f"pool_capacity must be at least batch_size={self.batch_size}, got {capacity}: "
                "no batch could ever be gathered"
            )
        if capacity < handed:
            raise ValueError(
                f"pool_capacity must be at least {handed} selections, what one call of a producer hands over "
                f"(producer_batch={self.producer_batch} times selections_per_episode={self.selections_per_episode}), "
                f"got {capacity}: nothing could ever be queued"
            )
        needed = self.batch_size + handed - math.gcd(self.batch_size, handed)
        if capacity < needed:
            raise ValueError(
                f"pool_capacity must be at least {needed}, got {capacity}: what is left of a batch of "
                f"{self.batch_size} would leave no room for the {handed} selections of a producer's call, and both "
                "would wait for ever"
            )
