"""Producers without an environment: they record numbers that say where they come from. Importable by any process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from odstream.errors import DemonstrationError
from odstream.producers.base import (
    Episode,
    FieldKey,
    FieldSpec,
    ProducerContext,
    RolloutSpec,
    Segment,
    Staging,
    never,
)


@dataclass(frozen=True)
class Trouble:
    """One thing that goes wrong in the producer process."""

    kind: Literal["raise", "exit", "kill", "hang"]
    """Raise ``error("boom-42")``, exit with code ``number``, send itself signal ``number``, or hang."""
    at: Literal["build", "episode", "close"] = "episode"
    attempt: int = 0
    """The attempt (over the whole run) that it happens at, where it happens at an episode."""
    number: int = 7
    error: Callable[[str], BaseException] = ValueError

    def happen(self) -> None:
        """Do it."""
        if self.kind == "raise":
            raise self.error("boom-42")
        if self.kind == "exit":
            os._exit(self.number)
        if self.kind == "kill":
            os.kill(os.getpid(), self.number)
        while True:
            time.sleep(0.05)


@dataclass(frozen=True)
class Script:
    """What a `ScriptedProducer` does. Also its picklable factory.

    Episode ``k`` (counted over accepted ones) of a run has frames whose ``obs`` are ``[1000 * k + t] * width``, whose
    actions are obs + 0.5 and whose rewards are ``t``, with ``t`` the frame index.
    """

    lengths: tuple[int, ...] = (10,)
    """Lengths of successive scenes, repeated for ever."""
    width: int = 3
    num_envs: int = 2
    constant: bool = False
    """Whether the frames of episode ``k`` hold the number ``k`` in every field instead, actions and rewards too."""
    number_attempts: bool = False
    """Whether ``k`` counts attempts instead of accepted episodes."""
    failing_attempts: tuple[int, ...] = ()
    """Numbers of attempts (over the whole run) that are not accepted."""
    accept_every: int = 1
    """Only every so manieth attempt of the run is accepted; 0 for none."""
    segments: tuple[tuple[int, int], ...] = ()
    gaps: tuple[int, ...] = ()
    """Frames of every episode that are not real."""
    continuity: tuple[int, ...] = ()
    instructions: tuple[str, ...] = ()
    """Instructions of successive episodes, repeated for ever."""
    subtasks: tuple[str, ...] = ()
    seconds_per_episode: float = 0.0
    refill_seconds_per_episode: float = 0.0
    """The same for all episodes after the first ``initial`` ones."""
    initial: int = 1
    troubles: tuple[Trouble, ...] = ()
    surplus: int = 0
    """Accepted episodes yielded beyond those asked for; negative for too few."""
    child_process: bool = False
    """Whether to start a child process that would outlive this one."""
    extra_fields: tuple[tuple[FieldKey, tuple[int, ...], str], ...] = ()
    seconds_per_field: float = 0.0
    """Sleep that long after a field of an episode was written."""

    def __call__(self, context: ProducerContext) -> ScriptedProducer:
        return ScriptedProducer(self, context)


class ScriptedProducer:
    """Follows its script."""

    def __init__(self, script: Script, context: ProducerContext) -> None:
        self.script = script
        self._context = context
        self._have_trouble("build")
        fields = {
            ("obs",): FieldSpec(shape=(script.width,), dtype=np.dtype(np.float32)),
            ("actions",): FieldSpec(shape=(script.width,), dtype=np.dtype(np.float32)),
            ("rewards",): FieldSpec(shape=(), dtype=np.dtype(np.float32)),
        }
        if any(key[0] == "obs" for key, _, _ in script.extra_fields):
            del fields["obs",]
        for key, shape, dtype in script.extra_fields:
            fields[key] = FieldSpec(shape=shape, dtype=np.dtype(dtype))
        self.spec = RolloutSpec(
            num_envs=script.num_envs, fields=fields, state_dim=script.width, action_dim=script.width, step_dt=0.05
        )
        self._attempts = 0
        self._accepted = 0
        self._failed_in_a_row = 0
        if script.child_process:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def produce(self, count: int, staging: Staging, *, should_stop: Callable[[], bool] = never) -> Iterator[Episode]:
        accepted = 0
        while accepted < count + self.script.surplus and not should_stop():
            self._have_trouble("episode")
            length = self.script.lengths[self._accepted % len(self.script.lengths)]
            self._pause(should_stop)
            row = staging.claim()
            self._record(staging, row, length)
            ok = self._is_accepted()
            number = self._accepted
            self._attempts += 1
            self._failed_in_a_row = 0 if ok else self._failed_in_a_row + 1
            self._accepted += ok
            accepted += ok
            yield self._episode(row, length, ok, number)
            if self._failed_in_a_row >= self._context.max_generation_attempts:
                raise DemonstrationError(f"scene {number} failed in {self._failed_in_a_row} attempts")

    def _have_trouble(self, at: str) -> None:
        for trouble in self.script.troubles:
            if trouble.at == at and (at != "episode" or trouble.attempt == self._attempts):
                trouble.happen()

    def _is_accepted(self) -> bool:
        every = self.script.accept_every
        by_turn = every > 0 and (self._attempts + 1) % every == 0
        return by_turn and self._attempts not in self.script.failing_attempts

    def _pause(self, should_stop: Callable[[], bool]) -> None:
        refilling = self._accepted >= self.script.initial and self.script.refill_seconds_per_episode
        wanted = self.script.refill_seconds_per_episode if refilling else self.script.seconds_per_episode
        until = time.monotonic() + wanted
        while time.monotonic() < until and not should_stop():
            time.sleep(0.002)

    def _record(self, staging: Staging, row: int, length: int) -> None:
        number = self._attempts if self.script.number_attempts else self._accepted
        marks = 1000.0 * number + np.arange(length)
        for key, array in staging.arrays.items():
            values: Any = marks
            if self.script.constant:
                values = np.full(length, number)
            elif key == ("actions",):
                values = marks + 0.5
            elif key == ("rewards",):
                values = np.arange(length)
            array[row, :length] = np.reshape(values, (length,) + (1,) * (array.ndim - 2)).astype(array.dtype)
            if self.script.seconds_per_field:
                time.sleep(self.script.seconds_per_field)

    def _episode(self, row: int, length: int, ok: bool, number: int) -> Episode:
        script = self.script
        valid = np.ones(length, bool)
        valid[[gap for gap in script.gaps if gap < length]] = False
        names = script.subtasks or (None,) * len(script.segments)
        segments = tuple(
            Segment(start=start, end=min(end, length), instruction=name)
            for (start, end), name in zip(script.segments, names, strict=True)
            if start < length
        )
        return Episode(
            row=row,
            length=length,
            accepted=ok,
            failure=None if ok else "scripted",
            segments=segments,
            terminated=True,
            valid=valid if script.gaps else None,
            continuity_id=np.array(script.continuity[:length], np.int64) if script.continuity else None,
            instruction=script.instructions[number % len(script.instructions)] if script.instructions else None,
        )

    def close(self) -> None:
        self._have_trouble("close")
