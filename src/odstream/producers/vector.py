"""One natively batched environment: every row works on its own scene, or all rows follow one plan.

Shapes: ``P`` rows of the batch, ``A`` of them active (recorded), ``T`` frames per storage row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from odstream.errors import EnvironmentContractError
from odstream.producers.action_recording import Taken, open_channel
from odstream.producers.base import Episode, ProducerContext, Segment
from odstream.producers.batch import Batch, BatchStep
from odstream.producers.demo import Command, Rows, SegmentLog, Verdict, has_plan, play
from odstream.producers.expert_segments import SegmentTrace
from odstream.producers.gym_config import GymConfig
from odstream.producers.player import (
    Description,
    Ending,
    cut_short,
    describe,
    never_succeeded,
    no_driver,
    own_expert,
    too_long,
)
from odstream.producers.recording import Attempt, Recorder, Scenes
from odstream.producers.spaces import read

DRAIN_FACTOR = 10
"""An autoresetting row whose attempt was over before its own end has this many ``T`` frames to reach that end."""


class BatchedEnvironment:
    """Produces with a `gymnasium.vector.VectorEnv` of P rows. An expert goes before the environment's own plan.

    Raises:
        EnvironmentContractError: If P is not ``gym_config["num_envs"]``, the autoreset mode is not declared, a space
            cannot be recorded, or there is neither an expert nor a plan.
    """

    def __init__(self, environment: VectorEnv[Any, Any, Any], config: GymConfig, context: ProducerContext) -> None:
        if environment.num_envs != config.num_envs:
            raise EnvironmentContractError(
                f"gym_config['num_envs'] is {config.num_envs}; the factory built a batch of {environment.num_envs}"
            )
        self._planned = config.expert is None
        if self._planned and not has_plan(environment):
            raise EnvironmentContractError(no_driver(environment))
        self._expert: Any = None if self._planned else own_expert(config)
        self._environment = environment
        self._success_key = config.success
        self._limit = context.max_episode_steps
        self._batch = Batch(environment, config.success)
        self._channel = open_channel(
            environment, environment.single_action_space, context.action_semantics, (config.num_envs,)
        )
        self._description = describe(environment, environment.single_observation_space, self._channel)
        self._closed = False

    @property
    def description(self) -> Description:
        """What is recorded."""
        return self._description

    def produce(self, scenes: Scenes, recorder: Recorder, should_stop: Callable[[], bool]) -> Iterator[Episode]:
        """Yield finished attempts until every open scene was accepted."""
        takes = _Takes(self._environment.num_envs, scenes, recorder)
        if self._planned:
            return self._follow_plans(takes, should_stop)
        return self._follow_expert(takes, should_stop)

    def close(self) -> None:
        """Close the environment. Idempotent."""
        if not self._closed:
            self._closed = True
            self._environment.close()

    # -------------------------------------------------------------- an expert: rows are independent

    def _follow_expert(self, takes: _Takes, should_stop: Callable[[], bool]) -> Iterator[Episode]:
        batch = self._batch
        trace = SegmentTrace(self._expert, self._environment.num_envs, self._limit)
        if batch.resets_itself:
            batch.restart(takes.first_seed)
        while takes.busy and not should_stop():
            self._begin_waiting(takes)
            takes.write(0, self._leaves())
            taken = self._take(self._expert(batch.observation), takes, "the expert")
            trace.note(takes.lengths)
            for row, reason in taken.refused.items():
                yield takes.finish(row, Ending(reason, segments=trace.cut(row, int(takes.lengths[row]))))
                takes.continue_after(row)
            step = self._execute(taken, takes)
            over = (step.ended | step.success | takes.at_limit(self._limit)) & takes.active
            for row in _rows(over) if over.any() else ():
                segments = trace.cut(row, int(takes.lengths[row]))
                yield takes.finish(row, replace(self._ending(row, step), segments=segments))
                takes.continue_after(row)

    def _begin_waiting(self, takes: _Takes) -> None:
        """Let every row begin that waits for its next attempt and has, or can be given, a fresh scene."""
        if not takes.waiting.any():
            return
        batch = self._batch
        if not batch.resets_itself:
            batch.renew(takes.waiting, takes.seeds())
        begun = takes.waiting & batch.fresh
        takes.begin(begun, seeded=not batch.resets_itself)
        takes.drain(DRAIN_FACTOR * self._limit)
        if begun.any() and hasattr(self._expert, "reset"):
            self._expert.reset(batch.observation, begun)

    # -------------------------------------------------------------- a plan: all rows begin together

    def _follow_plans(self, takes: _Takes, should_stop: Callable[[], bool]) -> Iterator[Episode]:
        batch = self._batch
        while takes.busy and not should_stop():
            if batch.resets_itself:
                batch.restart(takes.first_seed)
            else:
                batch.renew(np.ones_like(batch.fresh), takes.seeds())
            takes.begin(takes.waiting.copy(), seeded=not batch.resets_itself)
            yield from self._follow_plan(takes, should_stop)

    def _follow_plan(self, takes: _Takes, should_stop: Callable[[], bool]) -> Iterator[Episode]:
        log = SegmentLog()
        frame = 0
        step: BatchStep | None = None
        with closing(play(self._environment, self._environment.num_envs)) as plan:  # type: ignore[type-var]
            for item in plan:
                if should_stop():
                    return
                if isinstance(item, Verdict):
                    endings = self._verdict_endings(item, takes.active)
                elif frame == self._limit:
                    endings = {row: Ending(too_long(self._limit)) for row in _rows(takes.active)}
                else:
                    log.note(item, frame)
                    takes.write(0, self._leaves())
                    taken = self._take(item.action, takes, "the plan")
                    refusals = self._refusals(item, taken, takes.active)
                    yield from self._finish_rows(takes, refusals, log.segments(frame))
                    if not takes.active.any():
                        return
                    step = self._execute(taken, takes)
                    frame += 1
                    endings = self._step_endings(item, step, takes.active)
                yield from self._finish_rows(takes, endings, log.segments(frame))
                if not takes.active.any():
                    return
        failure = None
        if self._success_key is not None:
            failure = never_succeeded(self._success_key, {} if step is None else step.info) + " during the plan"
        remaining = {row: Ending(failure) for row in _rows(takes.active)}
        yield from self._finish_rows(takes, remaining, log.segments(frame))

    def _refusals(self, command: Command, taken: Taken, active: Rows) -> dict[int, Ending]:
        endings = {row: Ending(reason) for row, reason in taken.refused.items()}
        return _spread(endings, active, command.segment.failure_policy == "batch_abort")

    def _step_endings(self, command: Command, step: BatchStep, active: Rows) -> dict[int, Ending]:
        over = (step.ended | step.success) & active
        if not over.any():
            return {}
        endings = {row: self._ending(row, step) for row in _rows(over)}
        return _spread(endings, active, command.segment.failure_policy == "batch_abort")

    def _verdict_endings(self, verdict: Verdict, active: Rows) -> dict[int, Ending]:
        endings = {row: Ending(verdict.reason) for row in _rows(active & ~verdict.passed)}
        return _spread(endings, active, verdict.aborts_batch)

    def _finish_rows(
        self, takes: _Takes, endings: dict[int, Ending], segments: tuple[Segment, ...]
    ) -> Iterator[Episode]:
        for row, ending in endings.items():
            covered = Ending(ending.failure, ending.terminated, ending.truncated, segments)
            yield takes.finish(row, covered)
            takes.continue_after(row)

    # -------------------------------------------------------------- both

    def _leaves(self) -> list[NDArray[Any]]:
        observation = self._batch.observation
        lead = (self._environment.num_envs,)
        return [read(leaf, observation, lead) for leaf in self._description.observation]

    def _take(self, action: Any, takes: _Takes, whose: str) -> Taken:
        return self._channel.take(action, takes.active, whose, f"[recorded row, ...], from {whose}")

    def _execute(self, taken: Taken, takes: _Takes) -> BatchStep:
        takes.write(-2, [taken.stored])
        step = self._batch.step(taken.given)
        takes.write(-1, [step.rewards])
        takes.advance()
        return step

    def _ending(self, row: int, step: BatchStep) -> Ending:
        """How a row's attempt ended by this step."""
        terminated, truncated = bool(step.terminated[row]), bool(step.truncated[row])
        failure = None
        if not step.success[row]:
            if not (terminated or truncated):
                failure = too_long(self._limit)
            elif self._success_key is not None:
                failure = never_succeeded(self._success_key, step.info)
            elif self._planned:
                failure = cut_short(terminated)
        return Ending(failure, terminated, truncated)


