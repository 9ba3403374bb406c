"""Players in processes of their own: one environment, its driver, and its plan in each.

The processes are spawned, may have children, and end with their owner: by `RemotePlayer.close`, or by themselves
once the process that started them is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from odstream.producers.base import ProducerContext, never
from odstream.producers.gym_config import GymConfig
from odstream.producers.player import Advance, Description, build_player
from odstream.producers.spawning import main_script_left_out

CLOSE_TIMEOUT_S = 2.0
"""How long a process may take to close its environment before it is ended."""
_POLL_S = 0.05
"""How often a wait looks at ``should_stop``."""
_CLOSE = "close"


class RemotePlayer:
    """A `Player` in a process of its own. Construction returns at once; `description` waits for the environment.

    Any exception in the process is raised here with its type and message; its traceback is in the exception's note.

    Raises:
        ChildProcessError: In `description` and `collect`, if the process ends without saying why.
    """

    def __init__(self, config: GymConfig, context: ProducerContext, index: int) -> None:
        processes = multiprocessing.get_context("spawn")
        pickled = bytes(ForkingPickler.dumps((config, context)))
        self._index = index
        self._connection, theirs = processes.Pipe()
        self._process = processes.Process(
            target=_serve, args=(theirs, pickled), name=f"odstream-environment-{index}", daemon=False
        )
        self._description: Description | None = None
        self._unanswered = 0
        self._close_deadline_s: float | None = None
        self._closed = False
        try:
            with main_script_left_out(pickled):
                self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        # An owner that exits without `close` would otherwise wait for this process, and the process for its owner.
        self._at_exit = multiprocessing.util.Finalize(
            self, _end, args=(self._connection, self._process), exitpriority=10
        )

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    @property
    def description(self) -> Description:
        """What is recorded. The first call blocks until the environment is built."""
        if self._description is None:
            self._description = self._receive(never)
            assert isinstance(self._description, Description)
        return self._description

    def request(self, seed: int | None) -> None:
        """Ask for the next frame; with a seed, reset first."""
        with contextlib.suppress(OSError):  # `collect` finds out why nobody listens
            self._connection.send(seed)
        self._unanswered += 1

    def collect(self, should_stop: Callable[[], bool]) -> Advance | None:
        """Wait for the answer to the last request; drops answers to requests that were given up before."""
        while True:
            answer = self._receive(should_stop)
            if answer is None:
                return None
            self._unanswered -= 1
            if self._unanswered == 0:
                assert isinstance(answer, Advance)
                return answer

    def _receive(self, should_stop: Callable[[], bool]) -> Any:
        while not wait([self._connection, self._process.sentinel], timeout=_POLL_S):
            if should_stop():
                return None
        try:
            if not self._connection.poll():
                raise EOFError
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error
        if isinstance(answer, _Failure):
            raise answer.error(f"environment process {self._index} (pid {self.pid})")
        return answer

    def _death(self) -> ChildProcessError:
        self._process.join(CLOSE_TIMEOUT_S)
        code = self._process.exitcode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
        return ChildProcessError(f"environment process {self._index} (pid {self.pid}) {how} while it was needed")

    def begin_close(self) -> None:
        """Ask the process to close its environment. Does not block."""
        if self._close_deadline_s is None:
            _ask_to_close(self._connection)
            self._close_deadline_s = time.monotonic() + CLOSE_TIMEOUT_S

    def close(self) -> None:
        """Close the environment and end the process, by force after `CLOSE_TIMEOUT_S`. Idempotent.

        Raises:
            Exception: Whatever the environment raised while it was closed.
        """
        if self._closed:
            return
        self._closed = True
        self.begin_close()
        self._at_exit.cancel()
        failures = _end(self._connection, self._process, self._close_deadline_s)
        self._connection.close()
        self._process.close()
        for failure in failures:
            raise failure.error(f"environment process {self._index} while it was closed")


def _end(connection: Connection, process: BaseProcess, deadline_s: float | None = None) -> list[_Failure]:
    """Wait until a process that was asked to close has ended; end it by force at the deadline.

    Returns what went wrong while it closed. Reads on, because a process whose answer nobody reads cannot end.
    """
    failures: list[_Failure] = []
    if deadline_s is None:
        _ask_to_close(connection)
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
    with contextlib.suppress(EOFError, OSError):
        while connection in wait([connection, process.sentinel], timeout=max(0.0, deadline_s - time.monotonic())):
            answer = connection.recv()
            if isinstance(answer, _Failure) and answer.while_closing:
                failures.append(answer)
    process.join(max(0.0, deadline_s - time.monotonic()))
    for force in (process.terminate, process.kill):
        if process.is_alive():
            force()
            process.join(CLOSE_TIMEOUT_S)
    return failures


def _ask_to_close(connection: Connection) -> None:
    with contextlib.suppress(OSError):
        connection.send(_CLOSE)


class _Failure:
    """An exception on its way to another process: itself where it pickles, its text always."""

    def __init__(self, error: BaseException, while_closing: bool = False) -> None:
        self.while_closing = while_closing
        self.summary = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
        self.traceback = "".join(traceback.format_exception(error))
        try:
            self.pickled: bytes | None = pickle.dumps(error)
        except Exception:
            self.pickled = None

    def error(self, where: str) -> BaseException:
        """Rebuild the exception; a `RuntimeError` with its type and message in words where that is impossible."""
        error: BaseException = RuntimeError(self.summary)
        if self.pickled is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(self.pickled)
        error.add_note(f"Raised in {where}:\n{self.traceback}")
        return error


def _serve(connection: Connection, pickled: bytes) -> None:
    """Main function of an environment process: build, then answer requests until told to close."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what an interrupt means
    threading.Thread(target=_end_with_owner, daemon=True).start()
    try:
        player = build_player(*pickle.loads(pickled))
    except BaseException as error:
        _send(connection, _Failure(error))
        return
    try:
        connection.send(player.description)
        while (seed := connection.recv()) != _CLOSE:
            player.request(seed)
            connection.send(player.collect(never))
    except (EOFError, BrokenPipeError):
        pass  # the owner is gone
    except BaseException as error:
        _send(connection, _Failure(error))
    try:
        player.close()
    except BaseException as error:
        _send(connection, _Failure(error, while_closing=True))


def _send(connection: Connection, failure: _Failure) -> None:
    with contextlib.suppress(OSError):
        connection.send(failure)


def _end_with_owner() -> None:
    """End this process once its owner is gone, after a chance to close the environment."""
    owner = multiprocessing.parent_process()
    assert owner is not None
    owner.join()
    threading.Event().wait(CLOSE_TIMEOUT_S)
    os._exit(1)
