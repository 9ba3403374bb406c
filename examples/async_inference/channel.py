"""A bounded queue of sequences from one engine to the learner: payload in shared memory, announcements over a pipe.

The learner makes both and hands the engine its end. The memory has no name: it goes with the last process that holds
it, however that ends. Neither side takes a lock that the other one needs, so that a killed process holds nobody up:
its end of the pipe closes, which the other side sees.

Shapes: ``S`` slots of ``N`` sequences of up to ``T`` tokens, hidden states of width ``W``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from examples.async_inference.models import Sequences, TargetCfg


class Announcement(NamedTuple):
    """An engine's message: the learner may read a slot, or nothing but a report."""

    slot: int | None = None
    published_ns: int = 0
    """When, on the monotonic clock that processes of one machine share."""
    report: Any = None
    """Durations and counts of the engine's meter; None without metrics."""
    failure: str = ""
    """The traceback of the engine's end; empty while it works."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Shared memory. An engine writes to free slots, the learner reads announced ones."""

    tokens: Tensor
    """``[S, N, T] int64``."""
    hidden: Tensor
    """``[S, N, T, W] float32``."""
    lengths: Tensor
    """``[S, N] int64``."""

    @classmethod
    def allocate(cls, slots: int, sequences: int, target: TargetCfg) -> Slots:
        """Make memory that is shared with a process that it is passed to."""
        shape = (slots, sequences, target.max_tokens)
        return cls(
            tokens=_shared(shape, torch.int64),
            hidden=_shared((*shape, target.width), torch.float32),
            lengths=_shared(shape[:2], torch.int64),
        )

    def write(self, slot: int, sequences: Sequences) -> None:
        """Copy sequences into a slot."""
        self.tokens[slot].copy_(sequences.tokens)
        self.hidden[slot].copy_(sequences.hidden)
        self.lengths[slot].copy_(sequences.lengths)


class EngineEnd:
    """What an engine holds. All methods raise EOFError or OSError once the learner has ended.

    Args:
        slots: All free.
        link: To the learner, which sends back the number of each slot that it has read.
    """

    def __init__(self, slots: Slots, link: Connection) -> None:
        self._slots, self._link = slots, link
        self._free = list(range(len(slots.lengths)))

    def free_slot(self, waiting: Callable[[], object], every_s: float) -> int:
        """Return a slot to write to. Blocks while the queue is full, and calls ``waiting`` now and then."""
        while not self._free:
            if self._link.poll(every_s):
                self._free.append(self._link.recv())
            else:
                waiting()
        while self._link.poll():
            self._free.append(self._link.recv())
        return self._free.pop()

    def write(self, slot: int, sequences: Sequences) -> None:
        """Copy sequences into a free slot. Nobody reads it before it is announced."""
        self._slots.write(slot, sequences)

    def send(self, announcement: Announcement) -> None:
        """Announce."""
        self._link.send(announcement)


def _shared(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(shape, dtype=dtype)
    zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros
