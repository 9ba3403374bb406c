"""Writes run directories as a training leaves them: synthetic, of any length, and with counts that balance."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odstream.calibration import (
    Comparison,
    ComparisonLine,
    PlanInputs,
    Reuse,
    comparison_to_json,
    plan_to_json,
)
from odstream.configuration import ODSReuseProfileCfg, ODSRuntimeCfg
from odstream.perf import METRICS, Record, Trajectories, Trajectory

STARTED_UNIX_NS = 1_790_000_000_000_000_000
PARTS = ("metrics.jsonl", "task.yaml", "plan.json", "comparison.json", "trajectories.json")
NASTY = "<script>alert('run')</script> & \"pick\""
"""Text that must be shown as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeRun:
    """What is simulated: production at a steady rate, deliveries spread over each episode's residence."""

    seconds: int = 120
    records: int = 120
    """One a second, or fewer."""
    steps_per_s: float = 2.8
    episodes_per_s: float = 1.4
    cache_episodes: int = 16
    budget: int = 100
    """K."""
    batch_size: int = 32
    frames: int = 90
    seed: int = 0
    name: str = "franka"
    stale: bool = True
    """Whether some windows say nothing of production."""

    @property
    def episodes(self) -> int:
        return self.cache_episodes + int(self.seconds * self.episodes_per_s)


ONE_HOUR = FakeRun(
    seconds=3600, records=3600, episodes_per_s=1.36, cache_episodes=128, batch_size=48, budget=100, frames=160
)
"""About 10,000 steps, 5,000 trajectories and a record a second."""


def write_run(folder: Path, run: FakeRun | None = None, *, parts: Collection[str] = PARTS) -> Path:
    """Write a run into ``folder``, ``run.json`` and ``parts``, and return it."""
    run = FakeRun() if run is None else run
    folder.mkdir(parents=True, exist_ok=True)
    lives = _Lives(run)
    contents = {
        "metrics.jsonl": lambda: "".join(record.to_json() + "\n" for record in lives.records()),
        "task.yaml": lambda: f"instruction: {json.dumps(NASTY)}\nbatch_size: {run.batch_size}\n",
        "plan.json": lambda: plan_to_json(plan_inputs(run)),
        "comparison.json": lambda: comparison_to_json(lives.comparison()),
        "trajectories.json": lambda: lives.trajectories().to_json(),
    }
    for name in parts:
        (folder / name).write_text(contents[name](), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(run_json(run), indent=2), encoding="utf-8")
    return folder


def run_json(run: FakeRun) -> dict[str, Any]:
    """Return what `odstream.perf.RunDirectory` writes, always the same."""
    return {
        "started_unix_ns": STARTED_UNIX_NS,
        "environment": {
            "python": "3.11.9",
            "platform": "Linux-6.1-x86_64",
            "processors": 16,
            "packages": {"odstream": "0.1.0", "torch": "2.13.0", "numpy": "2.3.1"},
            "command": ["odstream", "train", "--config", run.name, f"engine.gym_config.instruction={NASTY}"],
        },
        "settings": {
            "shape": {
                "batch_size": run.batch_size,
                "selections_per_episode": run.budget,
                "producer_batch": 4,
                "pool_capacity": None,
            },
            "task": run.name,
        },
    }


def plan_inputs(run: FakeRun) -> PlanInputs:
    """Return inputs from which a plan with the run's budget follows."""
    return PlanInputs(
        accepted_episodes_per_second=run.episodes_per_s * 1.1,
        training_chunks_per_second=run.batch_size * run.steps_per_s * 2,
        profile=ODSReuseProfileCfg(
            profile_id="synthetic-1",
            scope="a synthetic run",
            qualified=False,
            min_chunks_per_episode=run.budget // 2,
            max_chunks_per_episode=run.budget,
            hard_max_chunks_per_episode=2 * run.budget,
        ),
        runtime=ODSRuntimeCfg(
            batch_size=run.batch_size,
            producer_envs=4,
            first_publication_p95_seconds=2.0,
            min_cache_episodes=run.cache_episodes,
            measurement_scope="a synthetic run",
            bytes_per_episode=100_000,
            cache_memory_bytes=100_000 * max(64, run.cache_episodes),
        ),
    )


