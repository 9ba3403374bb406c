"""The producer process as its owner sees it: start, death, end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

from odstream.cache.layout import CacheLayout, Word
from odstream.cache.store import CacheStore
from odstream.engine import failure
from odstream.engine.state import report_failure
from odstream.engine.worker import WorkerSettings, run_worker
from odstream.errors import OnlineDataWorkerError

__all__ = ["WorkerProcess"]

_FORCED_S = 2.0
_GUARD_HINT = (
    "If the script that starts the engine is not protected by `if __name__ == '__main__':`, protect it: the producer "
    "process imports it."
)


class WorkerProcess:
    """One producer process.

    Always spawned, whatever the interpreter's default, and never a daemon: environments may start processes.

    Args:
        factory: The pickled `ProducerFactory`.
        settings: For the worker.
    """

    def __init__(self, factory: bytes, settings: WorkerSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection: Connection
        self.connection, remote = context.Pipe()
        self._process = context.Process(
            target=run_worker, args=(remote, factory, settings, os.getpid()), name="odstream-producer"
        )
        try:
            self._process.start()
        finally:
            remote.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._store: CacheStore | None = None

    def send_store(self, layout: CacheLayout, store: CacheStore) -> None:
        """Hand the cache to the producer and begin to watch the process."""
        self._store = store
        self.connection.send(layout)
        send_handle(self.connection, store.memory.fd, self.pid)
        threading.Thread(target=_report_death, args=(self.pid, store), name="odstream-monitor", daemon=True).start()

    def died(self) -> bool:
        """Return whether the process has ended. Does not reap it; takes about a microsecond."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def death(self) -> OnlineDataWorkerError:
        """Return what is known of the end of a process that `died`."""
        return _death_of(self.pid)

    def end(self, timeout_s: float) -> bool:
        """Ask the process to end, wait, then force it; return whether it ended by itself.

        Whatever it had started ends with it.
        """
        if self._store is not None:
            self._store.words[Word.STOP] = 1
        self.connection.close()
        self._process.join(timeout_s)
        graceful = self._process.exitcode is not None
        for force in (self._process.terminate, self._process.kill):
            if self._process.exitcode is None:
                force()
                self._process.join(_FORCED_S)
        self._end_group()
        self._process.join()
        return graceful

    def _end_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nothing of it is left


def _report_death(pid: int, store: CacheStore) -> None:
    """Wait for the end of the process and report it unless it was asked for. Runs in a thread of the owner."""
    death = _death_of(pid)
    if not store.words[Word.STOP]:
        report_failure(store, failure.encode(death))


def _death_of(pid: int) -> OnlineDataWorkerError:
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        status = None
    if status is None:
        how = "ended; how is not known any more"
    elif status.si_code == os.CLD_EXITED:
        how = f"exited with code {status.si_status}"
    else:
        how = f"was killed by signal {status.si_status} ({signal.Signals(status.si_status).name})"
    return OnlineDataWorkerError(f"the producer process {pid} {how}. {_GUARD_HINT if 'code 1' in how else ''}".strip())
