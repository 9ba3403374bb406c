"""What processes use, read from Linux. Peaks are resident memory; pages that processes share count in each of them."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

PRODUCER, RECORDER = "odstream-producer", "odstream-recorder"
"""Names of the processes that an engine and a recorder start."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM, _START = 11, 12, 19
"""Positions in ``/proc/PID/stat`` behind the command's name."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Of one process, up to now."""

    peak_bytes: int
    cpu_s: float


def use_of(pid: int) -> ProcessUse | None:
    """Return what a process has used; None if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        stat = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    peaks = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
    return ProcessUse(peaks[0] if peaks else 0, (int(stat[_USER]) + int(stat[_SYSTEM])) / _TICKS_PER_S)


def use_of_child(name: str) -> ProcessUse | None:
    """Return what the child process of this name has used; None if there is none."""
    for child in multiprocessing.active_children():
        if child.name == name and child.pid is not None:
            return use_of(child.pid)
    return None


def process_age_s() -> float:
    """Return the seconds since this process was created: imports included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat(os.getpid())[_START]) / _TICKS_PER_S


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
