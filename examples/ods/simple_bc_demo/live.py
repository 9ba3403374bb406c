"""The arms on an engine: a stream that a plan paces, and the first fill alone."""

from __future__ import annotations

import importlib.resources
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from tensordict import TensorDict

from examples.ods.simple_bc_demo.arms import UNLIMITED, FixedArm, Pipeline, Run, engine_cfg
from examples.ods.simple_bc_demo.learner import new_learner
from examples.ods.simple_bc_demo.resources import PRODUCER, ProcessUse, use_of_child
from examples.ods.simple_bc_demo.settings import RunCfg
from odstream.calibration import (
    CalibrationCfg,
    Comparison,
    LearnerWork,
    PlanInputs,
    RunRecorder,
    Throughput,
    compare_run,
    comparison_to_json,
    plan_from_json,
    plan_to_json,
    record_from_mapping,
    render_comparison,
    run_calibration,
    throughput_to_json,
)
from odstream.configuration import ODSConfiguration, ODSReuseProfileCfg
from odstream.datasets import OnlineDataSource
from odstream.engine import OnlineDataEngine
from odstream.envs.franka.schema import SCHEMA
from odstream.perf import EngineMeter, ExposureRecorder, PipelineShape
from odstream.runtime import ODSFlowController, ODSFlowControllerCfg

_AGES_EVERY = 20
"""Batches per one whose ages are counted."""
THROUGHPUT, PLAN, COMPARISON = "throughput.json", "plan.json", "comparison.json"


# ---------------------------------------------------------------- measure and plan


def reuse_profile() -> ODSReuseProfileCfg:
    """Return how often one demonstration of this task may be used."""
    text = importlib.resources.files("odstream.envs.franka").joinpath("profile.yaml").read_text(encoding="utf-8")
    fields: Any = OmegaConf.to_container(OmegaConf.create(text))
    return record_from_mapping(ODSReuseProfileCfg, fields, "the profile")


def calibrate(cfg: RunCfg) -> Throughput:
    """Run producer and learner side by side, as fast as they can, and measure both. The learner is thrown away."""
    episodes = cfg.stream.calibration_episodes
    settings = engine_cfg(cfg, buffer_size=episodes, lifecycle_event_capacity=2 * episodes)
    with OnlineDataEngine(settings) as engine:
        source, learner = OnlineDataSource(engine, schema=SCHEMA), new_learner(cfg)
        learner.policy.freeze_normalisation(source.sample_context(1024, cfg.sequence))
        return run_calibration(
            engine,
            lambda: learner.update(source.sample_context(cfg.loop.batch_size, cfg.sequence), 0.0),
            CalibrationCfg(
                batch_size=cfg.loop.batch_size,
                measurement_scope="Franka pick-and-place, producer and learner side by side on this machine",
                refills=cfg.stream.calibration_refills,
            ),
            bytes_per_episode=engine.bytes_per_episode,
        )


def planned_from(throughput: Throughput, cfg: RunCfg) -> PlanInputs:
    """Return the plan that follows from a measurement and the task's reuse profile."""
    return PlanInputs(
        accepted_episodes_per_second=throughput.accepted_episodes_per_second,
        training_chunks_per_second=throughput.training_chunks_per_second,
        profile=reuse_profile(),
        runtime=throughput.runtime(min_cache_episodes=cfg.stream.cache_episodes),
    )


def read_plan(path: Path, cfg: RunCfg) -> PlanInputs:
    """Read a plan that was made before.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no plan, or does not fit this task and these settings.
    """
    try:
        plan, inputs = plan_from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    profile = reuse_profile()
    task_has = {
        "batch_size": cfg.loop.batch_size,
        "producer_envs": cfg.stream.num_envs,
        "profile_id": profile.profile_id,
        "profile_scope": profile.scope,
        "min_cache_episodes": cfg.stream.cache_episodes,
    }
    plan_has = {**asdict(plan), "min_cache_episodes": inputs.runtime.min_cache_episodes}
    differences = [
        f"{name} is {plan_has[name]!r} in the plan, {value!r} in this task"
        for name, value in task_has.items()
        if plan_has[name] != value
    ]
    if differences:
        raise ValueError(f"{path} does not fit: {'; '.join(differences)}; measure and plan again")
    return inputs


# ---------------------------------------------------------------- the live arm


