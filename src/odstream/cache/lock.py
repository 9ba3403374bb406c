"""A lock in shared memory that survives the death of its holder.

It is a robust process-shared POSIX mutex: when its holder dies, by any means, the kernel hands the lock to the next
one who asks. Waiting is done in slices, so that signal handlers and health checks run, and ends at a deadline.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import sys
import time
from collections.abc import Callable
from functools import partial

from odstream.errors import LockTimeoutError

__all__ = ["LOCK_BYTES", "LockHeldError", "SharedLock"]

LOCK_BYTES = 128
"""Room for a ``pthread_mutex_t`` on every Linux architecture."""

_SLICE_S = 0.2
_PROCESS_SHARED = 1
_ROBUST = 1
_ERRORCHECK = 2
_CLOCK_MONOTONIC = 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def _load_pthread() -> ctypes.CDLL:
    if not sys.platform.startswith("linux"):
        raise OSError(f"odstream needs robust process-shared mutexes, which only Linux has; this is {sys.platform}")
    library = ctypes.CDLL(None, use_errno=False)
    if not hasattr(library, "pthread_mutex_consistent"):
        library = ctypes.CDLL(ctypes.util.find_library("pthread") or "libpthread.so.0")
    return library


_pthread = _load_pthread()
_has_clocklock = hasattr(_pthread, "pthread_mutex_clocklock")

_unlock = _pthread["pthread_mutex_unlock"]
_unlock.argtypes = [ctypes.c_void_p, *[ctypes.py_object] * 3]  # which the C function does not look at
_unlock.restype = None


class LockHeldError(RuntimeError):
    """Raised when a thread that holds the lock asks for it, which only code in a signal handler can bring about."""


class SharedLock:
    """Mutual exclusion between all processes and threads that map the same memory. Not reentrant.

    Args:
        address: Address of `LOCK_BYTES` of shared memory.
        timeout_s: Seconds that an acquisition may take in all; may be infinite.
    """

    def __init__(self, address: int, *, timeout_s: float = 30.0) -> None:
        self._mutex = ctypes.c_void_p(address)
        self.timeout_s = timeout_s
        self.leave: Callable[[object, object, object], None] = partial(_unlock, self._mutex)
        """Give the lock back, as the ``__exit__`` of a ``with`` block. Not a Python function: see `acquire`."""
        self.release: Callable[[], None] = partial(_unlock, self._mutex, None, None, None)
        """Give the lock back."""

    def initialise(self) -> None:
        """Prepare the mutex. Called once, by the process that allocated the memory."""
        attributes = ctypes.create_string_buffer(64)
        _succeed(_pthread.pthread_mutexattr_init(attributes))
        _succeed(_pthread.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED))
        _succeed(_pthread.pthread_mutexattr_setrobust(attributes, _ROBUST))
        _succeed(_pthread.pthread_mutexattr_settype(attributes, _ERRORCHECK))
        _succeed(_pthread.pthread_mutex_init(self._mutex, attributes))
        _succeed(_pthread.pthread_mutexattr_destroy(attributes))

    def acquire(self, check: Callable[[], None] | None = None) -> None:
        """Take the lock.

        An interrupt (Ctrl-C, a signal handler that raises) may come between any two steps of Python, so after an
        exception the lock may be held: call `let_go` unless it is a `LockHeldError`. Giving it back is a single step.

        Args:
            check: Called between slices of waiting, without the lock; may raise to give up.

        Raises:
            LockTimeoutError: If it was not free within the deadline although its holder lives.
            LockHeldError: If this thread holds it already.
        """
        code = _pthread.pthread_mutex_trylock(self._mutex)
        if code == errno.EBUSY:
            code = self._wait(check)
        if code == errno.EOWNERDEAD:
            code = _pthread.pthread_mutex_consistent(self._mutex)
        if code == errno.EDEADLK:
            raise LockHeldError(
                "this thread holds the cache lock already: a signal handler interrupted a call on this engine and made "
                "another one; let the handler set a flag, and make the call after it has returned"
            )
        _succeed(code)

    def let_go(self) -> None:
        """Give the lock back if this thread holds it."""
        if _pthread.pthread_mutex_trylock(self._mutex) != errno.EBUSY:
            _pthread.pthread_mutex_consistent(self._mutex)  # where its last holder died; has no effect elsewhere
            _pthread.pthread_mutex_unlock(self._mutex)

    def _wait(self, check: Callable[[], None] | None) -> int:
        deadline = time.monotonic() + self.timeout_s
        while True:
            code = _lock_within(self._mutex, _SLICE_S)
            if code != errno.ETIMEDOUT:
                return code
            if check is not None:
                check()
            if time.monotonic() >= deadline:
                raise LockTimeoutError(
                    f"the cache lock was not free within {self.timeout_s} s; its holder is alive, perhaps suspended"
                )


def _lock_within(mutex: ctypes.c_void_p, seconds: float) -> int:
    if _has_clocklock:
        until = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(seconds * 1e9)
        limit = _Timespec(until // 10**9, until % 10**9)
        return int(_pthread.pthread_mutex_clocklock(mutex, _CLOCK_MONOTONIC, ctypes.byref(limit)))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        code = int(_pthread.pthread_mutex_trylock(mutex))
        if code != errno.EBUSY:
            return code
        time.sleep(50e-6)
    return errno.ETIMEDOUT


def _succeed(code: int) -> None:
    if code != 0:
        raise OSError(code, f"pthread mutex: {errno.errorcode.get(code, code)}")
