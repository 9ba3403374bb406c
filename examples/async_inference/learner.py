"""The training side: distils the target into the draft. Replace it by your own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from examples.async_inference.fleet import Batch
from examples.async_inference.models import Draft, Target, TargetCfg
from odstream.validation import check_finite, check_int


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerCfg:
    """What is trained, and how.

    Raises:
        TypeError, ValueError: If a field is out of range.
    """

    width: int = 128
    """Of the draft's layers. A wider one makes training slower."""
    layers: int = 1
    """Of the draft."""
    learning_rate: float = 1e-3
    """Of AdamW."""
    seed: int = 0
    """Of the draft's weights."""

    def __post_init__(self) -> None:
        for name in ("width", "layers"):
            check_int(f"learner.{name}", getattr(self, name), 1)
        check_finite("learner.learning_rate", self.learning_rate)
        check_int("learner.seed", self.seed, 0)


class Learner:
    """The draft, its optimizer, and the target's head to compare with."""

    def __init__(self, cfg: LearnerCfg, target: TargetCfg, device: torch.device) -> None:
        torch.manual_seed(cfg.seed)
        self.draft = Draft(target, cfg.width, cfg.layers).to(device)
        self.target = Target(target).to(device)
        self.optimizer = torch.optim.AdamW(self.draft.parameters(), lr=cfg.learning_rate)

    def update(self, batch: Batch) -> tuple[float, float]:
        """Complete one optimizer step; return the loss and how often both would say the same token.

        Reading the two numbers waits for the device, once per step.
        """
        loss, agreement = self._loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        found = torch.stack((loss.detach(), agreement)).tolist()
        return found[0], found[1]

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the mean divergence of the draft from the target over all places that were generated."""
        wanted = self.target.logits(batch.hidden[:, 1:]).log_softmax(-1)
        found = self.draft(batch.hidden[:, :-1], batch.tokens[:, 1:]).log_softmax(-1)
        places = torch.arange(1, batch.tokens.shape[1], device=wanted.device)
        counts = (places < batch.lengths[:, None]).to(wanted.dtype)
        divergence = functional.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
        agrees = (found.argmax(-1) == wanted.argmax(-1)).to(wanted.dtype)
        total = counts.sum()
        return (divergence * counts).sum() / total, (agrees * counts).sum() / total
