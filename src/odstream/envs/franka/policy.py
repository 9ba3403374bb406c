"""A small behaviour-cloning learner: two observations in, the next sixteen actions out. Yours may replace it.

Shapes: ``B`` contexts, ``H`` observations of history (the last one is now), ``F`` future actions, ``L = H + F - 1``
frames of a context, ``O`` observation features, ``A`` action entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from odstream.datasets.schema import data_schema_fingerprint
from odstream.envs.franka.actions import ACTION_CONTRACTS
from odstream.envs.franka.schema import SCHEMA
from odstream.validation import check_finite, check_int

CHECKPOINT_FORMAT = 2
TASK = "odstream.franka.pick-and-place@1"
"""Identity of the task that a policy was trained for."""
Context = Mapping[str, Tensor]
"""``obs [B, L, O]``, ``actions [B, L, A]``, ``valid [B, L]``, ``loss_mask [B, L]``; a TensorDict is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyCfg:
    """Shape of the policy."""

    observation_dim: int
    """O."""
    action_dim: int
    """A."""
    history: int = 2
    """H: observations that the policy sees."""
    chunk: int = 16
    """F: actions that it predicts at once."""
    width: int = 512
    """Units of each of the two hidden layers."""
    binary_actions: tuple[int, ...] = ()
    """Entries of an action that experts only ever set to -1 or 1, such as a gripper: `ChunkPolicy.act` commands the
    nearer of the two. What lies between would be a hand that opens halfway."""

    def __post_init__(self) -> None:
        for name in ("observation_dim", "action_dim", "history", "chunk", "width"):
            check_int(name, getattr(self, name), 1)
        for entry in self.binary_actions:
            check_int("binary_actions", entry, 0, self.action_dim - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerCfg:
    """How the policy is trained."""

    learning_rate: float = 1e-3
    """At the start; it falls along a cosine."""
    final_learning_rate: float = 0.02
    """Learning rate at the end, as a share of the one at the start."""
    weight_decay: float = 1e-6
    """Of AdamW."""
    observation_noise: float = 0.01
    """Noise added to normalised observations, in standard deviations: keeps the policy near the data at test time."""

    def __post_init__(self) -> None:
        check_finite("learning_rate", self.learning_rate)
        check_finite("final_learning_rate", self.final_learning_rate)
        for name in ("weight_decay", "observation_noise"):
            value = getattr(self, name)
            if value != 0:
                check_finite(name, value)


class ChunkPolicy(nn.Module):
    """Predicts a chunk of actions from a short history of observations."""

    def __init__(self, cfg: PolicyCfg) -> None:
        super().__init__()
        self.cfg = cfg
        self.layers = nn.Sequential(
            nn.Linear(cfg.history * cfg.observation_dim, cfg.width),
            nn.ReLU(),
            nn.Linear(cfg.width, cfg.width),
            nn.ReLU(),
            nn.Linear(cfg.width, cfg.chunk * cfg.action_dim),
        )
        for name, width in (("observation", cfg.observation_dim), ("action", cfg.action_dim)):
            self.register_buffer(f"{name}_mean", torch.zeros(width))
            self.register_buffer(f"{name}_std", torch.ones(width))

    def freeze_normalisation(self, context: Context) -> None:
        """Take means and deviations from the real frames of ``context``. Features that hardly move get a floor."""
        real = context["valid"]
        for name, values, floor in (
            ("observation", context["obs"][real], 0.02),
            ("action", context["actions"][real], 0.05),
        ):
            self.get_buffer(f"{name}_mean").copy_(values.mean(0))
            self.get_buffer(f"{name}_std").copy_(values.std(0).clamp(min=floor))

    def forward(self, history: Tensor, noise: float = 0.0) -> Tensor:
        """Return normalised actions ``[B, F, A]`` for observations ``[B, H, O]``, the latest last."""
        inputs = (history - self.get_buffer("observation_mean")) / self.get_buffer("observation_std")
        inputs = inputs.clamp(-10, 10)
        if noise:
            inputs = inputs + noise * torch.randn_like(inputs)
        outputs: Tensor = self.layers(inputs.flatten(1))
        return outputs.view(-1, self.cfg.chunk, self.cfg.action_dim)

    @torch.no_grad()
    def act(self, history: Tensor) -> Tensor:
        """Return actions ``[B, F, A]`` in [-1, 1] for observations ``[B, H, O]``; deterministic."""
        actions = self(history) * self.get_buffer("action_std") + self.get_buffer("action_mean")
        clipped: Tensor = actions.clamp(-1.0, 1.0)
        for entry in self.cfg.binary_actions:
            clipped[..., entry] = torch.where(clipped[..., entry] > 0.0, 1.0, -1.0)
        return clipped

    def loss(self, context: Context, noise: float = 0.0) -> Tensor:
        """Return the mean absolute error over real targets; what lies beyond an episode's end counts nothing."""
        now = self.cfg.history - 1
        known = context["valid"][:, : now + 1, None]
        history = context["obs"][:, : now + 1]
        history = torch.where(known, history, history[:, now:])  # before the first frame: as if standing still
        targets = context["actions"][:, now:]
        targets = (targets - self.get_buffer("action_mean")) / self.get_buffer("action_std")
        return masked_l1(self(history, noise), targets, context["loss_mask"][:, now:])[0]


def masked_l1(predicted: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    """Return the mean absolute error over real elements, and how many those are.

    Without any the mean is 0, with a gradient of zeros. What lies elsewhere has no influence, NaN included.

    Args:
        predicted: ``[B, F, A]``.
        targets: ``[B, F, A]``.
        mask: ``[B, F]`` bool, the real targets.
    """
    real = mask[..., None].expand_as(targets)
    error = torch.where(real, predicted - torch.where(real, targets, 0.0), 0.0).abs()
    count = int(mask.sum()) * targets.shape[-1]
    return error.sum() / max(count, 1), count


class Learner:
    """A policy and its optimizer."""

    def __init__(self, policy: ChunkPolicy, cfg: LearnerCfg) -> None:
        self.policy = policy
        self.cfg = cfg
        self.learning_rate = cfg.learning_rate
        """Of the latest update."""
        self._optimizer = torch.optim.AdamW(
            policy.parameters(), lr=cfg.learning_rate, weight_decay=cfg.weight_decay, foreach=True
        )

    def update(self, context: Context, progress: float) -> float:
        """Take one step and return the loss. ``progress`` runs from 0 to 1 over the training."""
        self.learning_rate = self._optimizer.param_groups[0]["lr"] = self.cfg.learning_rate * self._share(progress)
        loss = self.policy.loss(context, self.cfg.observation_noise)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to go on as if nothing had happened: tensors and plain values."""
        return {"policy": self.policy.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called, with settings of the same kind.

        Raises:
            RuntimeError: If the policies differ in shape.
        """
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _share(self, progress: float) -> float:
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
        return max(self.cfg.final_learning_rate, cosine)


def save_policy(policy: ChunkPolicy, path: Path) -> None:
    """Write a checkpoint that `load_policy` reads. It holds tensors and plain values, no code."""
    torch.save({**identity(), "cfg": asdict(policy.cfg), "state": policy.state_dict()}, path)


def load_policy(path: Path) -> ChunkPolicy:
    """Read a checkpoint, without running any code that it might hold.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no checkpoint, or one of another format, task, schema or action contracts.
    """
    checkpoint = load_checked(path)
    try:
        policy = ChunkPolicy(PolicyCfg(**checkpoint["cfg"]))
        policy.load_state_dict(checkpoint["state"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return policy


def identity() -> dict[str, Any]:
    """Return what a checkpoint says of where it belongs: format, task, schema and action contracts."""
    return {
        "format": CHECKPOINT_FORMAT,
        "task": TASK,
        "schema": data_schema_fingerprint(SCHEMA),
        "action_contracts": list(ACTION_CONTRACTS),
    }


def load_checked(path: Path) -> dict[str, Any]:
    """Read a file of tensors and plain values that holds an `identity`, and compare that with this task's.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no such file, belongs elsewhere, or has weights that are not finite; the message names
            what is wrong.
    """
    try:
        checkpoint = torch.load(path, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # the reader raises anything on bytes that are no checkpoint
        raise ValueError(
            f"{path} is no checkpoint: it is damaged, or holds more than tensors and plain values, and is not read"
        ) from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} is no checkpoint: it holds a {type(checkpoint).__name__}")
    found = checkpoint.get("format")
    if found != CHECKPOINT_FORMAT:
        raise ValueError(f"{path} has checkpoint format {found!r}; this version reads {CHECKPOINT_FORMAT}")
    for name, ours in identity().items():
        if checkpoint.get(name) != ours:
            raise ValueError(f"{path} is of another {name}: {checkpoint.get(name)!r}, this is {ours!r}")
    state = checkpoint.get("state")
    for name, values in state.items() if isinstance(state, dict) else ():
        if isinstance(values, torch.Tensor) and not bool(torch.isfinite(values).all()):
            raise ValueError(f"{path} is of a training that went wrong: {name} has numbers that are not finite")
    return checkpoint
