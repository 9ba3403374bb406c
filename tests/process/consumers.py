"""Engines for tests, and processes that draw from them on command."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.producers.base import ProducerFactory
from tests.fakes.producers import Script

PATIENCE_S = 40.0
"""How long something may take on a loaded machine before a test calls it a hang."""


def make_engine(producer: ProducerFactory | None = None, **settings: Any) -> OnlineDataEngine:
    """Four episodes, refilled on request, unless ``settings`` say otherwise."""
    defaults = {"buffer_size": 4, "max_episode_steps": 20, "refill_policy": "manual"}
    return OnlineDataEngine(OnlineDataEngineCfg(**(defaults | settings)), producer=producer or Script())


@contextmanager
def running(producer: ProducerFactory | None = None, **settings: Any) -> Iterator[OnlineDataEngine]:
    """Start an engine; stop it afterwards, whatever became of it."""
    engine = make_engine(producer, **settings)
    engine.start()
    try:
        yield engine
    finally:
        with suppress(Exception):
            engine.stop()


def producer_pid(engine: OnlineDataEngine) -> int:
    assert engine._worker is not None
    return engine._worker.pid


def until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition that must come about."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience_s} s in vain until {what}"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


class RemoteError(Exception):
    """What a function raised in a consumer."""

    def __init__(self, kind: str, text: str, notes: list[str]) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text, self.notes = kind, text, notes


class Consumer:
    """A process that holds a copy of an engine and runs functions ``function(engine, *arguments)`` on it.

    A forked one inherits ``engine``; a spawned one is sent it.
    """

    def __init__(self, method: str, engine: OnlineDataEngine | None = None, *, daemon: bool = True) -> None:
        context = multiprocessing.get_context(method)
        self._pipe, remote = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(remote, engine if method == "fork" else None), name=f"{method} consumer", daemon=daemon
        )
        self.process.start()
        remote.close()
        assert self.process.pid is not None
        self.pid: int = self.process.pid
        if method != "fork" and engine is not None:
            self.hold(engine)

    def hold(self, engine: OnlineDataEngine | None) -> None:
        """Send it another engine."""
        self._pipe.send((_held, (engine,)))
        self.result()

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Let it run a function, and do not wait."""
        self._pipe.send((function, arguments))

    def result(self, patience_s: float = PATIENCE_S) -> Any:
        """Return what the function returned, or raise `RemoteError`; EOFError if the process died."""
        assert self._pipe.poll(patience_s), f"{self.process.name} did not answer within {patience_s} s"
        try:
            error, value = self._pipe.recv()
        except OSError as broken:
            raise EOFError from broken
        if error is not None:
            raise RemoteError(*error)
        return value

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.begin(function, *arguments)
        return self.result()

    def close(self) -> None:
        with suppress(OSError):  # closing the pipe would not do: consumers forked later hold it too
            self._pipe.send(None)
        self._pipe.close()
        self.process.join(PATIENCE_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _held(engine: OnlineDataEngine | None, new: OnlineDataEngine | None) -> None:
    """Stand for `Consumer.hold` in the protocol; `_serve` treats it itself."""


def _serve(pipe: Connection, engine: OnlineDataEngine | None) -> None:
    while True:
        try:
            command = pipe.recv()
        except (EOFError, OSError):
            return
        if command is None:
            return
        function, arguments = command
        if function is _held:
            (engine,) = arguments
        try:
            answer = (None, function(engine, *arguments) if function is not _held else None)
        except BaseException as error:
            answer = ((type(error).__name__, str(error), list(getattr(error, "__notes__", []))), None)
        pipe.send(answer)
        del command, arguments


# Functions for consumers.


def sample(engine: OnlineDataEngine, batch_size: int = 4, chunk_size: int = 5) -> list[float]:
    """Draw a batch and return the first observation of every frame of every chunk, in one list."""
    values: list[float] = engine.sample_batch(batch_size, chunk_size)["obs"][..., 0].flatten().tolist()
    return values


def sample_until_failure(engine: OnlineDataEngine, patience_s: float = PATIENCE_S) -> None:
    """Draw until a call raises; let that through."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        engine.sample_batch(4, 5)


def lines_of_a_draw(engine: OnlineDataEngine) -> list[str]:
    """Return the lines of odstream that a call runs, after a first one: what `die_at_line` counts."""
    engine.sample_batch(4, 5)
    return lines_of(lambda: engine.sample_batch(4, 5))


def die_at_line(engine: OnlineDataEngine, line: int) -> None:
    """Draw a batch, then kill this process before the given line of the next call."""
    engine.sample_batch(4, 5)
    at_line(line, lambda: os.kill(os.getpid(), signal.SIGKILL))
    engine.sample_batch(4, 5)


def stop_at_line(engine: OnlineDataEngine, line: int) -> None:
    """Draw a batch, then suspend this process before the given line of the next call."""
    engine.sample_batch(4, 5)
    at_line(line, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    engine.sample_batch(4, 5)


def at_line(wanted: int, act: Callable[[], None], within: Collection[str] = ()) -> None:
    """Call ``act`` once, before the line numbered ``wanted`` of odstream that this thread runs from now on.

    With ``within`` only lines of these functions count, named as `lines_of` names them.
    """
    count = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        if "/odstream/" not in frame.f_code.co_filename:
            return None
        name = f"{Path(frame.f_code.co_filename).stem}:{frame.f_code.co_name}"
        if event == "line" and (not within or name in within):
            count += 1
            if count == wanted:
                sys.settrace(None)
                act()
        return trace

    sys.settrace(trace)


def lines_of(call: Callable[[], object]) -> list[str]:
    """Return the lines of odstream that ``call`` runs, as ``module:function``."""
    lines: list[str] = []

    def trace(frame: Any, event: str, argument: object) -> Any:
        if "/odstream/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines.append(f"{Path(frame.f_code.co_filename).stem}:{frame.f_code.co_name}")
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return lines