def _rows(flags: Rows) -> list[int]:
    """Indices of the true flags."""
    return [int(row) for row in np.flatnonzero(flags)]


def _spread(endings: dict[int, Ending], active: Rows, aborts_batch: bool) -> dict[int, Ending]:
    """Where a failure aborts the batch, let the other active rows fail with it."""
    culprit = next((row for row, ending in endings.items() if ending.failure is not None), None)
    if culprit is None or not aborts_batch:
        return endings
    failure = f"the batch was aborted, because row {culprit} failed: {endings[culprit].failure}"
    others = [row for row in _rows(active) if row not in endings]
    return {**endings, **{row: Ending(failure) for row in others}}


class _Takes:
    """Which attempt every row of the batch is busy with, and where its frames go."""

    def __init__(self, num_envs: int, scenes: Scenes, recorder: Recorder) -> None:
        self._scenes = scenes
        self._recorder = recorder
        self._attempts: list[Attempt | None] = [None] * num_envs
        self._seeded = False
        self._episodes: list[Episode | None] = [None] * num_envs
        self.active: Rows = np.zeros(num_envs, np.bool_)
        """Rows whose frames are recorded."""
        self.waiting: Rows = np.zeros(num_envs, np.bool_)
        """Rows that have an attempt to begin."""
        self._storage_row = np.zeros(num_envs, np.int64)
        self._length = np.zeros(num_envs, np.int64)
        self._drained = np.zeros(num_envs, np.int64)
        for row in range(num_envs):
            self._wait_for_next(row, None)
        self._select()

    @property
    def busy(self) -> bool:
        """Whether any row has something to do."""
        return bool(self.active.any() or self.waiting.any())

    @property
    def first_seed(self) -> int:
        """The seed of the first attempt that waits."""
        return next(attempt.seed for attempt in self._attempts if attempt is not None)

    def seeds(self) -> list[int | None]:
        """Per row the seed of the attempt that it is busy with or waits for."""
        return [None if attempt is None else attempt.seed for attempt in self._attempts]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """``[P]`` frames that the latest attempt of each row has so far. Not to be changed."""
        return self._length

    def begin(self, rows: Rows, *, seeded: bool) -> None:
        """Claim storage for ``rows`` and record them from now on."""
        self._seeded = seeded
        for row in np.flatnonzero(rows):
            self._storage_row[row] = self._recorder.claim()
        self._length[rows] = 0
        self.active |= rows
        self.waiting &= ~rows
        self._select()

    def drain(self, limit: int) -> None:
        """Count a step that waiting rows spend on reaching their own end.

        Raises:
            EnvironmentContractError: After ``limit`` steps.
        """
        self._drained = np.where(self.waiting, self._drained + 1, 0)
        if self._drained.max() > limit:
            raise EnvironmentContractError(
                f"row {int(self._drained.argmax())} of the autoresetting batch did not end by itself within {limit} "
                "frames after its attempt was over; declare AutoresetMode.DISABLED and honour options['reset_mask']"
            )

    def _select(self) -> None:
        """Prepare the indices of the active rows; they change only when a row begins or ends."""
        self._index = np.flatnonzero(self.active)
        self._all = len(self._index) == len(self.active)
        self._rows = self._storage_row[self._index]
        self._times = self._length[self._index]

    def recorded(self, value: NDArray[Any]) -> NDArray[Any]:
        """The active rows ``[A, ...]`` of a batch."""
        return value if self._all else value[self._index]

    def write(self, first: int, values: list[NDArray[Any]]) -> None:
        """Write ``values``, each ``[P, ...]``, at the current frames, into the fields from index ``first`` on."""
        rows, times = self._rows, self._times
        for offset, value in enumerate(values):
            self._recorder.arrays[first + offset][rows, times] = self.recorded(value)

    def advance(self) -> None:
        """Go on to the next frame."""
        self._times += 1
        self._length[self._index] = self._times

    def at_limit(self, limit: int) -> Rows:
        """Rows that hold ``limit`` frames."""
        return self._length >= limit

    def finish(self, row: int, ending: Ending) -> Episode:
        """Stop recording a row and judge what it holds."""
        attempt = self._attempts[row]
        assert attempt is not None
        self.active[row] = False
        self._select()
        seed = attempt.seed if self._seeded else None
        episode = self._recorder.finish(int(self._storage_row[row]), int(self._length[row]), attempt, seed, ending)
        self._episodes[row] = episode
        return episode

    def continue_after(self, row: int) -> None:
        """Choose what a finished row does next: the same scene again, the next one, or nothing."""
        self._wait_for_next(row, self._episodes[row])

    def _wait_for_next(self, row: int, episode: Episode | None) -> None:
        attempt = self._attempts[row]
        if attempt is not None and episode is not None and not episode.accepted:
            following: Attempt | None = self._scenes.again(attempt, episode.failure)
        else:
            following = None if self._scenes.exhausted else self._scenes.begin()
        self._attempts[row] = following
        self.waiting[row] = following is not None
