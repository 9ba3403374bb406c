"""What a saved position of a resident source holds, and whether one belongs to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from odstream.datasets.resident import ResidentStore
from odstream.validation import check_choice, check_int

__all__ = ["STATE_FORMAT", "check_state", "digest_of"]

STATE_FORMAT = 1
_KEYS = ("format", "identity", "delivered", "total_delivered", "budget", "generator", "generator_of")
_CHUNK_FRAMES = 65536


def check_state(
    state: Any, identity: Mapping[str, str], budget: tuple[int, int] | None, assigned: NDArray[np.int64]
) -> None:
    """Return if ``state`` was saved by a source of this identity and budget, and is whole.

    Args:
        state: What was loaded.
        identity: ``source_id``, ``schema`` and ``data`` of the source that shall go on.
        budget: Its budget and limit.
        assigned: ``[R]`` its assigned selections.

    Raises:
        ValueError: If it is not; the message says what differs.
    """
    if not isinstance(state, Mapping) or set(state) != set(_KEYS):
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(f"state must have the keys {sorted(_KEYS)}, got {found}")
    if state["format"] != STATE_FORMAT:
        raise ValueError(f"state has the format {state['format']!r}, this version reads {STATE_FORMAT}")
    saved = state["identity"] if isinstance(state["identity"], Mapping) else {}
    for name, ours in identity.items():
        if saved.get(name) != ours:
            raise ValueError(
                f"the state was saved from another source: its {name} is {saved.get(name)!r}, here {ours!r}"
            )
    limits = None if budget is None else list(budget)
    if state["budget"] != limits:
        raise ValueError(f"the state was saved with the budget and limit {state['budget']}, here they are {limits}")
    _check_ledger(state["delivered"], state["total_delivered"], assigned, budgeted=budget is not None)
    _check_generator_state(state["generator"])
    check_choice("the state's generator_of", state["generator_of"], ("source", "caller"))


def _check_ledger(delivered: Any, total: Any, assigned: NDArray[np.int64], *, budgeted: bool) -> None:
    check_int("the state's total_delivered", total, 0)
    shape = assigned.shape
    if not isinstance(delivered, torch.Tensor) or delivered.dtype != torch.int64 or delivered.shape != shape:
        raise ValueError(f"the state's delivered must be an int64 tensor {list(shape)}, got {delivered!r}")
    counts = delivered.numpy()
    if (counts < 0).any() or (counts > assigned).any():
        raise ValueError("the state's delivered counts must lie between 0 and what is assigned to each episode")
    if budgeted and int(counts.sum()) != total:
        raise ValueError(f"the state's delivered counts sum to {int(counts.sum())}, its total_delivered is {total}")


def _check_generator_state(state: Any) -> None:
    try:
        torch.Generator().set_state(state)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"the state's generator is no position of a torch.Generator: {error}") from error


def digest_of(store: ResidentStore) -> str:
    """Hash every frame of every field, in an order that does not depend on how the frames lie in memory."""
    digest = hashlib.sha256()
    views = store.frames()
    at, _ = store.positions()
    digest.update(repr(store.layout.lengths).encode())
    for key in sorted(views):
        values = views[key]
        digest.update(repr((key, values.dtype.str, values.shape[1:])).encode())
        for begin in range(0, len(at), _CHUNK_FRAMES):
            chunk = np.ascontiguousarray(values[at[begin : begin + _CHUNK_FRAMES]])
            digest.update(chunk.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
