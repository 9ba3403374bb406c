"""What other processes do with a resident source. Importable by spawned ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from odstream.datasets import SequenceSpecCfg, TensorDataSource

SPEC = SequenceSpecCfg(2, 3)
SCHEMA: dict[str, Any] = {
    "observation": {"names": ["o"]},
    "action": {"shape": [], "semantics": "count", "step_dt": 1},
}


def make_source(budget: int | None = None, seed: int | None = None) -> TensorDataSource:
    """Three episodes of different lengths, the same in every process."""
    episodes = []
    for row, length in enumerate((400, 900, 200)):
        number = 1000 * row + torch.arange(length) + 1.0
        episodes.append(TensorDict({"obs": number[:, None], "actions": number}, batch_size=(length,)))
    return TensorDataSource(
        episodes,
        schema=SCHEMA,
        source_id="process tests",
        episode_sample_budget=budget,
        episode_sample_hard_limit=budget,
        seed=seed,
    )


def draws(source: TensorDataSource, batches: int) -> list[Any]:
    """Frame ids of the current frames of some batches."""
    return [source.sample_context(4, SPEC)["frame_ids"][:, 1].tolist() for _ in range(batches)]


def ask(source: TensorDataSource, answers: Any) -> None:
    """Draw in this process and send what was drawn, or the error."""
    try:
        batch = source.sample_context(4, SPEC)
        own = bool((batch["obs"][batch["valid"]][:, 0] == batch["actions"][batch["valid"]]).all())
        answers.send((own, draws(source, 20)))
    except Exception as error:
        answers.send((type(error).__name__, str(error)))


if __name__ == "__main__":  # resumes from a file and writes what follows
    state_file, result_file = map(Path, sys.argv[1:])
    resumed = make_source(budget=50, seed=99)
    resumed.load_state_dict(torch.load(state_file, weights_only=True))
    torch.save({"draws": draws(resumed, 10), "ledger": resumed.get_sampling_budget_snapshot()}, result_file)
