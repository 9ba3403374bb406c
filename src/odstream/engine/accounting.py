"""Reads the counters and the ledger of a cache. Each function returns detached numbers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.cache.layout import Word
from odstream.cache.store import CacheStore
from odstream.engine.work import read_work

__all__ = ["NO_LEDGER", "flow_status", "ledger", "stats"]

NO_LEDGER: dict[str, Any] = {"rows": [], "unlocked_remaining_chunks": None, "total_delivered_chunks": None}
"""What is reported without budgets."""


def flow_status(store: CacheStore, *, budgeted: bool) -> dict[str, int | None]:
    """Return what flow control polls. The counters and the budget totals are separate snapshots."""
    words = store.words
    status: dict[str, int | None] = {
        "requested_generation": int(words[Word.REQUESTED_GENERATION]),
        "completed_generation": int(words[Word.COMPLETED_GENERATION]),
        "successful_episodes": int(words[Word.SUCCESSFUL_EPISODES]),
        "unlocked_remaining_chunks": None,
        "total_delivered_chunks": None,
    }
    if budgeted:
        with store.transaction():
            status["unlocked_remaining_chunks"] = _unlocked(store)
            status["total_delivered_chunks"] = int(words[Word.SAMPLED_CHUNKS])
    return status


def stats(store: CacheStore, *, budgeted: bool) -> dict[str, Any]:
    """Return the counters of production and consumption, and what can be read, as of one moment."""
    with store.transaction():
        now_ns = time.monotonic_ns()
        words = store.words.copy()
        rows = store.row_of_slot[store.row_of_slot >= 0]
        valid_frames, remaining = int(store.valid_frames[rows].sum()), _remaining(store, rows)
    work = read_work(words, now_ns)
    return {
        "requested_generation": int(words[Word.REQUESTED_GENERATION]),
        "completed_generation": int(words[Word.COMPLETED_GENERATION]),
        "successful_episodes": int(words[Word.SUCCESSFUL_EPISODES]),
        "failed_episodes": int(words[Word.FAILED_EPISODES]),
        "generated_frames": int(words[Word.GENERATED_FRAMES]),
        "production_seconds": float(words[Word.PRODUCTION_NS]) / 1e9,
        "producer_pid": int(words[Word.WORKER_PID]),
        "producer_state": work.state,
        "busy_seconds": work.busy_ns / 1e9,
        "publish_seconds": work.publish_ns / 1e9,
        "blocked_seconds": work.blocked_ns / 1e9,
        "down_seconds": work.down_ns / 1e9,
        "sampled_chunks": int(words[Word.SAMPLED_CHUNKS]),
        "remaining_chunks": remaining if budgeted else None,
        "retired_chunks": int(words[Word.RETIRED_CHUNKS]) if budgeted else None,
        "readable_episodes": len(rows),
        "valid_frames": valid_frames,
    }


def ledger(store: CacheStore, run_id: int) -> dict[str, Any]:
    """Return one line per readable episode, and the totals, as of one moment."""
    with store.transaction():
        slots = (store.row_of_slot >= 0).nonzero()[0]
        rows = store.row_of_slot[slots]
        columns = {
            "episode_id": store.episode_id[rows].tolist(),
            "generation": store.generation[rows].tolist(),
            "slot": slots.tolist(),
            "assigned": store.assigned[rows].tolist(),
            "delivered": store.delivered[rows].tolist(),
            "remaining": (store.assigned[rows] - store.delivered[rows]).tolist(),
        }
        unlocked, delivered = _unlocked(store), int(store.words[Word.SAMPLED_CHUNKS])
    lines = [
        {"run_id": run_id, **dict(zip(columns, line, strict=True)), "locked": False}
        for line in zip(*columns.values(), strict=True)
    ]
    return {"rows": lines, "unlocked_remaining_chunks": unlocked, "total_delivered_chunks": delivered}


def _unlocked(store: CacheStore) -> int:
    """Return the selections left on readable episodes that have an anchor. Call it under the lock."""
    rows = store.row_of_slot[store.row_of_slot >= 0]
    return _remaining(store, rows[store.anchors[rows] > 0])


def _remaining(store: CacheStore, rows: NDArray[np.int64]) -> int:
    return int((store.assigned[rows] - store.delivered[rows]).sum())
