"""Whether stored episodes are what they claim to be. Each check names the episode and the frame.

Letters: ``R`` episodes, ``N`` frames of all of them, one behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.datasets.resident import ResidentStore

__all__ = ["check_episodes"]

Ints = NDArray[np.int64]
_CHUNK_FRAMES = 16384
_PROVENANCE_IDS = ("ods_run_id", "ods_episode_id", "ods_frame_index")


def check_episodes(store: ResidentStore, names: Sequence[object] | None = None) -> None:
    """Check a sealed store, and enter the identity and the generation of each episode.

    Real frames must be finite. All real frames of an episode have one run, one episode number and one generation; no
    two episodes are the same; frame numbers rise, and by one wherever neither a gap nor a change of ``continuity_id``
    says that time jumps.

    Args:
        store: Filled and sealed.
        names: ``[R]`` what messages call the episodes; None for their positions.

    Raises:
        ValueError: At the first episode that is not in order.
    """
    label = range(len(store.length)) if names is None else names
    views = store.frames()
    at, row = store.positions()
    real = views["valid",][at]
    at, row = at[real], row[real]
    step = at - store.begin[row]
    ids = views["frame_ids",][at]
    recorded = [views[name,][at] for name in _PROVENANCE_IDS if (name,) in views]
    if len(recorded) == len(_PROVENANCE_IDS):
        _check_agreement(ids, np.stack(recorded, -1), row, step, label)
    _check_identity(ids, row, step, label)
    continuity = views["continuity_id",][at] if ("continuity_id",) in views else np.zeros(len(at), np.int64)
    _check_order(ids[:, 2], row, step, continuity, label)
    _, first = np.unique(row, return_index=True)
    store.identity[row[first]] = ids[first, :2]
    _check_distinct(store.identity, label)
    if ("ods_generation",) in views:
        generation = views["ods_generation",][at]
        store.generation[row[first]] = generation[first]
        _refuse(generation != store.generation[row], row, step, label, "changes its ods_generation")
        _refuse(generation < 1, row, step, label, "has an ods_generation below 1")
    _check_finite(store, views, label)


def _check_agreement(ids: Ints, recorded: Ints, row: Ints, step: Ints, label: Sequence[object]) -> None:
    _refuse((ids != recorded).any(-1), row, step, label, "has frame_ids that differ from its ods_* provenance")


def _check_identity(ids: Ints, row: Ints, step: Ints, label: Sequence[object]) -> None:
    negative: NDArray[np.bool_] = ids.min(-1) < 0
    _refuse(negative, row, step, label, "has a negative number in frame_ids")
    within = row[1:] == row[:-1]
    change = within & (ids[1:, :2] != ids[:-1, :2]).any(-1)
    _refuse(np.r_[False, change], row, step, label, "changes its run or episode number in frame_ids")


def _check_order(frame: Ints, row: Ints, step: Ints, continuity: Ints, label: Sequence[object]) -> None:
    within = row[1:] == row[:-1]
    back = within & (frame[1:] <= frame[:-1])
    _refuse(np.r_[False, back], row, step, label, "has a frame number that does not rise")
    joined = within & (step[1:] == step[:-1] + 1) & (continuity[1:] == continuity[:-1]) & (continuity[1:] >= 0)
    jump = joined & (frame[1:] != frame[:-1] + 1)
    _refuse(
        np.r_[False, jump],
        row,
        step,
        label,
        "leaves out frame numbers, but neither an invalid frame nor a change of continuity_id says that time jumps",
    )


def _check_distinct(identity: Ints, label: Sequence[object]) -> None:
    known: dict[tuple[int, int], int] = {}
    for row, (run, episode) in enumerate(identity.tolist()):
        if run >= 0 and known.setdefault((run, episode), row) != row:
            raise ValueError(
                f"episodes {label[known[run, episode]]} and {label[row]} are both episode {episode} of run {run}"
            )


def _check_finite(store: ResidentStore, views: dict[tuple[str, ...], NDArray[Any]], label: Sequence[object]) -> None:
    """Padding is finite, so whole blocks can be looked at."""
    for key, values in views.items():
        if values.dtype.kind not in "fc":
            continue
        for begin in range(0, len(values), _CHUNK_FRAMES):
            finite = np.isfinite(values[begin : begin + _CHUNK_FRAMES])
            if not finite.all():
                bad = begin + int(np.flatnonzero(~finite.reshape(len(finite), -1).all(-1))[0])
                row = int(np.searchsorted(store.begin, bad, side="right")) - 1
                raise ValueError(
                    f"{'.'.join(key)} must be finite in real frames; episode {label[row]}, frame "
                    f"{bad - int(store.begin[row])} is {values[bad]!r}"
                )


def _refuse(wrong: NDArray[np.bool_], row: Ints, step: Ints, label: Sequence[object], what: str) -> None:
    if wrong.any():
        bad = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"episode {label[int(row[bad])]} {what}, at frame {int(step[bad])}")
