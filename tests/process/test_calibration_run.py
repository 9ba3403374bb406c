"""`odstream calibrate` on a real engine and its plan, and what it refuses before anything starts."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import pytest

from odstream.calibration import run_calibration, throughput_from_json
from odstream.cli.calibrate import main
from odstream.cli.task import task_from_yaml
from odstream.engine import OnlineDataEngine
from tests.fakes.calibration import STEP_S, STEPS, UPDATES_S

TASK = """
engine:
  buffer_size: 4
  max_episode_steps: 12
  gym_config:
    factory: tests.fakes.calibration:SleepingEnv
    expert: tests.fakes.calibration:expert
    num_envs: 2
learner: tests.fakes.calibration:sleeping_learner
batch_size: 16
measurement_scope: sleeping on one machine
refills: 5
"""


def run(folder: Path, task: str = TASK, output: str = "throughput.json") -> int:
    (folder / "task.yaml").write_text(task)
    return main(["--config", str(folder / "task.yaml"), "--output", str(folder / output)])


@pytest.mark.spec("PLAN-13")
def test_a_calibration_measures_what_producer_and_learner_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    measured = throughput_from_json((tmp_path / "throughput.json").read_text())
    # One process steps both environments in turn, so an episode costs its sleeps; whatever else it costs comes on top.
    fastest = 1 / (STEPS * STEP_S)
    assert 0.3 * fastest < measured.accepted_episodes_per_second <= fastest
    assert measured.training_chunks_per_second == pytest.approx(16 / statistics.mean(UPDATES_S), rel=0.05)
    assert (measured.production_intervals, measured.accepted_episodes) == (5, 20)
    assert (measured.batch_size, measured.producer_envs) == (16, 2)
    assert measured.measurement_scope == "sleeping on one machine"
    assert measured.bytes_per_episode > 12 * 12
    assert measured.first_publication_p95_seconds >= STEPS * STEP_S
    out = capsys.readouterr()
    assert "episodes/s active (g)" in out.out
    assert "warning     The 95th percentile of 5" in out.out
    assert out.err.splitlines()[-1] == "refill 6 of 6"


@pytest.mark.spec("PLAN-13")
def test_the_measured_production_rate_is_the_one_that_the_producer_clocks_itself() -> None:
    task = task_from_yaml(TASK, ["engine.buffer_size=16"])
    cfg = dataclasses.replace(task.engine, lifecycle_event_capacity=32)
    clocked: list[tuple[float, float]] = []
    with OnlineDataEngine(cfg) as engine:

        def note(_done: int, _wanted: int) -> None:
            stats = engine.get_stats()
            clocked.append((stats["successful_episodes"], stats["production_seconds"]))

        measured = run_calibration(
            engine,
            task.learner(engine, 16),
            task.calibration,
            bytes_per_episode=engine.bytes_per_episode,
            progress=note,
        )
    (first_episodes, first_s), (last_episodes, last_s) = clocked[0], clocked[-1]
    assert last_episodes - first_episodes == measured.accepted_episodes == 80
    assert measured.accepted_episodes_per_second == pytest.approx(80 / (last_s - first_s), rel=0.05)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("learner: tests.fakes.calibration:sleeping_learner", "", "the task misses learner"),
        ("sleeping_learner", "no_learner", "learner='tests.fakes.calibration:no_learner' cannot be imported"),
        ("tests.fakes.calibration:sleeping_learner", "nowhere:f", "learner='nowhere:f' cannot be imported"),
        ("tests.fakes.calibration:sleeping_learner", "justaname", "learner must be 'module:function', got 'justaname'"),
        ("sleeping_learner", "STEPS", "must be callable, got 10"),
        ("batch_size: 16", "batch_size: 0", "batch_size must be an integer"),
        ("batch_size: 16", "batchsize: 16", "misses batch_size, has an unknown field 'batchsize'"),
        ("buffer_size: 4", "buffer_size: four", "buffer_size must be an int, got 'four'"),
        ("buffer_size: 4", "refill_policy: manual", "engine must leave refill_policy to the command"),
        ("buffer_size: 4", "buffersize: 4", "engine has an unknown field 'buffersize' .close to 'buffer_size'"),
        (TASK[: TASK.index("learner")], "engine: 3\n", "engine must be a mapping of settings, got int"),
        ("engine:", "engine: {", "the task is no YAML"),
    ],
)
def test_a_task_that_is_not_acceptable_is_refused_by_name(old: str, new: str, message: str) -> None:
    assert old in TASK
    with pytest.raises((ValueError, TypeError), match=message):
        task_from_yaml(TASK.replace(old, new))


def test_the_command_starts_nothing_for_a_file_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_task: Any) -> None:
        pytest.fail("something was started")

    monkeypatch.setattr("odstream.cli.calibrate.calibrate", never)
    assert run(tmp_path, "- 1") == 2
    assert "task.yaml: the task must be a mapping of fields, got list" in capsys.readouterr().err
    assert run(tmp_path, output="nowhere/throughput.json") == 2
    assert "nowhere/throughput.json: there is no such directory" in capsys.readouterr().err
