"""A producer that publishes the workload as fast as memory allows. Imports no torch: it runs in the worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from workload import STEP_DT_S, Shape, episode_lengths, recorded_pool, segment_bounds

from odstream.producers.base import (
    Episode,
    FieldSpec,
    ProducerContext,
    RolloutSpec,
    Segment,
    Staging,
    never,
)

ENVIRONMENTS = 8


@dataclass(frozen=True)
class SyntheticFactory:
    """Builds a `SyntheticProducer`; picklable."""

    shape: Shape

    def __call__(self, context: ProducerContext) -> SyntheticProducer:
        """Build it; the engine's T is the shape's."""
        return SyntheticProducer(self.shape)


class SyntheticProducer:
    """A `odstream.producers.base.Producer` without a simulator."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        float32 = np.dtype(np.float32)
        self._spec = RolloutSpec(
            num_envs=ENVIRONMENTS,
            fields={
                ("obs",): FieldSpec(shape=(shape.obs_dim,), dtype=float32),
                ("actions",): FieldSpec(shape=(shape.action_dim,), dtype=float32),
                ("rewards",): FieldSpec(shape=(), dtype=float32),
            },
            state_dim=shape.obs_dim,
            action_dim=shape.action_dim,
            step_dt=STEP_DT_S,
        )

    @property
    def spec(self) -> RolloutSpec:
        """One flat observation, the action, the reward."""
        return self._spec

    def produce(self, count: int, staging: Staging, *, should_stop: Callable[[], bool] = never) -> Iterator[Episode]:
        """Yield ``count`` accepted episodes, those of the workload in their order."""
        lengths = episode_lengths(self._shape)
        pool = recorded_pool(self._shape)
        for scene in range(count):
            if should_stop():
                return
            row, length = staging.claim(), int(lengths[scene % len(lengths)])
            for name, value in pool[scene % len(pool)].items():
                staging.arrays[name,][row, :length] = value[:length]
            yield Episode(
                row=row,
                length=length,
                accepted=True,
                segments=tuple(
                    Segment(start=start, end=end, name=f"part {index}", instruction=f"part {index}")
                    for index, (start, end) in enumerate(segment_bounds(length))
                ),
                terminated=True,
                instruction="the whole task",
                scene=scene,
            )

    def close(self) -> None:
        """Nothing to close."""
