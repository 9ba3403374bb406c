"""The learner of all arms. To train another, return it here.

A learner has ``policy`` (with ``cfg.history``, ``cfg.chunk``, ``freeze_normalisation(contexts)``, ``act(histories)``),
``update(contexts, progress)``, which takes one optimizer step and returns the loss, and ``state_dict`` and
``load_state_dict``. Contexts are what every source returns: see `odstream.datasets.BatchSource`.
"""

from __future__ import annotations

from examples.ods.simple_bc_demo.settings import RunCfg
from odstream.envs.franka.policy import ChunkPolicy, Learner


def new_learner(cfg: RunCfg) -> Learner:
    """Return a learner with fresh weights, drawn from torch's generator."""
    return Learner(ChunkPolicy(cfg.policy), cfg.learner)
