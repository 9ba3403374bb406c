"""The task under ``odstream calibrate`` and ``odstream train``: the demo's learner on a source, paced by a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from odstream.calibration import LearnerWork, PlannedRun, record_from_mapping
from odstream.calibration.recorder import RunObserver
from odstream.datasets import OnlineDataSource, SequenceSpecCfg
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.envs.franka.demo import DemoCfg, Progress, new_learner, train, training_on, use_one_thread
from odstream.envs.franka.policy import Learner
from odstream.envs.franka.schema import SCHEMA
from odstream.envs.franka.training import NORMALISATION_CONTEXTS, Stopwatch, Training, TrainingCfg

if TYPE_CHECKING:
    from odstream.perf.training import TrainingMetrics


def learner(engine: OnlineDataEngine, batch_size: int) -> Callable[[], object]:
    """Return what samples one batch and completes the update on it, as the training does; for ``calibrate``."""
    use_one_thread()
    source, pupil = OnlineDataSource(engine, schema=SCHEMA), new_learner()
    shape = pupil.policy.cfg
    sequence = SequenceSpecCfg(shape.history, shape.chunk)
    pupil.policy.freeze_normalisation(source.sample_context(NORMALISATION_CONTEXTS, sequence))
    return lambda: pupil.update(source.sample_context(batch_size, sequence), 0.0)


def trainer(
    training: Mapping[str, Any],
    *,
    engine: OnlineDataEngineCfg,
    batch_size: int,
    output: Path,
    planned: PlannedRun | None,
    metrics: TrainingMetrics | None = None,
) -> Callable[[], bool]:
    """Prepare the demo's training on an engine of one's own, with a plan or without; for ``train``.

    Args:
        training: `TrainingCfg` without ``batch_size``, and ``target``, the share of scenes to be solved.
        engine: Its ``gym_config`` says of which scenes; evaluation has scenes of the same kind.
        batch_size: Contexts per update.
        output: Folder for the results.
        planned: What paces the training. None: production goes on all the time, as in the demo.
        metrics: Meter the training, and show its progress.

    Returns:
        What trains, and says whether the target was met.

    Raises:
        ValueError, TypeError: If a setting is not acceptable.
    """
    cfg = _demo_cfg(dict(training), engine, batch_size, output)

    def prepare(running: OnlineDataEngine, pupil: Learner) -> Training:
        stopwatch = _stopwatch(metrics, running)
        stream = running if planned is None else PlannedStream(running, planned, stopwatch, metrics)
        return training_on(stream, pupil, cfg, stopwatch)

    return lambda: train(cfg, engine, prepare, _progress(metrics)).target_met


def _stopwatch(metrics: TrainingMetrics | None, engine: OnlineDataEngine) -> Stopwatch:
    if metrics is None:
        return Stopwatch()
    from odstream.envs.franka.metered import MeteredStopwatch

    return MeteredStopwatch(metrics, engine)


def _progress(metrics: TrainingMetrics | None) -> Progress | None:
    if metrics is None:
        return None
    from odstream.envs.franka.metered import MetricsBar

    return MetricsBar(metrics)


def _demo_cfg(training: dict[str, Any], engine: OnlineDataEngineCfg, batch_size: int, output: Path) -> DemoCfg:
    gym_config = engine.gym_config
    kwargs = gym_config.get("kwargs") or {}
    target = training.pop("target", DemoCfg.target)
    if "evaluate_at" in training:
        training["evaluate_at"] = tuple(training["evaluate_at"])
    if "batch_size" in training:
        raise ValueError("batch_size stands at the top of the task, not in training")
    return DemoCfg(
        output=output,
        seed=gym_config.get("seed") or 0,
        reset=kwargs.get("reset", DemoCfg.reset),
        failure_rate=kwargs.get("failure_rate", DemoCfg.failure_rate),
        num_envs=gym_config.get("num_envs", 1),
        cache_episodes=engine.buffer_size,
        target=target,
        training=record_from_mapping(TrainingCfg, {**training, "batch_size": batch_size}, "training"),
    )


class PlannedStream:
    """An `EpisodeStream` that a flow controller paces: it asks for refills, waits, and counts.

    Args:
        engine: Running.
        planned: The plan to follow.
        stopwatch: The training's; read at each refill.
        observer: Told of waits and lifecycle events as well.
    """

    def __init__(
        self,
        engine: OnlineDataEngine,
        planned: PlannedRun,
        stopwatch: Stopwatch,
        observer: RunObserver | None = None,
    ) -> None:
        self._engine = engine
        self._source = OnlineDataSource(engine, schema=SCHEMA)
        self._flow, self._recorder = planned.control(engine, self._work, observer)
        self._batch_size = planned.plan.batch_size
        self._stopwatch = stopwatch
        self._chunks = 0
        self._is_prepared = False

    def request_refill(self) -> None:
        """Ask for a refill if the plan wants one, and wait until the next batch is due."""
        self._flow.prepare_batch(self._batch_size)
        self._is_prepared = True

    def sample_batch_with_context(self, batch_size: int, history_length: int, prediction_horizon: int) -> TensorDict:
        """Draw contexts: one planned batch, or as many as it takes."""
        sequence = SequenceSpecCfg(history_length, prediction_horizon)
        batches = [self._batch(sequence) for _ in range(0, batch_size, self._batch_size)]
        if len(batches) == 1:
            return batches[0]
        joined: TensorDict = torch.cat(batches)  # type: ignore[arg-type, assignment]
        return joined[:batch_size]

    def get_stats(self) -> Mapping[str, Any]:
        """Count episodes."""
        return self._engine.get_stats()

    def _batch(self, sequence: SequenceSpecCfg) -> TensorDict:
        if not self._is_prepared:
            self._flow.prepare_batch(self._batch_size)
        self._is_prepared = False
        batch: TensorDict = self._flow.sample_context(self._source, self._batch_size, sequence)
        self._chunks += self._batch_size
        self._recorder.delivered(batch["ods_episode_id"][:, sequence.history_length - 1].tolist())
        return batch

    def _work(self) -> LearnerWork:
        """What was delivered before a refill is requested has been trained on: one thread does both."""
        watch = self._stopwatch
        return LearnerWork(
            completed_chunks=self._chunks,
            active_s=watch.training_s - self._recorder.waited_s,
            paused_s=watch.seconds["evaluate"],
        )
