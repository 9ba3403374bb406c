"""The whole story in one run: a live stream of demonstrations, a policy that learns from it, and what came out.

The producer process simulates and publishes episodes without pause; this process trains, evaluates now and then in
scenes that nobody has collected, and leaves pictures, numbers and a checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol, Self

import torch
import tyro
from tqdm import tqdm

from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.envs.franka.actions import ACTION_CONTRACTS
from odstream.envs.franka.control import ACTION_DIM, GRIPPER
from odstream.envs.franka.environment import INSTRUCTION, FrankaPickPlace
from odstream.envs.franka.observation import OBSERVATION_DIM
from odstream.envs.franka.policy import ChunkPolicy, Learner, LearnerCfg, PolicyCfg
from odstream.envs.franka.report import Outcome, draw_pictures, summarise, write_numbers
from odstream.envs.franka.scenario import ResetKind
from odstream.envs.franka.training import CurvePoint, EpisodeStream, Stopwatch, Training, TrainingCfg

_MAX_EPISODE_STEPS = 160
"""The expert needs about 100."""


@dataclass(frozen=True, kw_only=True)
class DemoCfg:
    """What to run, and where to leave the results."""

    output: Path = Path("runs/demo")
    """Folder for the pictures, the numbers and the checkpoint; files of an earlier run are replaced."""
    seed: int = 0
    """Of the collected scenes and of the policy's first weights."""
    reset: ResetKind = "randomised"
    """How far scenes differ: ``reference`` is the easier one."""
    failure_rate: float = 0.0
    """Share of collected scenes, 0 to 1, in which the gripper loses the cube; they are rejected and tried again."""
    num_envs: int = 8
    """Scenes that the producer simulates at once."""
    cache_episodes: int = 128
    """Episodes that can be sampled at once. At least `num_envs`."""
    target: float = 0.95
    """Share of fresh scenes that shall be solved at the end, 0 to 1."""
    training: Annotated[TrainingCfg, tyro.conf.arg(name="")] = field(default_factory=TrainingCfg)
    """How long to train, and when to evaluate."""

    def __post_init__(self) -> None:
        for name in ("target", "failure_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be 0 to 1, got {getattr(self, name)}")
        if not 1 <= self.num_envs <= self.cache_episodes:
            raise ValueError(f"num_envs must be 1 to cache_episodes={self.cache_episodes}, got {self.num_envs}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")

    def engine(self) -> OnlineDataEngineCfg:
        """Return the engine's configuration."""
        return OnlineDataEngineCfg(
            gym_config={
                "factory": "odstream.envs.franka.environment:FrankaPickPlace",
                "kwargs": {"reset": self.reset, "failure_rate": self.failure_rate},
                "expert": "odstream.envs.franka.expert:FrankaExpert",
                "success": "success",
                "instruction": INSTRUCTION,
                "num_envs": self.num_envs,
                "seed": self.seed,
            },
            buffer_size=self.cache_episodes,
            max_episode_steps=_MAX_EPISODE_STEPS,
            state_dim=OBSERVATION_DIM,
            action_dim=ACTION_DIM,
            action_semantics="policy_request",
            action_contracts=ACTION_CONTRACTS,
            refill_policy="manual",
            max_generation_attempts=20,
        )


def run(cfg: DemoCfg) -> Outcome:
    """Run the demo; prints as it goes and at the end.

    Raises:
        MissingExtraError: If MuJoCo is not installed. Without matplotlib or a renderer it runs, and says what is
            missing from the results.
        Exception: Whatever the engine raised.
    """
    return train(cfg, cfg.engine(), lambda engine, learner: training_on(engine, learner, cfg))


class Progress(Protocol):
    """Shows how far a training is."""

    def update(self, updates: int, loss: float, solved: str) -> None:
        """Take note of an update, its loss, and the latest share of solved scenes."""

    def write(self, text: str) -> None:
        """Print a line."""


class DemoBar:
    """A bar on a terminal; elsewhere only its lines are printed.

    Args:
        total: Updates to come.
    """

    def __init__(self, total: int) -> None:
        self._bar = tqdm(total=total, unit="update", smoothing=0.1, dynamic_ncols=True, disable=None)

    def update(self, updates: int, loss: float, solved: str) -> None:
        """Advance by one."""
        self._bar.update()
        if updates % 20 == 0:
            self._bar.set_postfix(loss=f"{loss:.3f}", solved=solved, refresh=False)

    def write(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.write(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def train(
    cfg: DemoCfg,
    engine_cfg: OnlineDataEngineCfg,
    prepare: Callable[[OnlineDataEngine, Learner], Training],
    progress: Progress | None = None,
) -> Outcome:
    """Run the demo on an engine of one's own; see `run`.

    Args:
        cfg: Of its settings, those of the engine are not used.
        engine_cfg: What is used instead.
        prepare: Builds the training, once the engine has started.
        progress: Shows how far it is. None: a bar.
    """
    use_one_thread()
    cfg.output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(cfg.seed)
    learner = new_learner()
    started = time.monotonic()
    print(f"starting the producer; it fills the cache with {engine_cfg.buffer_size} demonstrations first", flush=True)
    with OnlineDataEngine(engine_cfg) as engine:
        start_wait_s = time.monotonic() - started
        training = prepare(engine, learner)
        if progress is None:
            with DemoBar(cfg.training.updates) as bar:
                _train(training, bar)
        else:
            _train(training, progress)
        stats = dict(engine.get_stats())
    outcome = Outcome(
        target=cfg.target,
        curve=training.curve,
        updates=training.updates,
        updates_wanted=cfg.training.updates,
        learner_s=dict(training.stopwatch.seconds),
        start_wait_s=start_wait_s,
        total_s=time.monotonic() - started,
        stats=stats,
    )
    missing = draw_pictures(outcome, learner.policy, cfg.reset, cfg.output)
    write_numbers(outcome, learner.policy, cfg, cfg.output)
    print(summarise(outcome, cfg.output, missing))
    return outcome


def new_learner() -> Learner:
    """Return a learner with fresh weights."""
    shape = PolicyCfg(observation_dim=OBSERVATION_DIM, action_dim=ACTION_DIM, binary_actions=(GRIPPER,))
    return Learner(ChunkPolicy(shape), LearnerCfg())


def training_on(stream: EpisodeStream, learner: Learner, cfg: DemoCfg, stopwatch: Stopwatch | None = None) -> Training:
    """Return the demo's training on a stream; ``stopwatch`` as in `Training`."""
    return Training(stream, learner, cfg.training, lambda count: FrankaPickPlace(count, reset=cfg.reset), stopwatch)


def _train(training: Training, progress: Progress) -> None:
    def on_update(updates: int, loss: float) -> None:
        progress.update(updates, loss, _latest(training.curve))

    def on_evaluation(point: CurvePoint) -> None:
        evaluation = point.evaluation
        progress.write(
            f"  {point.updates:>5} updates  {point.training_s:5.1f} s  {point.episodes:>5} demonstrations"
            f"   {evaluation.rate:4.0%} of {len(evaluation.success)} fresh scenes solved"
        )

    training.run(on_update, on_evaluation)


def _latest(curve: list[CurvePoint]) -> str:
    return f"{curve[-1].evaluation.rate:.0%}" if curve else "-"


def use_one_thread() -> None:
    """One core for the learner, one for the producer: more threads would only get into each other's way."""
    torch.set_num_threads(1)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