class _Lives:
    """Every episode's publication, eviction and deliveries."""

    def __init__(self, run: FakeRun) -> None:
        self.run, rng = run, np.random.default_rng(run.seed)
        self.rng = rng
        count, cached = run.episodes, run.cache_episodes
        self.published_s = np.concatenate((np.zeros(cached), (1 + np.arange(count - cached)) / run.episodes_per_s))
        self.evicted_s = np.full(count, np.inf)
        self.evicted_s[: count - cached] = self.published_s[cached:]
        ends_s = np.where(np.isinf(self.evicted_s), self.published_s + cached / run.episodes_per_s, self.evicted_s)
        self.residence_s = ends_s - self.published_s
        spread = rng.normal(0.9, 0.06, count).clip(0.3, 1.0)
        self.uses = np.minimum(run.budget, np.round(run.budget * spread)).astype(np.int64)

    def delivered(self, at_s: float) -> NDArray[np.int64]:
        """Selections per episode up to a moment."""
        share = ((at_s - self.published_s) / self.residence_s).clip(0, 1)
        delivered: NDArray[np.int64] = (self.uses * share).astype(np.int64)
        return delivered

    def records(self) -> list[Record]:
        run = self.run
        return [self._record((index + 1) * run.seconds / run.records) for index in range(run.records)]

    def _record(self, at_s: float) -> Record:
        run, rng = self.run, self.rng
        counts = self._counts(at_s)
        wait, compute = 0.16 + 0.04 * np.sin(at_s / 60), 0.52
        noise = rng.normal(1, 0.02, 8)
        values = {
            **counts,
            "perf/step_time": 0.215 * noise[0],
            "perf/step_time_skew": 0.0,
            "perf/data_time": 0.032 * noise[1],
            "perf/compute_time": 0.183 * noise[0],
            "perf/train_capacity": run.batch_size / (0.215 * noise[0]),
            "perf/infer_capacity": run.budget * run.episodes_per_s * 0.93 * noise[2],
            "perf/infer_batch_time": 2.7 * noise[2],
            "perf/dispatch_wait": 0.06 * noise[3],
            "perf/thru": 0.9 * run.budget * run.episodes_per_s * noise[4],
            "perf/age_p50": 41.0 * noise[5],
            "perf/age_p95": 83.0 * noise[6],
            "perf/window": 10.2,
            **_fractions("learner", wait, compute),
            **_fractions("producer", 0.03, 0.83),
            "perf/learner_memory": 1.31e9 + 2e4 * at_s,
            "perf/producer_memory": 7.4e8 * noise[7],
            "perf/device_memory": 2.5e9,
            "train/loss": float(0.02 + 0.6 * np.exp(-at_s / 30)),
        }
        stale = {"perf/infer_capacity", "perf/infer_batch_time"} if run.stale and 0.4 < at_s / run.seconds < 0.5 else ()
        verdict = ("insufficient", "two whole windows must agree") if at_s < 0.08 * run.seconds else _PRODUCTION
        return Record(
            step=int(counts["perf/completed"]) // run.batch_size,
            unix_ns=STARTED_UNIX_NS + int((4.0 + at_s) * 1e9),
            elapsed_s=at_s,
            values={name: float(value) for name, value in values.items()},
            stale=frozenset(stale),
            verdict="; ".join(verdict),
            details={"verdict": verdict[0], "cause": "", "window_complete": True},
        )

    def _counts(self, at_s: float) -> dict[str, int]:
        run = self.run
        uses, there = self.delivered(at_s), self.published_s <= at_s
        evicted = self.evicted_s <= at_s
        published, delivered = int(there.sum()), int(uses.sum())
        retired = int((run.budget - uses[evicted]).sum())
        remaining = run.budget * published - delivered - retired
        completed = delivered // run.batch_size * run.batch_size
        return {
            "perf/accepted": published,
            "perf/failed": published // 9,
            "perf/lost": 0,
            "perf/published": published,
            "perf/delivered": delivered,
            "perf/completed": completed,
            "perf/failed_updates": 0,
            "perf/in_flight": delivered - completed,
            "perf/prefetched": 0,
            "perf/remaining": remaining,
            "perf/retired": retired,
            "perf/pool": int(remaining * 0.94),
        }

    def trajectories(self) -> Trajectories:
        run, end_s = self.run, float(self.run.seconds)
        uses = self.delivered(end_s)
        rows = [self._trajectory(index, int(uses[index]), end_s) for index in range(run.episodes)]
        delivered = int(uses.sum())
        return Trajectories(
            run_id=7,
            assigned_chunks=run.budget,
            episodes=tuple(rows),
            totals={"delivered": delivered, "completed": delivered, "failed": 0, "in_flight": 0},
        )

    def _trajectory(self, index: int, delivered: int, end_s: float) -> Trajectory:
        frames = int(self.run.frames * (0.8 + 0.2 * np.sin(index)))
        evicted_s = float(self.evicted_s[index])
        return Trajectory(
            episode_id=index,
            generation=index // self.run.cache_episodes,
            length=frames,
            published_s=float(self.published_s[index]),
            evicted_s=evicted_s if evicted_s <= end_s else None,
            delivered=delivered,
            completed=delivered,
            anchors=round(frames * (1 - np.exp(-delivered / frames))),
            supervised_frames=delivered * 15,
        )

    def comparison(self) -> Comparison:
        run, end_s = self.run, float(self.run.seconds)
        uses, evicted = self.delivered(end_s), self.evicted_s <= end_s
        assigned, delivered = run.budget * run.episodes, int(uses.sum())
        retired = int((run.budget - uses[evicted]).sum())
        groups = np.arange(run.episodes) // run.cache_episodes
        by_generation = np.bincount(groups, weights=uses) / delivered
        target = run.batch_size * run.steps_per_s
        lines = (
            ComparisonLine(name="training", planned=target, observed=target * 0.97, unit="chunks/s"),
            ComparisonLine(name="training, wall", planned=None, observed=target * 0.91, unit="chunks/s"),
            ComparisonLine(name="producer duty", planned=0.8, observed=0.93, unit="share"),
            ComparisonLine(name="data_wait", planned=0.0, observed=0.16, unit="share"),
            ComparisonLine(name="cache", planned=6.4e6, observed=6.4e6, unit="bytes"),
        )
        return Comparison(
            refills=9,
            window_s=0.8 * end_s,
            paused_s=3.5,
            lines=lines,
            reuse=Reuse(
                published_episodes=run.episodes,
                evicted_episodes=int(evicted.sum()),
                assigned_chunks=assigned,
                delivered_chunks=delivered,
                remaining_chunks=assigned - delivered - retired,
                retired_chunks=retired,
                unaccounted_chunks=0,
                chunks_per_evicted_episode=(int(uses.min()), float(uses.mean()), int(uses.max())),
                generation_shares={number: float(share) for number, share in enumerate(by_generation)},
            ),
            notes=("A note of the comparison.",),
        )


_PRODUCTION = ("production", "1.3 times the producers, or a reuse K larger by that factor if the profile allows it")


def _fractions(role: str, held: float, work: float) -> dict[str, float]:
    if role == "learner":
        shares = {"wait": held, "pace": 0.0, "fetch": 0.11, "compute": work, "eval": 0.06, "checkpoint": 0.004}
        shares["other"] = 1 - sum(shares.values())
    else:
        shares = {"busy": work, "publish": 0.02, "blocked": held, "down": 0.0}
        shares["starved"] = 1 - sum(shares.values())
    return {f"perf/{role}/{state}": share for state, share in shares.items()}


ALL_NAMES = frozenset(metric.name for metric in METRICS)
