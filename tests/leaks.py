"""What a process holds that outlives a test: child processes, entries of /dev/shm, memory files. Linux only."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

RELEASE_DEADLINE_S = 5.0
"""How long processes that are on their way out, and their memory, may take after a test."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdings:
    """One look at what this process holds."""

    children: frozenset[int]
    """Process ids, without the two helpers that `multiprocessing` keeps for itself."""
    shared_memory: frozenset[str]
    """Names in ``/dev/shm``, whoever made them."""
    memory_files: frozenset[str]
    """Open descriptors of anonymous memory files, as ``name#inode``."""

    @classmethod
    def now(cls) -> Holdings:
        """Look."""
        return cls(
            children=_children(),
            shared_memory=frozenset(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else frozenset(),
            memory_files=_memory_files(),
        )

    def beyond(self, before: Holdings) -> list[str]:
        """Describe what is held now and was not held before."""
        found = [f"child process {pid} ({_command(pid)})" for pid in sorted(self.children - before.children)]
        found += [f"/dev/shm/{name}" for name in _without_owner(self.shared_memory - before.shared_memory)]
        found += [f"memory file {name}" for name in sorted(self.memory_files - before.memory_files)]
        return found


def wait_until_released(before: Holdings, deadline_s: float = RELEASE_DEADLINE_S) -> list[str]:
    """Return what stays held beyond ``before``, giving processes that are ending some time to end."""
    until = time.monotonic() + deadline_s
    left = Holdings.now().beyond(before)
    while left and time.monotonic() < until:
        multiprocessing.active_children()  # reaps those that have ended
        gc.collect()
        time.sleep(0.02)
        left = Holdings.now().beyond(before)
    return left


def _children() -> frozenset[int]:
    helpers = {
        getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None),
        getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None),
    }
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids.update(int(pid) for pid in (task / "children").read_text().split())
        except OSError:  # the thread has ended
            continue
    return frozenset(pids - helpers)


def _memory_files() -> frozenset[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
            if target.startswith("/memfd:"):
                found.add(f"{target.removeprefix('/memfd:').split(' ')[0]}#{os.stat(descriptor).st_ino}")
        except OSError:  # closed meanwhile
            continue
    return frozenset(found)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return "ended"


def _without_owner(names: frozenset[str]) -> list[str]:
    """Drop entries that a process outside this one's family has open: another program's, not a test's.

    By inode, since a semaphore is mapped before it gets its name.
    """
    if not names:
        return []
    family = _family()
    taken: set[int] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) not in family:
            taken |= _shared_memory_of(process)
    return sorted(name for name in names if _inode(name) not in {None, *taken})


def _inode(name: str) -> int | None:
    try:
        return os.stat(f"/dev/shm/{name}").st_ino
    except OSError:  # gone meanwhile
        return None


def _family() -> set[int]:
    parent_of: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                after_name = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parent_of[int(process.name)] = int(after_name[1])
    family = {os.getpid()}
    while True:
        grown = family | {pid for pid, parent in parent_of.items() if parent in family}
        if grown == family:
            return family
        family = grown


def _shared_memory_of(process: Path) -> set[int]:
    """Return the inodes of ``/dev/shm`` that a process has mapped or open."""
    try:
        mapped = [line.split(maxsplit=5) for line in (process / "maps").read_text().splitlines() if "/dev/shm/" in line]
        opened = [
            descriptor for descriptor in (process / "fd").iterdir() if os.readlink(descriptor).startswith("/dev/shm/")
        ]
        return {int(fields[4]) for fields in mapped} | {os.stat(descriptor).st_ino for descriptor in opened}
    except OSError:  # ended, or not ours to look into
        return set()
