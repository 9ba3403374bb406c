"""An inference engine: a process that generates, hands over, and stops when the learner does."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from examples.async_inference.channel import Announcement, EngineEnd, Slots
from examples.async_inference.models import Target, TargetCfg
from odstream.perf import ProducerMeter
from odstream.validation import check_int

_REPORT_EVERY_S = 0.25
"""While it is held back, an engine says so this often."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCfg:
    """The inference side.

    Raises:
        TypeError, ValueError: If a field is out of range.
    """

    count: int = 2
    """P: engine processes, of one thread each."""
    sequences: int = 8
    """N: sequences of one generate call."""
    slots: int = 4
    """S: calls of one engine that may lie in its queue."""
    seed: int = 0
    """Of the first one's samples; the others count on."""

    def __post_init__(self) -> None:
        for name in ("count", "sequences", "slots"):
            check_int(f"engine.{name}", getattr(self, name), 1)
        check_int("engine.seed", self.seed, 0)


def run_engine(number: int, cfg: EngineCfg, target: TargetCfg, slots: Slots, link: Connection, metrics: bool) -> None:
    """Be an engine until the learner ends. The main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner is interrupted too, and ends this one
    torch.set_num_threads(1)
    end = EngineEnd(slots, link)
    try:
        _serve(number, cfg, Target(target), end, metrics)
    except (EOFError, ConnectionError):
        return
    except Exception:
        end.send(Announcement(failure=traceback.format_exc()))
        sys.exit(1)


def _serve(number: int, cfg: EngineCfg, target: Target, end: EngineEnd, metrics: bool) -> None:
    generator = torch.Generator().manual_seed(cfg.seed + number)
    meter = ProducerMeter(engine_name(number)) if metrics else None
    during: Callable[[str], AbstractContextManager[object]] = _unmetered if meter is None else meter.during

    def report() -> None:
        if meter is not None:
            end.send(Announcement(report=meter.snapshot()))

    report()
    while True:
        with during("busy"):
            sequences = target.generate(cfg.sequences, generator)
        with during("blocked"):
            slot = end.free_slot(report, _REPORT_EVERY_S)
        with during("publish"):
            end.write(slot, sequences)
        if meter is not None:
            meter.finish(accepted=cfg.sequences)
        with during("publish"):  # of the next call, by the meter's count: this one's is in the snapshot
            end.send(Announcement(slot, time.monotonic_ns(), None if meter is None else meter.snapshot()))


def engine_name(number: int) -> str:
    """Return the name of an engine, in messages and metrics."""
    return f"engine{number}"


def _unmetered(_state: str) -> AbstractContextManager[object]:
    return nullcontext()
