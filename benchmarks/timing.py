"""Timing that every interpreter shares: seconds per call, always the same way. Standard library only."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def seconds_per_call(call: Callable[[], object], calls: int) -> list[float]:
    """Time ``calls`` calls one by one after one that is not counted; the garbage collector rests meanwhile.

    As in a training loop, a batch is held until the next one has arrived.
    """
    batch = call()
    collecting = gc.isenabled()
    gc.disable()
    try:
        times_s = []
        for _ in range(calls):
            started_s = time.perf_counter()
            batch = call()
            times_s.append(time.perf_counter() - started_s)
        del batch
        return times_s
    finally:
        if collecting:
            gc.enable()
