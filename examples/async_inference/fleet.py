"""The learner's side of all engines: processes, what they have handed over, and batches made of it.

Shapes: ``B`` sequences of up to ``T`` tokens, hidden states of width ``W``.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from examples.async_inference.channel import Announcement, Slots
from examples.async_inference.engine import EngineCfg, engine_name, run_engine
from examples.async_inference.models import TargetCfg
from odstream.perf import RemoteMeter

_STOP_S = 10.0
"""How long an engine may take to end its last call."""


class NoEngineError(RuntimeError):
    """All engines are down and what they left makes no batch. Look at the message: it says how each ended."""


class Batch(NamedTuple):
    """Sequences, padded to the longest of them."""

    tokens: Tensor
    """``[B, T] int64``."""
    hidden: Tensor
    """``[B, T, W] float32``."""
    lengths: Tensor
    """``[B] int64``."""

    def to(self, device: torch.device) -> Batch:
        """Copy to a device; from pinned memory without waiting for it."""
        return Batch(*(part.to(device, non_blocking=True) for part in self))


@dataclass
class _Engine:
    name: str
    process: Any
    link: Connection
    slots: Slots
    meter: RemoteMeter | None
    ended: str = ""
    """In words; empty while it works."""
    failure: str = ""


@dataclass
class _Held:
    """A slot that was announced and is not read to its end."""

    engine: _Engine
    slot: int
    published_ns: int
    taken: int = 0


class Fleet:
    """Starts engines, receives from them, and ends them. Use it as a context.

    An engine that dies is reported at once and what it had handed over stays readable; the others go on. Only when
    nobody is left to fill a batch is that an error.

    Args:
        cfg: Of the engines.
        target: That they run.
        metrics: Whether they are metered.
        tell: Takes a sentence when an engine has died.
    """

    def __init__(self, cfg: EngineCfg, target: TargetCfg, *, metrics: bool, tell: Callable[[str], object]) -> None:
        self.cfg = cfg
        self.received = self.taken = 0
        """Sequences so far."""
        self._tell = tell
        self._held: deque[_Held] = deque()
        self._engines: list[_Engine] = []
        context = multiprocessing.get_context("spawn")
        try:
            for number in range(cfg.count):
                slots = Slots.allocate(cfg.slots, cfg.sequences, target)
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=run_engine,
                    args=(number, cfg, target, slots, theirs, metrics),
                    name=engine_name(number),
                )
                process.start()
                theirs.close()  # so that its end, however it comes, closes the pipe
                meter = RemoteMeter(process.name) if metrics else None
                self._engines.append(_Engine(process.name, process, ours, slots, meter))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of all engines."""
        return [engine.process.pid for engine in self._engines]

    @property
    def meters(self) -> list[RemoteMeter]:
        """Of all engines; empty without metrics."""
        return [engine.meter for engine in self._engines if engine.meter is not None]

    @property
    def down(self) -> int:
        """How many engines have ended."""
        return sum(bool(engine.ended) for engine in self._engines)

    @property
    def level(self) -> int:
        """How many sequences could be taken, as of the last look at what had arrived."""
        return self.received - self.taken

    def wait_for(self, sequences: int, timeout_s: float) -> None:
        """Block until so many sequences can be taken.

        Raises:
            NoEngineError: If all engines are down before that.
            TimeoutError: If nothing arrives for ``timeout_s``.
        """
        self._receive(0.0)
        arrived, until = self.level, time.monotonic() + timeout_s
        while arrived < sequences:
            if self.down == len(self._engines):
                ends = "\n".join(f"{one.name} {one.ended}\n{one.failure}".rstrip() for one in self._engines)
                raise NoEngineError(f"no engine is left; {arrived} of {sequences} sequences are there.\n{ends}")
            self._receive(max(0.0, until - time.monotonic()))
            if self.level > arrived:
                arrived, until = self.level, time.monotonic() + timeout_s
            elif time.monotonic() >= until:
                raise TimeoutError(
                    f"{arrived} of {sequences} sequences were there after data_timeout_s={timeout_s:g} without a new "
                    f"one; {self.received} arrived so far, engines down: {self.down} of {len(self._engines)}"
                )

    def take(self, sequences: int, *, pin: bool) -> tuple[Batch, list[float]]:
        """Copy the oldest sequences out of shared memory, and give their slots back.

        Args:
            sequences: As many as `wait_for` has promised.
            pin: Whether to put them into page-locked memory, which a device reads without waiting.

        Returns:
            The batch, and for each sequence the seconds since it was handed over.
        """
        parts = self._parts(sequences)
        lengths = torch.cat([held.engine.slots.lengths[held.slot, begin:end] for held, begin, end in parts])
        longest = int(lengths.max())
        width = parts[0][0].engine.slots.hidden.shape[-1]
        batch = Batch(
            torch.empty(sequences, longest, dtype=torch.int64, pin_memory=pin),
            torch.empty(sequences, longest, width, pin_memory=pin),
            lengths.pin_memory() if pin else lengths,
        )
        place, ages_s, now_ns = 0, [], time.monotonic_ns()
        for held, begin, end in parts:
            slots, upto = held.engine.slots, place + end - begin
            batch.tokens[place:upto] = slots.tokens[held.slot, begin:end, :longest]
            batch.hidden[place:upto] = slots.hidden[held.slot, begin:end, :longest]
            ages_s += [max(0, now_ns - held.published_ns) / 1e9] * (end - begin)
            place = upto
        self.taken += sequences
        for held, _, end in parts:
            if end == self.cfg.sequences:
                self._give_back(held)
        return batch, ages_s

    def _parts(self, sequences: int) -> list[tuple[_Held, int, int]]:
        """Choose slots and places in them, oldest first; what is read to its end is held no longer."""
        parts = []
        while sequences:
            held = self._held[0]
            begin = held.taken
            held.taken = end = min(self.cfg.sequences, begin + sequences)
            parts.append((held, begin, end))
            sequences -= end - begin
            if end == self.cfg.sequences:
                self._held.popleft()
        return parts

    def _give_back(self, held: _Held) -> None:
        if not held.engine.ended:
            with suppress(OSError):  # it has just died: `_receive` reads what it has left, and then sees that
                held.engine.link.send(held.slot)

    def _receive(self, timeout_s: float) -> None:
        """Take what has arrived; if nothing has, wait for the first message."""
        links = {engine.link: engine for engine in self._engines if not engine.ended}
        while ready := wait(list(links), timeout_s):
            timeout_s = 0.0
            for link in ready:
                assert isinstance(link, Connection)
                try:
                    self._take_in(links[link], link.recv())
                except (EOFError, OSError):
                    self._ended(links.pop(link))

    def _take_in(self, engine: _Engine, message: Announcement) -> None:
        engine.failure = message.failure
        if engine.meter is not None and message.report is not None:
            engine.meter.update(message.report)
        if message.slot is not None:
            self._held.append(_Held(engine, message.slot, message.published_ns))
            self.received += self.cfg.sequences

    def _ended(self, engine: _Engine) -> None:
        self._stop(engine)
        code = engine.process.exitcode
        engine.ended = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        if engine.meter is not None:
            engine.meter.end()
        self._tell(f"producers down: {self.down} of {len(self._engines)}; {engine.name} {engine.ended}")

    def close(self) -> None:
        """End all engines: those that do not see by themselves that the learner has ended are killed. Idempotent."""
        for engine in self._engines:
            engine.link.close()
        for engine in self._engines:
            self._stop(engine)

    @staticmethod
    def _stop(engine: _Engine) -> None:
        engine.link.close()
        engine.process.join(_STOP_S)
        if engine.process.is_alive():
            engine.process.kill()
            engine.process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()
