"""`odstream calibrate`, `plan` and `train` one after the other on real engines, and what `train` refuses."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from odstream.cli import calibrate, plan, train
from odstream.cli.task import read_task, task_from_yaml

TASK = """
engine:
  buffer_size: 8
  max_episode_steps: 12
  include_provenance: true
  gym_config:
    factory: tests.fakes.calibration:SleepingEnv
    expert: tests.fakes.calibration:expert
    num_envs: 2
learner: tests.fakes.calibration:sleeping_learner
trainer: tests.fakes.calibration:trainer
training: {updates: 60}
flow: {poll_interval: 0.01}
batch_size: 16
measurement_scope: sleeping on one machine
refills: 2
"""
PROFILE = """
profile_id: sleeping
scope: test
qualified: false
min_chunks_per_episode: 10
max_chunks_per_episode: 20
hard_max_chunks_per_episode: 30
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "profile.yaml").write_text(PROFILE)
    return tmp_path


def make_plan(folder: Path, **changes: str) -> Path:
    task, throughput, path = folder / "task.yaml", folder / "throughput.json", folder / "plan.json"
    overrides = [f"{key}={value}" for key, value in changes.items()]
    assert calibrate.main(["--config", str(task), "--output", str(throughput), *overrides]) == 0
    files = ["--input", str(throughput), "--profile", str(folder / "profile.yaml"), "--output", str(path)]
    assert plan.main([*files, "--min-cache-episodes", "4"]) == 0
    return path


def run(folder: Path, *arguments: str) -> int:
    return train.main(["--config", str(folder / "task.yaml"), "--output", str(folder / "run"), *arguments])


@pytest.mark.spec("FLOW-03", "FLOW-05", "PLAN-09")
def test_a_task_is_measured_planned_and_trained_and_the_run_is_put_beside_its_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_plan(folder)
    planned: dict[str, Any] = json.loads(path.read_text())["plan"]
    assert run(folder, "--plan", str(path)) == 0
    comparison = json.loads((folder / "run/comparison.json").read_text())
    reuse = comparison["reuse"]
    assert comparison["notes"] == []
    assert comparison["refills"] >= 1
    assert reuse["delivered_chunks"] == 60 * 16
    assert reuse["unaccounted_chunks"] == 0
    assert reuse["assigned_chunks"] == planned["episode_sample_budget"] * reuse["published_episodes"]
    assert reuse["chunks_per_evicted_episode"][2] <= planned["episode_sample_budget"]
    settings = (folder / "run/engine.txt").read_text().split()
    assert settings == [str(planned[name]) for name in ("buffer_size", "episode_sample_budget", "batch_size")]
    assert json.loads((folder / "run/plan.json").read_text())["plan"] == planned
    assert "training, active" in capsys.readouterr().out


def test_without_a_plan_there_is_nothing_to_compare(folder: Path) -> None:
    assert run(folder, "training.good=false") == 1
    assert sorted(file.name for file in (folder / "run").iterdir()) == ["engine.txt", "run.json", "task.yaml"]
    assert (folder / "run/engine.txt").read_text() == "8 None 16"
    kept = read_task(str(folder / "run/task.yaml"))
    assert kept.training == {"updates": 60, "good": False}


def test_a_folder_that_exists_is_used_only_if_one_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run").mkdir()
    (folder / "run/comparison.json").write_text("of an earlier run")
    assert run(folder) == 2
    assert f"{folder / 'run'} exists; choose another folder, or say --overwrite" in capsys.readouterr().err
    assert run(folder, "--overwrite") == 0
    assert not (folder / "run/comparison.json").exists()


def test_an_earlier_run_is_whole_if_the_next_one_cannot_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        on = ["trainer=tests.fakes.metered:trainer", "debug.enable_perf_metrics=true"]
        assert run(folder, *on) == 0
        (folder / "run/demo.json").write_text("of the trainer")
        before = {path.name: path.read_bytes() for path in (folder / "run").iterdir()}
        sinks = ["debug.sinks=[jsonl, prometheus]", f"debug.sink_settings={{prometheus: {{port: {port}}}}}"]
        assert run(folder, "--overwrite", *on, *sinks) == 2
    assert "the sink 'prometheus' could not start" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (folder / "run").iterdir()} == before
    assert run(folder, "--overwrite") == 0
    left = {path.name for path in (folder / "run").iterdir()}
    assert not left & {"metrics.jsonl", "trajectories.json", "demo.json", ".earlier-run"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["batchsize=8"], "the task has an unknown field 'batchsize' (close to 'batch_size')"),
        (["engine.bufer_size=8"], "engine has an unknown field 'bufer_size' (close to 'buffer_size')"),
        (["engine.gym_config.num_env=8"], "unknown key 'num_env'; did you mean 'num_envs'"),
        (["flow.pol_interval=8"], "flow has an unknown field 'pol_interval' (close to 'poll_interval')"),
        (["flow.poll_interval=0"], "poll_interval must be a finite number > 0, got 0"),
        (["training=3"], "training must be a mapping of settings, got int"),
        (["training.updates"], "an override must be key=value, got 'training.updates'"),
        (["trainer=null"], "the task misses trainer"),
        (["trainer=nowhere:f"], "trainer='nowhere:f' cannot be imported"),
        (["engine.episode_sample_budget=3"], "engine must leave episode_sample_budget to the command"),
        (["measurement_scope=${nothing}"], "the task cannot be resolved"),
    ],
)
def test_what_is_not_acceptable_is_refused_by_name_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], message: str
) -> None:
    assert run(folder, *overrides) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_a_plan_for_another_task_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_plan(folder)
    capsys.readouterr()
    assert run(folder, "--plan", str(path), "batch_size=8", "engine.gym_config.num_envs=4") == 2
    assert (
        f"{path} is a plan for batch_size 16, the task has 8; producer_envs 2, the task has 4: measure and plan again"
        in capsys.readouterr().err
    )
    assert run(folder, "--plan", str(path), "flow.max_generated_episodes=80") == 2
    assert "flow.max_generated_episodes must not be set" in capsys.readouterr().err
    path.write_text(path.read_text().replace('"episode_sample_budget": ', '"episode_sample_budget": 1'))
    assert run(folder, "--plan", str(path)) == 2
    assert "the plan does not follow from its inputs" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_overrides_are_read_as_yaml_and_reach_free_settings() -> None:
    task = task_from_yaml(TASK, ["engine.gym_config.kwargs.pace=1e-3", "training.at=[1, 2]", "refills=7"])
    assert task.engine.gym_config["kwargs"] == {"pace": 0.001}
    assert task.training == {"updates": 60, "at": [1, 2]}
    assert task.calibration.refills == 7
