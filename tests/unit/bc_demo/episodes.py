"""Small episodes of the task's shape, from memory; and the pieces of a training on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from examples.ods.simple_bc_demo.checkpoint import load_training, restore, save_training
from examples.ods.simple_bc_demo.loop import Hooks, Training
from examples.ods.simple_bc_demo.settings import LoopCfg, RunCfg
from odstream.datasets import TensorDataSource
from odstream.envs.franka.evaluate import Evaluation
from odstream.envs.franka.policy import ChunkPolicy, Learner, PolicyCfg
from odstream.envs.franka.schema import SCHEMA

CFG = RunCfg(
    mode="offline-32",
    loop=LoopCfg(updates=12, batch_size=8, first_batches=3, evaluate_at=(5,), scenes=1, checkpoint_every=6),
    policy=PolicyCfg(observation_dim=51, action_dim=7, chunk=4, width=16),
)


def source_of(seed: int = 0, scale: float = 1.0) -> TensorDataSource:
    """Four episodes of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    episodes = [
        TensorDict(
            {
                "obs": scale * torch.randn(frames, 51, generator=generator),
                "actions": torch.rand(frames, 7, generator=generator) * 2 - 1,
            },
            batch_size=[frames],
        )
        for frames in (6, 9, 12, 7)
    ]
    return TensorDataSource(
        episodes,
        schema=SCHEMA,
        source_id=f"test-{seed}",
        episode_sample_budget=10**9,
        episode_sample_hard_limit=10**9,
    )


@dataclass
class Bench:
    """A training whose checkpoints are all kept, in ``folder``."""

    folder: Path
    cfg: RunCfg = CFG
    source: TensorDataSource = field(default_factory=source_of)
    losses: list[float] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.cfg.seed)
        np.random.seed(self.cfg.seed)
        self.generator = torch.Generator().manual_seed(self.cfg.seed)
        self.learner = Learner(ChunkPolicy(self.cfg.policy), self.cfg.learner)
        self.training = Training(
            learner=self.learner,
            draw=lambda: self.source.sample_context(
                self.cfg.loop.batch_size, self.cfg.sequence, generator=self.generator
            ),
            cfg=self.cfg.loop,
            evaluate=lambda _: Evaluation(np.ones(1, bool), np.zeros(1), np.ones(1, bool)),
            hooks=Hooks(
                on_update=lambda _, loss: self.losses.append(loss),
                on_evaluation=lambda updates, _: self.evaluated.append(updates),
                save=self.save,
            ),
        )

    def path(self, updates: int) -> Path:
        """Where the checkpoint of so many updates lies."""
        return self.folder / f"{updates}.pt"

    def save(self, updates: int) -> None:
        """Write a checkpoint."""
        save_training(self.path(updates), self.cfg, self.learner, updates, self.source, self.generator)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        self.training.updates = restore(load_training(path), self.learner, self.source, self.generator)
