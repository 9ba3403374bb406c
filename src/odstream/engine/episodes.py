"""Copies whole episodes out of a running engine: for recorders and inspection, not for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from odstream.cache.layout import Field, FieldKey
from odstream.cache.store import CacheStore

if TYPE_CHECKING:
    from odstream.engine.data import OnlineDataEngine

__all__ = ["StoredEpisode", "copy_episodes", "stored_fields"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEpisode:
    """An accepted episode as the cache holds it."""

    episode_id: int
    """Consecutive over the engine's run, from 0."""
    generation: int
    frames: Mapping[FieldKey, NDArray[Any]]
    """Per field, annotations included, an owned array ``[length, *shape]``. Frames that are not real hold padding."""

    @property
    def length(self) -> int:
        """Frames, real or not."""
        return len(next(iter(self.frames.values())))


def stored_fields(engine: OnlineDataEngine) -> tuple[Field, ...]:
    """Return what every frame of a running engine holds."""
    return engine._ready("stored_fields()").layout.fields


def copy_episodes(engine: OnlineDataEngine, after: int = -1) -> Iterator[StoredEpisode]:
    """Yield the readable episodes that were published after episode ``after``, oldest first.

    Copying is no selection: nothing is debited, and no refill starts because of it. The lock is held while one episode
    is copied, once per episode, not while the caller has it. What is replaced meanwhile is not yielded any more; the
    gap in ``episode_id`` tells. With manual refill nothing is, unless the owner asked for it.

    Raises:
        EngineStateError, Exception: As `OnlineDataEngine.check_health`.
    """
    store = engine._ready("copy_episodes()")
    views = store.rows_of_fields()
    with store.transaction():
        used = np.flatnonzero(store.row_of_slot >= 0)
        numbers = store.episode_id[store.row_of_slot[used]]
    for number, slot in sorted(zip(numbers.tolist(), used.tolist(), strict=True)):
        episode = _copy(store, views, slot, number) if number > after else None
        if episode is not None:
            yield episode


def _copy(store: CacheStore, views: Mapping[FieldKey, NDArray[Any]], slot: int, number: int) -> StoredEpisode | None:
    with store.transaction():
        row = int(store.row_of_slot[slot])
        if store.episode_id[row] != number:
            return None
        length = int(store.length[row])
        frames = {field.key: views[field.key][row, :length].copy() for field in store.layout.fields}
        return StoredEpisode(episode_id=number, generation=int(store.generation[row]), frames=frames)
