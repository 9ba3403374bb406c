"""Three ways to iterate over a live stream: item mode, batch mode, and chunk lengths that change.

    python examples/data_pipeline/online_dataset_demo.py

A pendulum is swung up by a hand-written expert, in a process of its own, while this process draws chunks of the
episodes that are finished. It takes a few seconds.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch.utils.data import DataLoader

from odstream.datasets import OnlineDataset
from odstream.datasets.sampler import GMMChunkSampler, UniformChunkSampler
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg

TORQUE_LIMIT = 2.0


def swing_up(observation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the torque ``[1]`` that brings the pendulum up: pump energy until it is near the top, then balance it."""
    cosine, sine, speed = (float(value) for value in observation)
    energy = speed**2 / 6 + 5 * (cosine - 1)  # zero for a pendulum that stands upright and still
    if cosine > 0.9 and abs(energy) < 2.0:
        torque = -20 * np.arctan2(sine, cosine) - 4 * speed
    else:
        torque = -np.sign(energy) * (np.sign(speed) or 1.0) * TORQUE_LIMIT
    return np.array([np.clip(torque, -TORQUE_LIMIT, TORQUE_LIMIT)], dtype=np.float32)


def item_mode(engine: OnlineDataEngine) -> None:
    """The dataset yields single chunks, the loader stacks them."""
    dataset = OnlineDataset(engine, chunk_size=32)
    loader = DataLoader(dataset, batch_size=16, collate_fn=OnlineDataset.collate_fn)
    for batch in islice(loader, 2):
        print("item mode     ", describe(batch))


def batch_mode(engine: OnlineDataEngine) -> None:
    """The dataset yields whole batches, drawn by one call each; the loader passes them through."""
    dataset = OnlineDataset(engine, chunk_size=32, batch_size=16)
    loader = DataLoader(dataset, batch_size=None, collate_fn=OnlineDataset.passthrough_collate_fn)
    for batch in islice(loader, 2):
        print("batch mode    ", describe(batch))


def dynamic_chunk_sizes(engine: OnlineDataEngine) -> None:
    """A sampler draws the length anew for every batch; all chunks of a batch share it."""
    samplers = {
        "uniform length": UniformChunkSampler(low=16, high=64),
        "mixed lengths ": GMMChunkSampler(means=[16.0, 64.0], stds=[4.0, 8.0], weights=[0.6, 0.4], low=8, high=96),
    }
    for name, sampler in samplers.items():
        for batch in islice(OnlineDataset(engine, chunk_size=sampler, batch_size=16), 3):
            print(name, describe(batch))


def describe(batch: TensorDictBase) -> str:
    """Say how large a batch and its main parts are."""
    parts = ", ".join(f"{key} {list(batch[key].shape)}" for key in ("obs", "actions", "rewards"))
    return f"{list(batch.batch_size)}: {parts}"


def main() -> None:
    """Stream, and iterate in all three ways."""
    cfg = OnlineDataEngineCfg(
        buffer_size=8,
        max_episode_steps=200,
        gym_config={"id": "Pendulum-v1", "num_envs": 4, "expert": swing_up, "seed": 0},
    )
    with OnlineDataEngine(cfg) as engine:
        item_mode(engine)
        batch_mode(engine)
        dynamic_chunk_sizes(engine)
        print(f"{engine.get_stats()['successful_episodes']} episodes were produced")


if __name__ == "__main__":  # the producer process imports this file
    main()
