"""The Franka application from outside: trained, evaluated, resumed, refused."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.ods.simple_bc_demo import train
from odstream.calibration import plan_from_json
from odstream.envs.franka.policy import ChunkPolicy, PolicyCfg, save_policy
from odstream.perf import read_records, read_trajectories
from odstream.report import build_page, read_run

pytestmark = [pytest.mark.franka, pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--smoke", "--no-viewer", "--no-video", "--final-scenes", "2", "--loop.scenes", "2")


def module(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"examples.ods.simple_bc_demo.{name}", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def read(folder: Path, name: str = "records.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The smoke run's folder, and what it printed."""
    folder = tmp_path_factory.mktemp("bc") / "smoke"
    done = module("train", "--smoke", "--no-viewer", "--no-video", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.spec("APP-02")
def test_the_smoke_run_shows_the_whole_within_a_minute_and_a_screen(smoke: tuple[Path, str]) -> None:
    folder, printed = smoke
    end = printed[printed.rindex("\nsolved ") :].strip().splitlines()
    assert len(end) <= 12
    for word in ("solved", "work", "data", "accounting", "first", "learner", "phases", "memory", "total"):
        assert any(line.startswith(word) for line in end), word
    assert "planned and observed" in printed
    assert read(folder)["evaluation"]["success"]["3_cm"]["solved"] >= 3  # of 6; an untrained policy solves none
    names = {path.name for path in folder.iterdir()}
    assert names >= {"run.json", "plan.json", "throughput.json", "comparison.json", "trajectories.json", "records.json"}
    assert names >= {"policy.pt", "training.pt", "evaluation.json"}
    assert set(read(folder)["phases_s"]) == {"calibrate", "start", "train", "stop", "evaluate"}


@pytest.mark.spec("APP-03")
def test_a_report_can_be_made_of_it_with_ages_and_memory(smoke: tuple[Path, str]) -> None:
    last = read_records(smoke[0] / "metrics.jsonl").records[-1].values
    assert 0 < last["perf/age_p50"] <= last["perf/age_p95"] < 60
    assert last["perf/learner_memory"] > 1e7 and last["perf/producer_memory"] > 1e7
    html = build_page(read_run(smoke[0]), png=False).html
    assert "does not balance" not in html and "Memory was not recorded" not in html


@pytest.mark.spec("APP-03")
def test_every_selection_of_the_run_is_accounted_for(smoke: tuple[Path, str]) -> None:
    records, comparison = read(smoke[0]), read(smoke[0], "comparison.json")
    account = records["accounting"]
    assert account["assigned"] == account["delivered"] + account["remaining"] + account["retired"]
    assert account["unaccounted"] == account["uncounted"] == comparison["reuse"]["unaccounted_chunks"] == 0
    assert account["completed"] == account["delivered"] == 400 * 64
    trajectories = read_trajectories((smoke[0] / "trajectories.json").read_text())
    plan, _ = plan_from_json((smoke[0] / "plan.json").read_text())
    assert trajectories.assigned_chunks == plan.episode_sample_budget
    assert max(one.completed for one in trajectories.episodes) <= plan.episode_sample_budget
    assert sum(one.completed for one in trajectories.episodes) == 400 * 64
    assert sum(records["generation_shares"].values()) == pytest.approx(1.0)
    assert len(records["generation_shares"]) > 1  # it streamed


@pytest.mark.spec("APP-03")
def test_latencies_waits_and_resources_are_recorded(smoke: tuple[Path, str]) -> None:
    records = read(smoke[0])
    latencies, resources = records["latencies"], records["resources"]
    assert 0.0 < latencies["first_publication_s"] < latencies["first_update_s"] < records["total_s"]
    assert set(latencies["waits"]) == {"data_wait", "quota_wait", "usage_throttle"}
    for side in ("learner", "producer"):
        assert resources[side]["peak_bytes"] > 20_000_000
        assert resources[side]["cpu_s"] > 0.0
    assert [point["updates"] for point in records["curve"]] == [100, 400]
    assert records["learner_states_s"]["compute"] > 0.0


@pytest.mark.spec("APP-04")
def test_a_fresh_evaluator_finds_the_same_twice(smoke: tuple[Path, str], tmp_path: Path) -> None:
    folder = smoke[0]
    for name in ("first", "second"):
        output = str(tmp_path / f"{name}.json")
        done = module("evaluate", "--checkpoint", str(folder / "policy.pt"), "--episodes", "6", "--output", output)
        assert done.returncode == 0, done.stderr
        assert "within 3 cm" in done.stdout
    assert (tmp_path / "first.json").read_text() == (tmp_path / "second.json").read_text()
    assert read(tmp_path, "first.json")["scenes"] == read(folder, "evaluation.json")["scenes"]


@pytest.mark.spec("APP-04")
def test_the_evaluator_refuses_the_checkpoint_of_another_task(smoke: tuple[Path, str], tmp_path: Path) -> None:
    checkpoint = torch.load(smoke[0] / "policy.pt", weights_only=True)
    torch.save({**checkpoint, "task": "somebody.else@1"}, tmp_path / "policy.pt")
    done = module("evaluate", "--checkpoint", str(tmp_path / "policy.pt"))
    assert done.returncode == 2
    assert "is of another task: 'somebody.else@1', this is 'odstream.franka.pick-and-place@1'" in done.stderr
    assert not (tmp_path / "held-out.json").exists()


def test_a_run_goes_on_from_its_checkpoint_with_a_new_cache(smoke: tuple[Path, str], tmp_path: Path) -> None:
    checkpoint, folder = smoke[0] / "training.pt", tmp_path / "resumed"
    arguments = ["--resume", str(checkpoint), "--output", str(folder), "--final-scenes", "2", "--loop.updates", "420"]
    done = module("train", *arguments, "--plan", str(smoke[0] / "plan.json"))
    assert done.returncode == 0, done.stderr
    before, after = read(smoke[0]), read(folder)
    assert after["settings"]["smoke"]  # the settings are the checkpoint's
    assert after["data"]["source_id"] != before["data"]["source_id"]
    assert (after["work"]["updates"], after["work"]["updates_of_this_run"]) == (420, 20)
    assert after["accounting"]["delivered"] == after["accounting"]["completed"] == 20 * 64
    assert after["accounting"]["uncounted"] == after["accounting"]["unaccounted"] == 0
    saved = [torch.load(path / "training.pt", weights_only=True)["training"] for path in (smoke[0], folder)]
    assert saved[1]["updates"] == saved[0]["updates"] + 20
    old, new = (training["learner"] for training in saved)
    assert new["optimizer"]["state"][0]["step"] == old["optimizer"]["state"][0]["step"] + 20
    for name in ("observation_mean", "observation_std", "action_mean", "action_std"):
        assert torch.equal(new["policy"][name], old["policy"][name])


def test_a_run_that_is_interrupted_says_how_to_go_on_and_leaves_nothing_running(
    smoke: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    arguments = [*TINY, "--plan", str(smoke[0] / "plan.json"), "--output", str(folder), "--loop.updates", "100000"]
    command = [sys.executable, "-m", "examples.ods.simple_bc_demo.train", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline_s = time.monotonic() + 60
        while not (folder / "training.pt").exists():
            assert process.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        told = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert f"train: go on with --resume {folder / 'training.pt'}" in told
    assert "Traceback" not in told
    deadline_s = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline_s:  # helpers of Python's end a moment after it
            os.killpg(process.pid, 0)
            time.sleep(0.02)


def test_the_frozen_arm_uses_the_first_fill_alone(tmp_path: Path) -> None:
    folder = tmp_path / "frozen"
    arguments = ["--mode", "frozen", "--loop.updates", "30", "--loop.checkpoint-every", "30"]
    done = module("train", *TINY, *arguments, "--output", str(folder))
    assert done.returncode == 0, done.stderr
    records = read(folder)
    assert records["data"]["published_episodes"] == 16
    assert records["generation_shares"] == {"1": 1.0}
    assert records["accounting"]["delivered"] == records["accounting"]["completed"] == 30 * 64
    assert records["accounting"]["uncounted"] == 0
    assert read_trajectories((folder / "trajectories.json").read_text()).totals["completed"] == 30 * 64


def refused(capsys: pytest.CaptureFixture[str], folder: Path, arguments: Sequence[str]) -> str:
    """What a refused run says; it must leave nothing behind."""
    assert train.main([*arguments, "--output", str(folder)]) == 2
    assert not folder.exists()
    return capsys.readouterr().err


@pytest.mark.spec("APP-02")
def test_what_cannot_end_well_is_refused_before_anything_starts(
    smoke: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, plan = tmp_path / "run", str(smoke[0] / "plan.json")
    told = refused(capsys, run, [*TINY, "--plan", plan, "--loop.batch-size", "32"])
    assert "does not fit: batch_size is 64 in the plan, 32 in this task; measure and plan again" in told
    told = refused(capsys, run, [*TINY, "--plan", plan, "--stream.cache-episodes", "64"])
    assert "does not fit: min_cache_episodes is 16 in the plan, 64 in this task; measure and plan again" in told
    other = json.loads((smoke[0] / "plan.json").read_text())
    other["inputs"]["profile"]["scope"] = other["plan"]["profile_scope"] = "another task"
    (tmp_path / "other.json").write_text(json.dumps(other))
    told = refused(capsys, run, [*TINY, "--plan", str(tmp_path / "other.json")])
    assert "profile_scope is 'another task' in the plan" in told
    told = refused(capsys, run, ["--resume", str(smoke[0] / "training.pt")])
    assert "has 400 updates; ask for more by --loop.updates" in told
    save_policy(ChunkPolicy(PolicyCfg(observation_dim=51, action_dim=7)), tmp_path / "policy.pt")
    assert "holds a policy alone" in refused(capsys, run, ["--resume", str(tmp_path / "policy.pt")])
    resume = ["--resume", str(smoke[0] / "training.pt"), "--loop.updates", "500"]
    assert "policy must have the shape that it has in the checkpoint" in refused(
        capsys, run, [*resume, "--policy.width", "64"]
    )
    assert "mode must be 'live', as in the checkpoint, got 'frozen'" in refused(
        capsys, run, [*resume, "--mode", "frozen"]
    )
    assert "nothing.pt" in refused(capsys, run, ["--resume", str(tmp_path / "nothing.pt")])
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert "the viewer needs a display" in refused(capsys, run, ["--smoke", "--no-video", "--viewer"])
    assert train.main([*TINY, "--output", str(smoke[0])]) == 2
    assert "is there and not empty; choose a new folder" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("lerobot") is not None, reason="LeRobot's SDK is installed")
def test_without_lerobot_the_offline_arms_name_the_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, tmp_path / "run", [*TINY, "--mode", "offline-32"])
    assert "pip install 'odstream[lerobot]'" in told


def test_without_a_renderer_one_says_no_video(tmp_path: Path) -> None:
    done = module("train", "--smoke", "--output", str(tmp_path / "run"), MUJOCO_GL="disable")
    assert done.returncode == 2
    assert "no picture can be drawn" in done.stderr
    assert "or go on without films: --no-video" in done.stderr
    assert not (tmp_path / "run").exists()


def test_films_show_the_first_scenes(smoke: tuple[Path, str], tmp_path: Path) -> None:
    arguments = ["--checkpoint", str(smoke[0] / "policy.pt"), "--episodes", "2", "--video", "1"]
    done = module("evaluate", *arguments, "--output", str(tmp_path / "evaluation.json"))
    if done.returncode == 2 and "no picture can be drawn" in done.stderr:
        pytest.skip("no renderer here")
    assert done.returncode == 0, done.stderr
    films = read(tmp_path, "evaluation.json")["films"]
    assert 1 <= len(films) <= 2
    assert all(Path(film).stat().st_size > 10_000 for film in films)
