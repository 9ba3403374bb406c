"""Producers without an environment: they record numbers that say where they come from. Importable by any process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
class Script:
    """What a `ScriptedProducer` does. Also its picklable factory.

    Episode ``k`` (counted over accepted ones) of a run has frames whose ``obs`` are ``[1000 * k + t] * width``, whose
    actions are obs + 0.5 and whose rewards are ``t``, with ``t`` the frame index.
    """

    lengths: tuple[int, ...] = (10,)
    """Lengths of successive scenes, repeated for ever."""
    width: int = 3
    num_envs: int = 2
    failing_attempts: tuple[int, ...] = ()
    """Numbers of attempts (over the whole run) that are not accepted."""
    segments: tuple[tuple[int, int], ...] = ()
    gaps: tuple[int, ...] = ()
    """Frames of every episode that are not real."""
    continuity: tuple[int, ...] = ()
    instructions: tuple[str, ...] = ()
    """Instructions of successive episodes, repeated for ever."""
    subtasks: tuple[str, ...] = ()
    seconds_per_episode: float = 0.0
    refill_seconds_per_episode: float = 0.0
    raise_at: int = -1
    """Attempt at which to raise ValueError."""
    exit_at: int = -1
    """Attempt at which to leave the process without a word."""
    hang_at: int = -1
    """Attempt at which to hang."""
    raise_on_close: bool = False
    hang_on_close: bool = False
    child_process: bool = False
    """Whether to start a child process that would outlive this one."""
    extra_fields: tuple[tuple[FieldKey, tuple[int, ...], str], ...] = ()
    frames_per_tick: int = 0
    """Sleep a millisecond after that many frames; 0 for never."""
    error: Callable[[], Exception] = field(default=ValueError)

    def __call__(self, context: ProducerContext) -> ScriptedProducer:
        return ScriptedProducer(self, context)


class ScriptedProducer:
    """Follows its script."""

    def __init__(self, script: Script, context: ProducerContext) -> None:
        self.script = script
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
        self._scenes = 0
        self._child: subprocess.Popen[bytes] | None = None
        if script.child_process:
            self._child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def produce(self, count: int, staging: Staging, *, should_stop: Callable[[], bool] = never) -> Iterator[Episode]:
        accepted = 0
        while accepted < count and not should_stop():
            self._misbehave()
            length = self.script.lengths[self._scenes % len(self.script.lengths)]
            self._pause(should_stop)
            row = staging.claim()
            self._record(staging, row, length)
            ok = self._attempts not in self.script.failing_attempts
            self._attempts += 1
            if ok:
                accepted, self._accepted, self._scenes = accepted + 1, self._accepted + 1, self._scenes + 1
            yield self._episode(row, length, ok)

    def _misbehave(self) -> None:
        if self._attempts == self.script.raise_at:
            error = self.script.error
            raise error("boom-42")
        if self._attempts == self.script.exit_at:
            os._exit(7)
        while self._attempts == self.script.hang_at:
            time.sleep(0.05)

    def _pause(self, should_stop: Callable[[], bool]) -> None:
        refilling = self._accepted >= 1 and self.script.refill_seconds_per_episode
        wanted = self.script.refill_seconds_per_episode if refilling else self.script.seconds_per_episode
        until = time.monotonic() + wanted
        while time.monotonic() < until and not should_stop():
            time.sleep(0.002)

    def _record(self, staging: Staging, row: int, length: int) -> None:
        marks = 1000.0 * self._accepted + np.arange(length)
        for key, array in staging.arrays.items():
            values: Any = marks
            if key == ("actions",):
                values = marks + 0.5
            elif key == ("rewards",):
                values = np.arange(length)
            array[row, :length] = np.reshape(values, (length,) + (1,) * (array.ndim - 2)).astype(array.dtype)
            if self.script.frames_per_tick:
                time.sleep(0.001 * length / self.script.frames_per_tick)

    def _episode(self, row: int, length: int, ok: bool) -> Episode:
        script, number = self.script, self._accepted - ok
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
        if self._child is not None and not self.script.child_process:
            self._child.kill()
        if self.script.raise_on_close:
            raise RuntimeError("close-failed-42")
        while self.script.hang_on_close:
            time.sleep(0.05)
