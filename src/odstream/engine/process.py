"""The producer process as others see it. Its owner starts it, notices its death and ends it; anybody else may watch."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

from odstream.cache.layout import CacheLayout, Word
from odstream.cache.store import CacheStore
from odstream.engine import failure
from odstream.engine.state import State, report_failure, shared_state
from odstream.engine.worker import WorkerSettings, run_worker
from odstream.errors import EngineStateError, LockTimeoutError, OnlineDataWorkerError
from odstream.producers.spawning import main_script_left_out

__all__ = ["ProducerWatch", "WorkerProcess"]

_FORCED_S = 2.0
_OWNER_REPORTS_S = 1.0
_POLL_S = 0.005
_GUARD_HINT = (
    "If the script that starts the engine also defines the expert or the environment, and is not protected by "
    "`if __name__ == '__main__':`, protect it: the producer process imports it."
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
        self.connection, self._remote = context.Pipe()
        self._factory = factory
        self._process = context.Process(
            target=run_worker, args=(self._remote, factory, settings, os.getpid()), name="odstream-producer"
        )
        self._store: CacheStore | None = None
        self.ending = False

    @property
    def pid(self) -> int:
        """Number of the process, once it is started."""
        assert self._process.pid is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process. Whatever comes of this call, `end` ends what it started.

        Raises:
            EngineStateError: If `end` was called meanwhile, by another thread or a signal handler, and found no
                process yet. It is ended here.
        """
        try:
            with main_script_left_out(self._factory):
                self._process.start()
        finally:
            self._remote.close()
        if self.ending:
            self.end(0.0)
            raise EngineStateError("the engine was stopped while it started")

    def send_store(self, layout: CacheLayout, store: CacheStore) -> None:
        """Hand the cache to the producer and begin to watch the process."""
        self._store = store
        self.connection.send(layout)
        send_handle(self.connection, store.memory.fd, self.pid)
        threading.Thread(target=self._report_death, args=(store,), name="odstream-monitor", daemon=True).start()

    def died(self) -> bool:
        """Return whether the process has ended. Does not reap it; takes about a microsecond."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def death(self) -> OnlineDataWorkerError:
        """Return what is known of the end of a process that `died`."""
        return OnlineDataWorkerError(f"the producer process {self.pid} {self._how_it_ended()}")

    def end(self, timeout_s: float) -> OnlineDataWorkerError | None:
        """Ask the process to end, wait, then force it; return what was wrong with its end, if anything.

        Whatever it had started in its process group ends with it.
        """
        self.ending = True
        if self._store is not None:
            self._store.words[Word.STOP] = 1
        self.connection.close()
        if self._process.pid is None:
            return None
        ending = None if self._await_death(timeout_s) else _forced_end(timeout_s)
        for force in (signal.SIGTERM, signal.SIGKILL):
            if not self.died():
                os.kill(self.pid, force)
                self._await_death(_FORCED_S)
        self._end_group()
        if ending is None and self._exit_code():
            ending = self.death()
        self._process.join()
        return ending

    def _await_death(self, timeout_s: float) -> bool:
        """Wait until the process has ended, or in vain. Its descendants may live on; it is not reaped."""
        deadline = time.monotonic() + timeout_s
        while not self.died():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _end_group(self) -> None:
        """End what is left of the process group, unless the process was reaped: then the number may be another's."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nothing of it is left

    def _report_death(self, store: CacheStore) -> None:
        """Wait for the end of the process and report it unless it was asked for. Runs in a thread."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # somebody else has reaped it
        self._end_group()  # at once: anybody who starts a process may reap this one
        report = failure.encode(self.death())
        while not store.words[Word.STOP]:
            try:
                report_failure(store, report)
                return
            except LockTimeoutError:
                continue  # a suspended consumer holds the lock

    def _exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None if it is not known, or not yet."""
        try:
            status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # reaped, perhaps by multiprocessing when it started another process
            return self._process.exitcode
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def _how_it_ended(self) -> str:
        code = self._exit_code()
        if code is None:
            return "ended; how is not known any more."
        if code >= 0:
            return f"exited with code {code}. {_GUARD_HINT if code == 1 else ''}".strip()
        name = {known.value: known.name for known in signal.Signals}.get(-code, "a real-time signal")
        return f"was killed by signal {-code} ({name})."


def _forced_end(timeout_s: float) -> OnlineDataWorkerError:
    return OnlineDataWorkerError(
        f"the producer did not end within shutdown_timeout={timeout_s} s and had to be killed; "
        "what it was writing elsewhere may be incomplete"
    )


class ProducerWatch:
    """Tells a process that does not own the engine whether the producer lives.

    Args:
        store: Of an engine that has been READY.
    """

    def __init__(self, store: CacheStore) -> None:
        self._store = store
        self._pid = int(store.words[Word.WORKER_PID])
        self._poll = select.poll()
        self._descriptor = -1
        self._was_gone = False
        try:
            self._descriptor = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._was_gone = True
        except OSError:
            return  # before Linux 5.3 its owner alone can tell
        else:
            self._poll.register(self._descriptor, select.POLLIN)

    def died(self) -> bool:
        """Return whether the producer process has ended. Takes about a microsecond."""
        return self._was_gone or bool(self._poll.poll(0))

    def await_report(self) -> None:
        """Return once the engine is known to be without producer.

        Its owner reports how it ended, or is stopping it. If the owner is gone too, or suspended, it is reported here.
        """
        deadline = time.monotonic() + _OWNER_REPORTS_S
        while shared_state(self._store) is State.READY and not self._store.words[Word.STOP]:
            if time.monotonic() >= deadline:
                error = f"the producer process {self._pid} is gone, and the process that owned it did not report how"
                report_failure(self._store, failure.encode(OnlineDataWorkerError(error)))
                return
            time.sleep(_POLL_S)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
