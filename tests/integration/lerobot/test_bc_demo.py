"""The Franka application on fixed data: collected, really written with LeRobot's SDK, read back, trained on."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from odstream.perf import read_trajectories
from tests.integration.lerobot.sdk import lerobot

pytestmark = [
    *lerobot,
    pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="MuJoCo is not installed"),
]

ROOT = Path(__file__).resolve().parents[3]
TINY = ("--final-scenes", "2", "--loop.scenes", "2", "--loop.evaluate-at", "20", "--loop.checkpoint-every", "20")


def module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"examples.ods.simple_bc_demo.{name}", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def read(folder: Path, name: str = "records.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run on few demonstrations."""
    folder = tmp_path_factory.mktemp("bc") / "offline"
    arguments = ["--smoke", "--mode", "offline-32", "--episodes", "20", "--no-video", "--loop.updates", "40"]
    done = module("train", *arguments, *TINY, "--output", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.spec("APP-02")
def test_the_offline_arm_trains_on_what_it_wrote_to_a_dataset(offline: Path) -> None:
    info = json.loads((offline / "dataset" / "meta" / "info.json").read_text())
    records = read(offline)
    assert info["total_episodes"] == records["data"]["published_episodes"] == 20
    assert records["accounting"]["delivered"] == records["accounting"]["completed"] == 40 * 64
    assert records["accounting"]["uncounted"] == 0
    assert {"collect", "write", "load", "train", "evaluate"} <= set(records["phases_s"])
    assert records["resources"]["producer"]["cpu_s"] > 0.0
    action = json.loads((offline / "dataset" / "meta" / "odstream.json").read_text())["recording"]["action"]
    assert action["semantics"] == "policy_request"
    assert [term["contract"] for term in action["terms"]] == ["eef_pose.relative@1", "gripper.parallel@1"]
    trajectories = read_trajectories((offline / "trajectories.json").read_text())
    assert [one.episode_id for one in trajectories.episodes] == list(range(20))
    assert all(one.length is not None and one.completed > 0 for one in trajectories.episodes)
    assert sum(one.length or 0 for one in trajectories.episodes) == info["total_frames"]


def test_a_resumed_run_goes_on_with_the_same_dataset_and_ledger(offline: Path, tmp_path: Path) -> None:
    folder = tmp_path / "resumed"
    arguments = ["--resume", str(offline / "training.pt"), "--loop.updates", "60", "--output", str(folder)]
    done = module("train", *arguments)
    assert done.returncode == 0, done.stderr
    records = read(folder)
    assert records["data"] == read(offline)["data"]
    assert "collect" not in records["phases_s"]
    assert (records["work"]["updates"], records["work"]["updates_of_this_run"]) == (60, 20)
    assert records["accounting"]["delivered"] == 60 * 64
    assert records["accounting"]["completed"] == 20 * 64
    assert records["accounting"]["uncounted"] == 0
    assert records["accounting"]["unaccounted"] is None
    assert records["exposure"]["anchors_per_frame"] > 0.0
    before, after = (torch.load(path / "training.pt", weights_only=True)["training"] for path in (offline, folder))
    assert after["updates"] == before["updates"] + 20
    assert after["source"]["total_delivered"] == before["source"]["total_delivered"] + 20 * 64


def test_a_dataset_that_is_not_there_is_refused(offline: Path, tmp_path: Path) -> None:
    arguments = ["--smoke", "--mode", "offline-32", "--no-video", "--dataset", str(tmp_path / "nothing")]
    done = module("train", *arguments, "--output", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "is not there; say where it is by --dataset" in done.stderr


@pytest.mark.spec("APP-02")
def test_the_comparison_runs_in_tiny(tmp_path: Path) -> None:
    arguments = ["--smoke", "--seeds", "1", "--arms", "live", "offline-full", "--output", str(tmp_path / "c")]
    done = module("compare", *arguments, "--", *TINY, "--loop.updates", "40")
    assert done.returncode == 0, done.stderr
    assert "| unaccounted selections | 0 | 0 |" in done.stdout
    results = read(tmp_path / "c", "results.json")
    live, full = (results["arms"][mode]["numbers"]["demonstrations"]["mean"] for mode in ("live", "offline-full"))
    assert live == full
    for name in ("results.md", "success.png", "curves.png", "exposure.png"):
        assert (tmp_path / "c" / name).stat().st_size > 500
    again = module("compare", *arguments, "--", *TINY, "--loop.updates", "40")
    assert again.returncode == 0
    assert "===" not in again.stdout  # nothing is run twice
