"""Drives torchrl's ``SliceSampler``. Runs in its own interpreter; see ``peers.py``.

The episodes lie one after another in a ``LazyTensorStorage``, padding left out. The sampler may keep what it knows of
trajectory ends (``cache_values=True``), its fastest setting, and adds no flags of its own. It has no contexts that
reach over an episode's ends, no segments and no budgets, hence only ``sample_batch`` in mode ``episode``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from peers import serve
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from workload import Case, all_fields


def prepare(case: Case) -> Callable[[], object]:
    """Fill a replay buffer with the real frames of the workload and return one draw of slices."""
    fields = all_fields(case.shape)
    real = fields["valid"]
    frames = {name: torch.from_numpy(value[real]) for name, value in fields.items()}
    frame_count = int(real.sum())
    sampler = SliceSampler(
        slice_len=case.chunk_length, traj_key="ods_episode_id", cache_values=True, truncated_key=None
    )
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(frame_count), sampler=sampler, batch_size=case.batch_size * case.chunk_length
    )
    buffer.extend(TensorDict(frames, batch_size=[frame_count]))
    assert buffer.sample().batch_size == torch.Size([case.batch_size * case.chunk_length])
    return buffer.sample


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(prepare, {})
