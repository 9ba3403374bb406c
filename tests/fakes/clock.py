"""A clock that moves only when told to."""

from __future__ import annotations


class FakeClock:
    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_ns = round(start_s * 1e9)

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
