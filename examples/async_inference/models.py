"""The target, which generates, and the draft, which learns to foresee it.

Shapes: ``N`` sequences of up to ``T`` tokens out of ``V``, hidden states of width ``W``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from odstream.validation import check_finite, check_int

STOP = 0
"""The token that ends a sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCfg:
    """The frozen language model that engines run.

    Raises:
        TypeError, ValueError: If a field is out of range.
    """

    vocabulary: int = 64
    """V: tokens, one of which ends a sequence."""
    width: int = 128
    """W: of its hidden states. A wider one makes inference slower, and what is transferred larger."""
    max_tokens: int = 32
    """T: tokens of a sequence at most, its first included."""
    min_tokens: int = 8
    """Tokens of a sequence at least."""
    sharpness: float = 8.0
    """Scale of its logits: how much it prefers some tokens."""
    seed: int = 0
    """Of its weights; the learner holds the same ones."""

    def __post_init__(self) -> None:
        check_int("target.vocabulary", self.vocabulary, 2)
        check_int("target.width", self.width, 1)
        check_int("target.max_tokens", self.max_tokens, 3)
        check_int("target.min_tokens", self.min_tokens, 3, self.max_tokens)
        check_finite("target.sharpness", self.sharpness)
        check_int("target.seed", self.seed, 0)


class Sequences(NamedTuple):
    """What was generated; beyond its length a sequence holds nothing of meaning."""

    tokens: Tensor
    """``[N, T] int64``."""
    hidden: Tensor
    """``[N, T, W] float32``: the target's state after it has read the token at the same place."""
    lengths: Tensor
    """``[N] int64``."""


class Target(nn.Module):
    """A GRU language model with random weights that are the same in every process."""

    def __init__(self, cfg: TargetCfg) -> None:
        super().__init__()
        self.cfg = cfg
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cfg.seed)
            self.embed = nn.Embedding(cfg.vocabulary, cfg.width)
            self.cell = nn.GRUCell(cfg.width, cfg.width)
            self.head = nn.Linear(cfg.width, cfg.vocabulary, bias=False)
        self.requires_grad_(False)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return what it would say next, ``[..., V]``, from hidden states ``[..., W]``."""
        logits: Tensor = self.head(hidden) * self.cfg.sharpness
        return logits

    @torch.no_grad()
    def generate(self, count: int, generator: torch.Generator) -> Sequences:
        """Sample ``count`` sequences, token by token, each from a random first token."""
        cfg = self.cfg
        tokens = torch.full((count, cfg.max_tokens), STOP)
        hidden = torch.zeros(count, cfg.max_tokens, cfg.width)
        lengths = torch.full((count,), cfg.max_tokens)
        state = torch.zeros(count, cfg.width)
        token = torch.randint(1, cfg.vocabulary, (count,), generator=generator)
        for place in range(cfg.max_tokens):
            tokens[:, place] = token
            state = self.cell(self.embed(token), state)
            hidden[:, place] = state
            ends = (token == STOP) & (lengths == cfg.max_tokens)
            lengths[ends] = place + 1
            if bool((lengths <= place + 1).all()):
                break
            logits = self.logits(state)
            if place + 2 < cfg.min_tokens:
                logits[:, STOP] = -torch.inf
            token = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        return Sequences(tokens, hidden, lengths)


class Draft(nn.Module):
    """Says what the target will say one token further on, without running it.

    Args:
        target: Whose states it reads.
        width: Of its layers. A wider one makes training slower.
        layers: How many.
    """

    def __init__(self, target: TargetCfg, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(target.vocabulary, width)
        self.enter = nn.Linear(target.width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, target.vocabulary)

    def forward(self, hidden: Tensor, following: Tensor) -> Tensor:
        """Return logits ``[N, T, V]`` from states ``[N, T, W]`` and the token ``[N, T]`` that followed each."""
        x = self.enter(hidden) + self.embed(following)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.head(x)
        return logits
