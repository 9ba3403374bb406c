"""Producers that break their contract, and exceptions that travel badly. Importable by any process, without torch."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from odstream.cache.lock import SharedLock
from odstream.producers.base import Episode, ProducerContext, Segment, Staging
from tests.fakes.producers import Script, ScriptedProducer, Trouble


class Unpicklable(Exception):
    """Holds what cannot travel."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.callback = lambda: text


class TwoArguments(Exception):
    """Pickles, but cannot be built again from what was pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 2)


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Talkative(Exception):
    """Says more than the memory for a failure can hold, and not in ASCII."""

    def __init__(self, text: str) -> None:
        super().__init__(f"äöü\udcff\0{text}{'x' * 1_000_000}")


@dataclass(frozen=True)
class Breach:
    """A factory of producers whose episodes come from ``act``."""

    act: Callable[[Staging], Iterator[Episode]]

    def __call__(self, context: ProducerContext) -> ScriptedProducer:
        producer = ScriptedProducer(Script(), context)
        producer.produce = self.produce  # type: ignore[method-assign]
        return producer

    def produce(self, count: int, staging: Staging, **_: Any) -> Iterator[Episode]:
        return self.act(staging)


def too_long(staging: Staging) -> Iterator[Episode]:
    yield Episode(row=staging.claim(), length=21, accepted=True)


def empty(staging: Staging) -> Iterator[Episode]:
    yield Episode(row=staging.claim(), length=0, accepted=True)


def unclaimed(staging: Staging) -> Iterator[Episode]:
    yield Episode(row=staging.claim() + 1, length=3, accepted=True)


def twice(staging: Staging) -> Iterator[Episode]:
    row = staging.claim()
    yield Episode(row=row, length=3, accepted=True)
    yield Episode(row=row, length=3, accepted=True)


def recycled_twice(staging: Staging) -> Iterator[Episode]:
    row = staging.claim()
    yield Episode(row=row, length=3, accepted=False)
    yield Episode(row=row, length=3, accepted=False)


def greedy(staging: Staging) -> Iterator[Episode]:
    while True:
        staging.claim()
    yield


def gap_in_segments(staging: Staging) -> Iterator[Episode]:
    segments = (Segment(start=0, end=2), Segment(start=3, end=5))
    yield Episode(row=staging.claim(), length=5, accepted=True, segments=segments)


def short_mask(staging: Staging) -> Iterator[Episode]:
    yield Episode(row=staging.claim(), length=5, accepted=True, valid=np.ones(4, bool))


def blank_instruction(staging: Staging) -> Iterator[Episode]:
    yield Episode(row=staging.claim(), length=5, accepted=True, instruction="  ")


def no_episode(staging: Staging) -> Iterator[Episode]:
    yield None  # type: ignore[misc]


@dataclass(frozen=True)
class SpecOf:
    """A factory of producers that report ``spec``."""

    spec: Any

    def __call__(self, context: ProducerContext) -> ScriptedProducer:
        producer = ScriptedProducer(Script(), context)
        producer.spec = self.spec
        return producer


@dataclass(frozen=True)
class DropsItsDescriptors:
    """A factory that closes every descriptor it did not open, as code that makes daemons does, and stays."""

    def __call__(self, context: ProducerContext) -> ScriptedProducer:
        os.closerange(3, 256)
        Trouble("hang").happen()
        raise AssertionError


@dataclass(frozen=True)
class HastyLocks:
    """A factory of obedient producers; shortens the timeout that every lock in its process starts with."""

    timeout_s: float

    def __call__(self, context: ProducerContext) -> ScriptedProducer:
        defaults = SharedLock.__init__.__kwdefaults__
        assert defaults is not None
        defaults["timeout_s"] = self.timeout_s
        return ScriptedProducer(Script(), context)


@dataclass(frozen=True)
class JumpingClock:
    """A wall clock that goes an hour forth and back at every look, and a factory that puts it into its process."""

    script: Script = Script()

    def __call__(self, context: ProducerContext) -> ScriptedProducer:
        time.time, time.time_ns = self.time, self.time_ns
        return ScriptedProducer(self.script, context)

    def time_ns(self) -> int:
        return 1_700_000_000_000_000_000 + next(_JUMPS) * 3_600_000_000_000

    def time(self) -> float:
        return self.time_ns() / 1e9


_JUMPS = itertools.cycle((0, 1, 0, -1))
