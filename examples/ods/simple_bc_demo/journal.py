"""When things happened: seconds since the process was created, imports included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Journal:
    """Seconds spent in phases, and marks.

    Args:
        age_s: Age of the process now.
        clock: Monotonic seconds.
    """

    def __init__(self, age_s: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._origin_s = clock() - age_s
        self.phases_s: dict[str, float] = {}
        self.marks_s: dict[str, float] = {}

    @property
    def now_s(self) -> float:
        """Seconds since the process was created."""
        return self._clock() - self._origin_s

    def since(self, monotonic_ns: int) -> float:
        """Return when a moment on the host's monotonic clock was."""
        return monotonic_ns / 1e9 - self._origin_s

    def mark(self, name: str) -> None:
        """Note when something happened first."""
        self.marks_s.setdefault(name, self.now_s)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a ``with`` block, also if it raises."""
        began_s = self.now_s
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + self.now_s - began_s
