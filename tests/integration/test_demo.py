"""``odstream demo`` from end to end, small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from odstream.envs.franka.environment import FrankaPickPlace
from odstream.envs.franka.evaluate import evaluate, film
from odstream.envs.franka.policy import load_policy

pytestmark = pytest.mark.franka

SMALL = "--updates 30 --evaluate-at 0 20 --scenes 4 --final-scenes 6 --cache-episodes 16 --batch-size 64 --target 0"


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "odstream", "demo", "--output", str(folder), *SMALL.split(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_a_run_leaves_numbers_pictures_and_a_policy_that_loads(tmp_path: Path) -> None:
    done = run_demo(tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "demo.json").read_text())
    assert [point["updates"] for point in numbers["curve"]] == [0, 20, 30]
    assert numbers["final"]["scenes"] == 6
    assert numbers["engine"]["successful_episodes"] >= 16
    assert 0.0 <= numbers["learner"]["wait_share"] < 1.0
    assert "waited for data" in done.stdout
    assert "target 0%: met" in done.stdout
    for picture in ("success.png", "scene.png"):
        assert (tmp_path / picture).exists() or f"not drawn  {picture}" in done.stdout
    policy = load_policy(tmp_path / "policy.pt")
    assert evaluate(policy, FrankaPickPlace(6)).rate == numbers["final"]["success"]


def test_without_a_renderer_the_run_goes_on_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    (tmp_path / "scene.png").write_text("of an earlier run")
    done = run_demo(tmp_path, "--failure-rate", "0.2", "--target", "1")
    assert "not drawn  scene.png: no picture can be drawn: install a software renderer" in done.stdout
    assert not (tmp_path / "scene.png").exists()
    assert (tmp_path / "policy.pt").exists()
    assert done.returncode == 1
    assert "target 100%: MISSED" in done.stdout


def test_evaluation_is_deterministic_and_agrees_with_a_film_of_the_scene(tmp_path: Path) -> None:
    from odstream.envs.franka.policy import ChunkPolicy, PolicyCfg

    policy = ChunkPolicy(PolicyCfg(observation_dim=51, action_dim=7))
    first, second = (evaluate(policy, FrankaPickPlace(3, max_episode_steps=40), first_seed=5) for _ in range(2))
    assert first.distance_m.tolist() == second.distance_m.tolist()
    poses, solved = film(policy, 5)
    assert not solved and len(poses) == 201
