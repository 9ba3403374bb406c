"""Anonymous shared memory that vanishes with its last user.

On Linux this is a memfd: no name, no entry in ``/dev/shm``, freed by the kernel when the last process that maps
it is gone, however it went. Its pages are reserved when it is created, so running out of memory is an error in
words at start and never a bus error later.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Any

from odstream.errors import SharedMemoryError

__all__ = ["SharedMemory", "available_bytes"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> tuple[int, str]:
    """Return how much memory can still be taken, and what says so.

    The smaller of the kernel's estimate (``MemAvailable``) and what the control group mounted at ``cgroup`` still
    allows: version 2, ``memory.max`` less ``memory.current``, files that the kernel can drop from memory not counted.
    That is a container's own limit; limits of groups inside of it, and of version 1, are not seen.
    """
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available, source = int(fields["MemAvailable"].split()[0]) * 1024, f"MemAvailable of {meminfo}"
    limit_file, used_file = cgroup / "memory.max", cgroup / "memory.current"
    if limit_file.exists() and used_file.exists():
        limit = limit_file.read_text().strip()
        if limit != "max":
            left = int(limit) - int(used_file.read_text()) + _droppable_bytes(cgroup / "memory.stat")
            if left < available:
                available, source = max(left, 0), str(limit_file)
    return available, source


def _droppable_bytes(stat: Path) -> int:
    """Return the page cache that is counted as used, and given up when memory is wanted."""
    if not stat.exists():
        return 0
    fields = dict(line.split() for line in stat.read_text().splitlines())
    return int(fields.get("inactive_file", 0))


class SharedMemory:
    """``nbytes`` of zeroed memory that child processes can map.

    Pickling works while a process is being spawned and through multiprocessing connections: the descriptor is
    duplicated into the receiver. Every copy closes its own descriptor; the memory lives as long as any is mapped.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd  # first: it is closed with this object even if mapping it fails
        self.nbytes = nbytes
        self.buffer = mmap.mmap(fd, nbytes)

    @classmethod
    def create(cls, nbytes: int) -> SharedMemory:
        """Allocate and reserve zeroed memory.

        Raises:
            SharedMemoryError: If less than ``nbytes`` are available. Nothing stays allocated.
        """
        available, source = available_bytes()
        if nbytes > available:
            raise _too_little(nbytes, available, source)
        fd = os.memfd_create("odstream", os.MFD_CLOEXEC)
        try:
            _reserve(fd, nbytes)
            return cls(fd, nbytes)
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.ENOSPC):
                raise _too_little(nbytes, available_bytes()[0], f"memfd ({error.strerror})") from error
            raise

    @property
    def fd(self) -> int:
        """Descriptor of the memory in this process."""
        return self._fd

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return _attach, (DupFd(self._fd), self.nbytes)

    def __del__(self) -> None:
        # Only the descriptor: the mapping is freed when the last array on it is.
        if getattr(self, "_fd", -1) >= 0:
            try:
                os.close(self._fd)
            except OSError:
                pass
            self._fd = -1


def _reserve(fd: int, nbytes: int) -> None:
    """Take the pages. Can last long, and be interrupted."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except BaseException:
        os.close(fd)
        raise


def _attach(fd: Any, nbytes: int) -> SharedMemory:
    return SharedMemory(fd.detach(), nbytes)


def _too_little(needed: int, available: int, source: str) -> SharedMemoryError:
    return SharedMemoryError(
        f"the cache needs {needed} bytes ({needed / 2**20:.1f} MiB) of shared memory, but {available} bytes "
        f"({available / 2**20:.1f} MiB) are available according to {source}; "
        "lower buffer_size or max_episode_steps, or free memory"
    )
