"""Train a small policy on a Meta-World task while its scripted expert is still producing, then try the policy.

    python examples/metaworld_stream.py [--task door-open-v3] [--smoke]

Needs the extra ``metaworld``. Takes about a minute on two cores, with ``--smoke`` a few seconds.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

from odstream.datasets import OnlineDataset
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.envs.metaworld import SeededTask, metaworld_config

MAX_EPISODE_STEPS = 200
EVALUATION_SEED = 900_000
"""Scenes from here on are tried, and are never trained on."""


class Policy(nn.Module):
    """Chooses an action ``[..., 4]`` from an observation ``[..., 39]``, normalised with the given statistics."""

    mean: Tensor
    scale: Tensor

    def __init__(self, observations: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", observations.mean(0))
        self.register_buffer("scale", observations.std(0).clamp(min=0.01))
        self.layers = nn.Sequential(
            nn.Linear(39, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4), nn.Tanh()
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Choose actions."""
        chosen: Tensor = self.layers((observations - self.mean) / self.scale)
        return chosen


def train(engine: OnlineDataEngine, updates: int) -> Policy:
    """Imitate the expert on batches of single frames, drawn from whatever episodes are in the cache at the moment."""
    batches = iter(OnlineDataset(engine, chunk_size=1, batch_size=256))
    policy = Policy(next(batches)["obs"].float().flatten(0, 1))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for update in range(updates):
        batch = next(batches)
        loss = (policy(batch["obs"].float()) - batch["actions"]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if update % max(updates // 8, 1) == 0 or update == updates - 1:
            episodes = engine.get_stats()["successful_episodes"]
            print(f"update {update:5d}  loss {loss.item():.3f}  episodes produced {episodes}")
    return policy


@torch.no_grad()
def success_rate(policy: Policy, task: str, scenes: int) -> float:
    """Let the policy act in fresh scenes."""
    environment = SeededTask(task)
    solved = 0
    for scene in range(scenes):
        observation, _ = environment.reset(seed=EVALUATION_SEED + scene)
        for _ in range(MAX_EPISODE_STEPS):
            action = policy(torch.as_tensor(observation, dtype=torch.float32)).numpy()
            observation, _, _, _, info = environment.step(action)
            if np.any(info["success"]):
                solved += 1
                break
    environment.close()
    return solved / scenes


def main() -> None:
    """Stream, train, try."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="door-open-v3")
    parser.add_argument("--smoke", action="store_true", help="a few seconds only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cfg = OnlineDataEngineCfg(
        gym_config=metaworld_config(arguments.task, num_envs=4, seed=0),
        buffer_size=16 if arguments.smoke else 64,
        max_episode_steps=MAX_EPISODE_STEPS,
        max_generation_attempts=5,
        refill_threshold=200,
    )
    with OnlineDataEngine(cfg) as engine:
        policy = train(engine, updates=50 if arguments.smoke else 3000)
        stats = engine.get_stats()
    print(f"{stats['failed_episodes']} attempts of the expert failed; none of them was ever sampled")
    scenes = 2 if arguments.smoke else 25
    print(f"the policy solves {success_rate(policy, arguments.task, scenes):.0%} of {scenes} fresh scenes")


if __name__ == "__main__":
    main()
