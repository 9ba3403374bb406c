"""Memory of processes, as the kernel counts it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["device_memory_bytes", "memory_bytes", "tree_memory_bytes"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


def memory_bytes(pid: int | None = None) -> int | None:
    """Return what a process holds in memory; pages that it shares with others count in full.

    Args:
        pid: Its number. None: this process.

    Returns:
        Bytes, or None if there is no such process.
    """
    try:
        pages = (_PROC / str(pid or os.getpid()) / "statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * _PAGE_BYTES


def tree_memory_bytes(pid: int) -> int | None:
    """Return what a process and all its descendants hold together; pages that they share count once for each."""
    found = [size for size in map(memory_bytes, _tree(pid)) if size is not None]
    return sum(found) if found else None


def device_memory_bytes() -> int | None:
    """Return what torch has reserved on this process's CUDA device, or None if it uses none. Imports no torch."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.memory_reserved())


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        lists = [task.read_text() for task in (_PROC / str(pid) / "task").glob("*/children")]
    except OSError:  # it has ended meanwhile
        return
    for child in " ".join(lists).split():
        yield from _tree(int(child))
