"""Time on a CUDA device, through events that the device itself stamps. Imports torch only when a timer is made."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

__all__ = ["CudaTimer", "DeviceEvent", "device_timer"]

_RETIRE_FROM = 64
"""Updates that may await their time before finished ones are read without having been asked for."""
_MAX_PENDING = 4096


class DeviceEvent(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self) -> None:
        """Put the event into the current stream."""

    def query(self) -> bool:
        """Return whether the device has passed it; does not wait."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return milliseconds between two events that the device has passed."""


class _Pair(NamedTuple):
    start: DeviceEvent
    end: DeviceEvent
    completes_step: bool


class CudaTimer:
    """Times updates with ``torch.cuda.Event(enable_timing=True)`` and adds no synchronisation.

    Events are read once the device has passed them, which `collect` asks for without waiting: whatever the loop does
    by itself, such as ``loss.item()``, is the synchronisation point. Time in which the stream is idle between the two
    events counts. No more events are held than the device is behind: they are used again.

    Args:
        event: Makes an event. None: CUDA events of torch.

    Raises:
        RuntimeError: If no event maker is given and there is no CUDA device. Use no timer then: the wall clock of a
            CPU is right.
    """

    def __init__(self, event: Callable[[], DeviceEvent] | None = None) -> None:
        self._make = _cuda_events() if event is None else event
        self._start: DeviceEvent | None = None
        self._pending: deque[_Pair] = deque()
        self._free: list[DeviceEvent] = []
        self._finished_ns = self._finished_steps = 0

    def begin(self) -> None:
        """Record the start of an update."""
        self._start = self._event()
        self._start.record()

    def end(self, *, completes_step: bool) -> None:
        """Record the end of an update.

        Raises:
            RuntimeError: Without `begin`, or if the device is thousands of updates behind.
        """
        if self._start is None:
            raise RuntimeError("end() needs a begin() before it")
        if len(self._pending) >= _RETIRE_FROM:
            self._retire()
        if len(self._pending) >= _MAX_PENDING:
            raise RuntimeError(f"the device has finished none of the last {_MAX_PENDING} updates; is it still at work?")
        end = self._event()
        end.record()
        self._pending.append(_Pair(self._start, end, completes_step))
        self._start = None

    def collect(self) -> tuple[int, int]:
        """Return nanoseconds and steps of the updates that the device has finished since the last call."""
        self._retire()
        found = (self._finished_ns, self._finished_steps)
        self._finished_ns = self._finished_steps = 0
        return found

    def _retire(self) -> None:
        """Read what the device has passed, oldest first, and take the events back."""
        while self._pending and self._pending[0].end.query():
            start, end, completes_step = self._pending.popleft()
            self._finished_ns += round(start.elapsed_time(end) * 1e6)
            self._finished_steps += completes_step
            self._free += (start, end)

    def _event(self) -> DeviceEvent:
        return self._free.pop() if self._free else self._make()


def device_timer() -> CudaTimer | None:
    """Return a timer if this process uses a CUDA device through torch, else None: the wall clock of a CPU is right."""
    torch = sys.modules.get("torch")
    return CudaTimer() if torch is not None and torch.cuda.is_initialized() else None


def _cuda_events() -> Callable[[], DeviceEvent]:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device to time; leave the timer out, and the wall clock is used")
    event: Any = torch.cuda.Event
    return lambda: event(enable_timing=True)
