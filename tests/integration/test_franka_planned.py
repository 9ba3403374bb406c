"""The Franka task from its own task file: measured, planned, trained by the plan, and on a slower simulator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from odstream.cli import calibrate, plan, train
from odstream.cli.task import read_task
from odstream.datasets.schema import validate_data_schema
from odstream.engine import OnlineDataEngine
from odstream.envs.franka.control import ACTION_DIM
from odstream.envs.franka.environment import INSTRUCTION, FrankaPickPlace
from odstream.envs.franka.observation import CUBE_POSITION, GOAL_POSITION, OBSERVATION_DIM, TCP_TO_CUBE
from odstream.envs.franka.planned import learner
from odstream.envs.franka.schema import OBSERVATION_NAMES, SCHEMA
from odstream.envs.franka.slowed import SlowedFranka
from odstream.perf import read_records, read_trajectories

pytestmark = [pytest.mark.franka, pytest.mark.slow]

SMALL = ["engine.buffer_size=16", "refills=2", "batch_size=32"]
METERED = ["debug.enable_perf_metrics=true", "debug.window_s=0.5", "debug.every_s=0.2"]
SHORT = ["training.updates=300", "training.evaluate_at=[0]", "training.scenes=2", "training.final_scenes=2"]


@pytest.mark.timeout(150)
@pytest.mark.spec("FLOW-05", "PLAN-09", "PERF-01", "APP-03")
def test_the_shipped_task_is_measured_planned_and_trained_by_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    throughput, planned, run = tmp_path / "throughput.json", tmp_path / "plan.json", tmp_path / "run"
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "{profile_id: few, scope: test, qualified: false, min_chunks_per_episode: 100, "
        "max_chunks_per_episode: 100, hard_max_chunks_per_episode: 100}"
    )
    assert calibrate.main(["--config", "franka", "--output", str(throughput), *SMALL]) == 0
    files = ["--input", str(throughput), "--profile", str(profile), "--output", str(planned)]
    assert plan.main([*files, "--min-cache-episodes", "16"]) == 0
    arguments = ["--config", "franka", "--plan", str(planned), "--output", str(run), "training.target=0"]
    assert train.main([*arguments, *SMALL, *SHORT, *METERED]) == 0
    comparison = json.loads((run / "comparison.json").read_text())
    assert comparison["reuse"]["unaccounted_chunks"] == 0
    # 4,096 contexts were drawn for the normalisation, as whole batches.
    assert comparison["reuse"]["delivered_chunks"] == 300 * 32 + 4096
    assert comparison["reuse"]["chunks_per_evicted_episode"][2] <= 100
    assert comparison["notes"] == []
    assert json.loads((run / "demo.json").read_text())["updates"] == 300
    printed = capsys.readouterr().out
    assert "planned and observed" in printed and "verdict    " in printed and f"odstream report {run}" in printed
    last = read_records(run / "metrics.jsonl").records[-1]
    assert (last.step, last.values["perf/completed"]) == (300, 300 * 32)
    assert last.values["perf/prefetched"] == 4096, "what was drawn for the normalisation is no step's"
    assert last.values["perf/learner/pace"] + last.values["perf/learner/wait"] > 0
    trajectories = read_trajectories((run / "trajectories.json").read_text())
    assert trajectories.totals == {"delivered": 9600, "completed": 9600, "failed": 0, "in_flight": 0}
    published = {one.episode_id for one in trajectories.episodes if one.published_s is not None}
    assert published == set(range(comparison["reuse"]["published_episodes"]))


@pytest.mark.spec("PERF-01")
def test_the_shipped_task_is_metered_without_a_plan(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["--config", "franka", "--output", str(run), "training.target=0", *SMALL, *SHORT, *METERED]
    assert train.main(arguments) == 0
    last = read_records(run / "metrics.jsonl").records[-1]
    assert last.values["perf/completed"] == 300 * 32
    assert last.values["perf/learner/eval"] > 0, "the evaluation at the end belongs to the last record"
    assert last.values["perf/producer/down"] == 0, "it was written while the producer ran"
    assert last.values["perf/producer/busy"] > 0.5
    episodes = read_trajectories((run / "trajectories.json").read_text()).episodes
    assert sum(one.completed for one in episodes) == 300 * 32
    assert {one.published_s is None for one in episodes} == {False}


def test_the_shipped_profile_is_one(tmp_path: Path) -> None:
    fields = ["--profile", "franka", "--input", str(tmp_path / "nothing.json")]
    assert plan.main(fields) == 2
    assert read_task("franka").engine.gym_config["instruction"] == INSTRUCTION


def test_the_schema_declares_what_the_task_records() -> None:
    schema = validate_data_schema(SCHEMA)
    assert len(schema["observation"]["names"]) == OBSERVATION_DIM
    assert len(schema["action"]["names"]) == ACTION_DIM
    assert OBSERVATION_NAMES[CUBE_POSITION] == ["cube_x", "cube_y", "cube_z"]
    assert OBSERVATION_NAMES[GOAL_POSITION] == ["goal_x", "goal_y", "goal_z"]
    assert OBSERVATION_NAMES[TCP_TO_CUBE] == ["tcp_to_cube_x", "tcp_to_cube_y", "tcp_to_cube_z"]
    with OnlineDataEngine(read_task("franka", ["engine.buffer_size=8"]).engine) as engine:
        update = learner(engine, 16)
        first = update()
        assert isinstance(first, float)
        assert np.isfinite(first)


def test_a_slower_simulator_shows_the_same_scenes() -> None:
    fast, slow = FrankaPickPlace(2), SlowedFranka(2, seconds_per_step=1e-4)
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 2, ACTION_DIM)).astype(np.float32)
    for environment in (fast, slow):
        environment.reset(seed=3)
    for action in actions:
        np.testing.assert_array_equal(fast.step(action)[0], slow.step(action)[0])
    with pytest.raises(ValueError, match="seconds_per_step must be"):
        SlowedFranka(1, seconds_per_step=0.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.update=3", "training has an unknown field 'update' (close to 'updates')"),
        ("training.updates=0", "updates must be at least 1, got 0"),
        ("training.batch_size=3", "batch_size stands at the top of the task"),
        ("training.target=2", "target must be 0 to 1, got 2"),
    ],
)
def test_a_training_that_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert train.main(["--config", "franka", "--output", str(tmp_path / "run"), override]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
