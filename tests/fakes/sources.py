"""An engine without a process: samples a `Cache` as `OnlineDataEngine` samples its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from odstream.producers.base import FieldSpec, RolloutSpec
from tests.fakes.cache import RUN_ID, Cache, Published, context

SCHEMA: dict[str, Any] = {
    "observation": {"names": ["a", "b", "c"], "dtype": "float32"},
    "action": {"names": ["x", "y"], "dtype": "float32", "semantics": "expert_controller_command", "step_dt": 0.05},
}
"""Of the fields that a `Cache` has by default."""


@dataclass
class CacheEngineCfg:
    """The settings that a source reads."""

    include_provenance: bool = True


class CacheEngine:
    """Has the calls of `OnlineDataEngine` that a source makes."""

    def __init__(self, cache: Cache, step_dt: float | None = 0.05) -> None:
        self.cache, self.cfg, self.run_id = cache, CacheEngineCfg(cache.provenance), RUN_ID
        fields = {field.key: FieldSpec(shape=field.shape, dtype=field.dtype) for field in cache.fields}
        self.rollout_spec = RolloutSpec(num_envs=1, fields=fields, state_dim=3, action_dim=2, step_dt=step_dt)
        self.calls = 0
        self._sampler = cache.sampler()

    def sample_batch_with_context(
        self,
        batch_size: int,
        history_length: int,
        prediction_horizon: int,
        *,
        generator: torch.Generator | None = None,
        sampling_mode: str = "episode",
        generations: tuple[int, ...] | None = None,
    ) -> TensorDict:
        self.calls += 1
        request = context(batch_size, history_length, prediction_horizon, sampling_mode, generations)
        batch = self._sampler.draw(request, generator)
        if "loss_mask" not in batch:
            batch["loss_mask"] = batch["valid"].clone()
        return batch

    def resolve_language(self, batch: Any) -> dict[str, Any]:
        return {"task": [np.asarray(batch["task_index"]).shape]}


def episode(published: Published, *without: str) -> TensorDict:
    """An episode of a cache as it would be given to a resident source."""
    frames = {key: values for key, values in published.frames.items() if key[0] not in without}
    tensors = {key if len(key) > 1 else key[0]: torch.from_numpy(values.copy()) for key, values in frames.items()}
    return TensorDict(tensors, batch_size=(published.row.length,))


def padded(episodes: Sequence[TensorDict], frames: int) -> TensorDict:
    """The episodes as ``[N, T]``, filled up with ones, which are no canonical padding."""
    rows = []
    for item in episodes:
        tail = item[:1].apply(torch.ones_like).expand(frames - len(item)).clone()
        tail["valid"] = torch.zeros(frames - len(item), dtype=torch.bool)
        rows.append(torch.cat([item, tail]))
    return torch.stack(rows)
