"""What the producer process spends its time on: busy, publishing, blocked or down, as words that every process reads.

One word says what it does and since when, so that one store changes both. Time of publishing and of being blocked is
added up when it ends; whatever else has passed since the origin was busy. A reader settles what is under way by its
own clock: all processes of a host share the monotonic one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from odstream.cache.layout import Word

__all__ = [
    "BLOCKED",
    "BUSY",
    "DOWN",
    "PUBLISH",
    "WorkTimes",
    "begin_publishing",
    "begin_work",
    "change_work",
    "read_work",
]

DOWN, BUSY, PUBLISH, BLOCKED = range(4)
_NAMES = ("down", "busy", "publish", "blocked")
_TOTALS = {PUBLISH: Word.PUBLISH_NS, BLOCKED: Word.BLOCKED_NS}
_BITS = 2

Words = NDArray[np.int64]


class WorkTimes(NamedTuple):
    """Nanoseconds per state since the producer began; together they are its age."""

    state: str
    """At this moment: busy, publish, blocked or down."""
    busy_ns: int
    publish_ns: int
    blocked_ns: int
    down_ns: int


def begin_work(now_ns: int) -> dict[int, int]:
    """Return the words of a producer that begins, busy. To be committed."""
    return {Word.WORK_ORIGIN_NS: now_ns, Word.WORK: _packed(BUSY, now_ns)}


def change_work(words: Words, state: int, now_ns: int) -> dict[int, int]:
    """Return the words that change when the producer passes to ``state``; none if it never began. To be committed."""
    if not words[Word.WORK_ORIGIN_NS]:
        return {}
    before, since_ns = _unpacked(words)
    if before == DOWN:
        return {}
    changes = {Word.WORK: _packed(state, now_ns)}
    if before in _TOTALS:
        total = _TOTALS[before]
        changes[total] = int(words[total]) + now_ns - since_ns
    return changes


def begin_publishing(words: Words, now_ns: int) -> None:
    """Pass from busy to publishing: one store, without the lock. For the producer alone. Not once it is down."""
    if _unpacked(words)[0] != DOWN:
        words[Word.WORK] = _packed(PUBLISH, now_ns)


def read_work(words: Words, now_ns: int) -> WorkTimes:
    """Return the times up to now.

    Args:
        words: As of one moment, read under the lock.
        now_ns: The monotonic clock, read before ``words``; a change that came in between is the moment then.
    """
    origin_ns = int(words[Word.WORK_ORIGIN_NS])
    if not origin_ns:
        return WorkTimes(_NAMES[DOWN], 0, 0, 0, 0)
    state, since_ns = _unpacked(words)
    times_ns = [0, since_ns - origin_ns, int(words[Word.PUBLISH_NS]), int(words[Word.BLOCKED_NS])]
    times_ns[BUSY] -= times_ns[PUBLISH] + times_ns[BLOCKED]
    times_ns[state] += max(0, now_ns - since_ns)
    return WorkTimes(_NAMES[state], times_ns[BUSY], times_ns[PUBLISH], times_ns[BLOCKED], times_ns[DOWN])


def _packed(state: int, since_ns: int) -> int:
    return since_ns << _BITS | state


def _unpacked(words: Words) -> tuple[int, int]:
    packed = int(words[Word.WORK])
    return packed & (1 << _BITS) - 1, packed >> _BITS
