"""``odstream record``, from the task file to a dataset that can be trained from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from odstream.cli.main import main
from odstream.datasets import SequenceDataset, SequenceSpecCfg
from odstream.datasets.lerobot import LeRobotDataSource
from odstream.datasets.lerobot_import import import_lerobot
from tests.integration.lerobot.sdk import lerobot

pytestmark = [*lerobot, pytest.mark.spec("SRC-06")]

ROOT = Path(__file__).resolve().parents[3]
TASK = """
engine:
  gym_config:
    factory: tests.fakes.environments:CountingEnv
    kwargs: {lengths: [6]}
    expert: tests.fakes.environments:plus_hundred
    num_envs: 2
    instruction: count
  buffer_size: 4
  max_episode_steps: 20
learner: nobody:needs_this
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task file whose environment counts its steps."""
    path = tmp_path / "task.yaml"
    path.write_text(TASK)
    return path


def test_a_recording_on_the_command_line_can_be_trained_from(tmp_path: Path, task: Path) -> None:
    output = tmp_path / "counted"
    command = [
        sys.executable,
        "-m",
        "odstream",
        "record",
        "--config",
        str(task),
        "--episodes",
        "10",
        "--step-dt",
        "0.05",
    ]
    run = subprocess.run(
        [*command, "--output", str(output)], cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "10 of 10 episodes" in run.stderr and run.stdout == f"{output}: 10 episodes\n"
    dataset_class, _ = import_lerobot()
    dataset = dataset_class("local/counted", root=output)
    assert (dataset.meta.total_episodes, dataset.fps, dataset[0]["task"]) == (10, 20, "count")
    schema = {
        "observation": {"names": ["step", "attempt"]},
        "action": {"names": ["step_plus_100"], "semantics": "expert_controller_command", "step_dt": 0.05},
    }
    source = LeRobotDataSource(output, schema=schema, source_id="counted", memory_limit_bytes=2**24)
    for batch in SequenceDataset(source, SequenceSpecCfg(2, 3), batch_size=8, max_batches=3):
        real = batch["valid"]
        assert torch.equal(batch["actions"][real][:, 0], batch["obs"][real][:, 0] + 100.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "TASK", "--episodes", "0"], "episodes must be at least 1, got 0"),
        (["--config", "nowhere.yaml"], "No such file"),
        ([], "--config must name the task to record"),
        (["--config", "TASK", "engine.buffer_size=0"], "buffer_size must be at least 1"),
        (["--recover"], "there is no interrupted recording"),
    ],
)
def test_what_is_not_acceptable_is_refused_before_anything_starts(
    tmp_path: Path, task: Path, capsys: Any, arguments: list[str], message: str
) -> None:
    given = [str(task) if argument == "TASK" else argument for argument in arguments]
    assert main(["record", "--output", str(tmp_path / "out"), *given]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["task.yaml"]


def test_a_folder_with_content_is_not_recorded_into(tmp_path: Path, task: Path, capsys: Any) -> None:
    assert main(["record", "--config", str(task), "--output", str(tmp_path)]) == 2
    assert "is there and not empty" in capsys.readouterr().err
