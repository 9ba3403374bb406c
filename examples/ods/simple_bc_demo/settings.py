"""What to run. Checked when it is made, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from odstream.datasets import SequenceSpecCfg
from odstream.envs.franka.control import ACTION_DIM, GRIPPER
from odstream.envs.franka.observation import OBSERVATION_DIM
from odstream.envs.franka.policy import LearnerCfg, PolicyCfg
from odstream.envs.franka.scenario import ResetKind
from odstream.envs.franka.training import TrainingCfg

Mode = Literal["live", "frozen", "offline-32", "offline-256", "offline-full"]
MODES: tuple[Mode, ...] = get_args(Mode)
"""The arms of the comparison."""
FULL_EPISODES = 1_100
"""What a live run of full size publishes, roughly; `compare` asks for as many as the live run of the same seed did."""

_DEMO = TrainingCfg()


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamCfg:
    """The demonstrations and how they are made."""

    num_envs: int = 8
    """P: scenes that the producer simulates at once."""
    cache_episodes: int = 128
    """C: episodes that can be sampled at once. A plan made here may ask for more. A multiple of `num_envs`."""
    reset: ResetKind = "randomised"
    """How far scenes differ, in training and in evaluation."""
    failure_rate: float = 0.0
    """Share of attempts, 0 to 1, in which the gripper loses the cube; they are rejected and tried again."""
    max_episode_steps: int = 160
    """Control steps until an attempt has failed. The expert needs about 100."""
    calibration_episodes: int = 64
    """Episodes per refill while both sides are measured."""
    calibration_refills: int = 5
    """Refills to measure, after one to warm up."""

    def __post_init__(self) -> None:
        for name in ("num_envs", "cache_episodes", "max_episode_steps", "calibration_episodes", "calibration_refills"):
            _check_at_least_one(name, getattr(self, name))
        for name in ("cache_episodes", "calibration_episodes"):
            if getattr(self, name) % self.num_envs:
                raise ValueError(f"{name} must be a multiple of num_envs={self.num_envs}, got {getattr(self, name)}")
        if not 0.0 <= self.failure_rate <= 1.0:
            raise ValueError(f"failure_rate must be 0 to 1, got {self.failure_rate}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopCfg:
    """The training loop: the same in every mode."""

    updates: int = _DEMO.updates
    """Optimizer steps."""
    batch_size: int = _DEMO.batch_size
    """B: contexts per step."""
    first_batches: int = 16
    """Batches that are drawn before the first step. Normalisation is frozen from them; then they are trained on."""
    evaluate_at: tuple[int, ...] = (50, 100, 125, 150, 175, 200, 300, 400, 800, 1600)
    """Updates at which the policy is evaluated in development scenes, beside the last one; later ones never come."""
    scenes: int = 50
    """Development scenes of each such evaluation."""
    checkpoint_every: int = 500
    """Updates between two checkpoints to resume from. At least `first_batches`."""
    data_timeout_s: float = 60.0
    """Seconds to wait for data before giving up."""

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "first_batches", "scenes", "checkpoint_every"):
            _check_at_least_one(name, getattr(self, name))
        for name in ("updates", "checkpoint_every"):
            if getattr(self, name) < self.first_batches:
                raise ValueError(
                    f"{name} must be at least first_batches={self.first_batches}, got {getattr(self, name)}"
                )
        for updates in self.evaluate_at:
            _check_at_least_one("evaluate_at", updates)
        if not self.data_timeout_s > 0:
            raise ValueError(f"data_timeout_s must be a positive number of seconds, got {self.data_timeout_s}")


def _policy() -> PolicyCfg:
    return PolicyCfg(observation_dim=OBSERVATION_DIM, action_dim=ACTION_DIM, binary_actions=(GRIPPER,))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCfg:
    """Train one policy, evaluate it, and leave records."""

    mode: Mode = "live"
    """live: a stream paced by a measured plan. frozen: the live cache's first fill, production off. offline-32,
    offline-256, offline-full: so many demonstrations, written to a LeRobot dataset and read back."""
    seed: int = 0
    """Of scenes, weights, noise and draws."""
    output: Path | None = None
    """Folder of the run; new or empty. By default one in runs/bc-demo that is named after mode, seed and time."""
    smoke: bool = False
    """Everything, in tiny."""
    plan: Path | None = None
    """For live: follow this plan instead of measuring and making one."""
    resume: Path | None = None
    """Go on from this training checkpoint, in a new folder, with a new run id. Draws, noise and weights continue."""
    episodes: int | None = None
    """For offline: how many demonstrations, instead of what the mode says."""
    dataset: Path | None = None
    """For offline: train from this LeRobot dataset instead of collecting one."""
    final_scenes: int = 100
    """Held-out scenes of the evaluation at the end."""
    video: bool = True
    """Whether the final evaluation films its first scenes."""
    viewer: bool = False
    """Whether the final evaluation shows its first scene in MuJoCo's viewer."""
    stream: StreamCfg = field(default_factory=StreamCfg)
    loop: LoopCfg = field(default_factory=LoopCfg)
    learner: LearnerCfg = field(default_factory=LearnerCfg)
    policy: PolicyCfg = field(default_factory=_policy)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")
        _check_at_least_one("final_scenes", self.final_scenes)
        if self.episodes is not None:
            _check_at_least_one("episodes", self.episodes)
        given = {"plan": self.plan, "episodes": self.episodes, "dataset": self.dataset}
        belongs = ("episodes", "dataset") if self.is_offline else ("plan",) if self.mode == "live" else ()
        for name, value in given.items():
            if value is not None and name not in belongs:
                raise ValueError(f"{name} has no meaning in mode {self.mode!r}, got {value}")

    @property
    def is_offline(self) -> bool:
        """Whether the data comes from a dataset."""
        return self.mode.startswith("offline-")

    @property
    def offline_episodes(self) -> int:
        """Demonstrations of an offline mode."""
        if self.episodes is not None:
            return self.episodes
        _, _, count = self.mode.partition("-")
        return FULL_EPISODES if count == "full" else int(count)

    @property
    def sequence(self) -> SequenceSpecCfg:
        """Which contexts the policy is trained on."""
        return SequenceSpecCfg(self.policy.history, self.policy.chunk)


FULL = RunCfg()
SMOKE = replace(
    FULL,
    smoke=True,
    final_scenes=6,
    stream=StreamCfg(cache_episodes=16, calibration_episodes=16, calibration_refills=2),
    loop=LoopCfg(
        updates=400,
        batch_size=64,
        first_batches=4,
        evaluate_at=(100,),
        scenes=4,
        checkpoint_every=200,
        data_timeout_s=30.0,
    ),
)