class LiveArm:
    """A stream under a flow controller.

    Args:
        run: Settings, meter, generator.
        engine: Running, configured from the plan.
        inputs: What the plan follows from.
    """

    def __init__(self, run: Run, engine: OnlineDataEngine, inputs: PlanInputs) -> None:
        self.plan = inputs.plan()
        self.source = OnlineDataSource(engine, schema=SCHEMA)
        self.exposure = ExposureRecorder(self.plan.episode_sample_budget)
        self.pipeline = _pipeline(engine, self.plan)
        self.producer: ProcessUse | None = None
        self._run, self._engine, self._inputs = run, engine, inputs
        self._recorder = RunRecorder(self._work)
        self._first_publication_s: float | None = None
        self._flow = ODSFlowController(
            engine,
            ODSFlowControllerCfg(data_wait_timeout=run.cfg.loop.data_timeout_s),
            plan=self.plan,
            on_events=self._on_events,
            on_refill=self._recorder.on_refill,
            on_interval=self._on_interval,
        )
        self._comparison: Comparison | None = None
        self._draws = 0

    def draw(self) -> TensorDict:
        """Ask for a refill if one is due, wait until the next batch is funded and due, and return it."""
        cfg = self._run.cfg
        self._flow.prepare_batch(self.plan.batch_size)
        batch: TensorDict = self._flow.sample_context(
            self.source, self.plan.batch_size, cfg.sequence, self._run.generator
        )
        current = cfg.policy.history - 1
        self._recorder.delivered(batch["ods_episode_id"][:, current].tolist())
        self._draws += 1
        if self._draws % _AGES_EVERY == 0:
            now_ns, published_ns = time.monotonic_ns(), batch["ods_published_at_monotonic_ns"][:, current]
            self._run.meter.ages.add((now_ns - published_ns).clamp(min=0).double() / 1e9)
        return batch

    def settle(self) -> None:
        """Compare with the plan, after the engine has stopped."""
        self._flow.drain_events()
        self._comparison = compare_run(
            self.plan,
            self._recorder.records(self._engine),
            planned_first_publication_s=self._inputs.runtime.first_publication_p95_seconds,
        )
        (self._run.folder / COMPARISON).write_text(comparison_to_json(self._comparison), encoding="utf-8")

    def facts(self) -> dict[str, Any]:
        """Return the account of a run that was settled."""
        comparison, stats = self._comparison, self._engine.get_stats()
        assert comparison is not None
        reuse = comparison.reuse
        return {
            "source_id": self.source.source_id,
            "published_episodes": reuse.published_episodes,
            "cached_episodes": self.plan.buffer_size,
            "failed_attempts": stats["failed_episodes"],
            "accounting": {
                "assigned": reuse.assigned_chunks,
                "assigned_per_episode": self.plan.episode_sample_budget,
                "delivered": reuse.delivered_chunks,
                "remaining": reuse.remaining_chunks,
                "retired": reuse.retired_chunks,
            },
            "first_publication_s": self._first_publication_s,
            "waits": self._waits(),
            "planned_and_observed": {
                f"{line.name} ({line.unit})": [line.planned, line.observed] for line in comparison.lines
            },
            "comparison_text": render_comparison(comparison),
            "producer": self.producer,
        }

    def _waits(self) -> dict[str, dict[str, float]]:
        """Waits of the learner by kind: how many, how long in all, and the longest."""
        found: dict[str, list[float]] = {kind: [] for kind in ("data_wait", "quota_wait", "usage_throttle")}
        for wait in self._recorder.records(self._engine).waits:
            found[wait.kind].append(wait.ended_s - wait.started_s)
        return {
            kind: {"count": len(times_s), "total_s": sum(times_s), "longest_s": max(times_s, default=0.0)}
            for kind, times_s in found.items()
        }

    def _work(self) -> LearnerWork:
        seen = self._run.meter.snapshot()
        states_ns = seen.states_ns
        return LearnerWork(
            completed_chunks=seen.counts["completed"],
            active_s=sum(states_ns[state] for state in ("fetch", "compute", "warmup")) / 1e9,
            paused_s=sum(states_ns[state] for state in ("eval", "checkpoint")) / 1e9,
        )

    def _on_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        if self._first_publication_s is None and events:
            self._first_publication_s = self._run.journal.since(events[0]["monotonic_ns"])
        self._recorder.on_events(events)
        self.exposure.on_events(events)

    def _on_interval(self, kind: str, started_s: float, ended_s: float) -> None:
        self._recorder.on_interval(kind, started_s, ended_s)
        self._run.meter.on_interval(kind, started_s, ended_s)


def _pipeline(engine: OnlineDataEngine, plan: ODSConfiguration) -> Pipeline:
    budget = plan.episode_sample_budget
    meter = EngineMeter(engine)
    shape = PipelineShape(batch_size=plan.batch_size, selections_per_episode=budget)
    return Pipeline(shape, (meter,), meter.pool, engine.get_stats()["producer_pid"])


@contextmanager
def live(run: Run) -> Iterator[LiveArm]:
    """Measure and plan, or read the plan; then stream by it."""
    cfg, journal = run.cfg, run.journal
    if cfg.plan is None:
        with journal.phase("calibrate"):
            throughput = calibrate(cfg)
        (run.folder / THROUGHPUT).write_text(throughput_to_json(throughput), encoding="utf-8")
        inputs = planned_from(throughput, cfg)
    else:
        inputs = read_plan(cfg.plan, cfg)
    (run.folder / PLAN).write_text(plan_to_json(inputs), encoding="utf-8")
    plan = inputs.plan()
    settings = engine_cfg(
        cfg,
        seed=run.stream_seed,
        buffer_size=plan.buffer_size,
        episode_sample_budget=plan.episode_sample_budget,
        episode_sample_hard_limit=plan.episode_sample_hard_limit,
        lifecycle_event_capacity=4 * plan.buffer_size,
    )
    with ExitStack() as stack:
        with journal.phase("start"):
            engine = stack.enter_context(OnlineDataEngine(settings))
        arm = LiveArm(run, engine, inputs)
        yield arm
        arm.producer = use_of_child(PRODUCER)
        with journal.phase("stop"):
            stack.close()
    arm.settle()


@contextmanager
def frozen(run: Run) -> Iterator[FixedArm]:
    """Fill the live cache once, and never ask for more."""
    episodes = run.cfg.stream.cache_episodes
    settings = engine_cfg(
        run.cfg,
        episode_sample_budget=UNLIMITED,
        episode_sample_hard_limit=UNLIMITED,
        lifecycle_event_capacity=episodes,
    )
    with ExitStack() as stack:
        with run.journal.phase("start"):
            engine = stack.enter_context(OnlineDataEngine(settings))
        source = OnlineDataSource(engine, schema=SCHEMA)
        arm = FixedArm(run, source, engine.get_sampling_budget_snapshot, use_of_child(PRODUCER))
        arm.exposure.on_events(engine.drain_lifecycle_events())
        yield arm
        with run.journal.phase("stop"):
            stack.close()
