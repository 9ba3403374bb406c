"""The evaluator's rules; that it runs is tested from outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.ods.simple_bc_demo import video
from examples.ods.simple_bc_demo.evaluate import (
    DEVELOPMENT_SEED,
    HELD_OUT_SCENES,
    held_out,
    main,
    rates,
    scenes_to_film,
)
from odstream.envs.franka.environment import FrankaPickPlace
from odstream.envs.franka.evaluate import EVALUATION_SEED, Evaluation, evaluate
from odstream.envs.franka.policy import ChunkPolicy, PolicyCfg, save_policy
from odstream.envs.franka.simulation import Pose
from odstream.errors import MissingExtraError

pytestmark = [pytest.mark.franka, pytest.mark.spec("APP-04")]


def policy() -> ChunkPolicy:
    import torch

    torch.manual_seed(3)
    return ChunkPolicy(PolicyCfg(observation_dim=51, action_dim=7))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_policy(policy(), tmp_path / "policy.pt")
    return tmp_path / "policy.pt"


def test_development_scenes_are_not_held_out_ones() -> None:
    assert DEVELOPMENT_SEED >= EVALUATION_SEED + HELD_OUT_SCENES


def test_each_scene_of_a_batch_ends_as_it_does_alone() -> None:
    together = held_out(policy(), 4, "randomised")
    for scene in range(4):
        alone = evaluate(policy(), FrankaPickPlace(1), first_seed=EVALUATION_SEED + scene)
        assert alone.distance_m[0] == together.distance_m[scene]


def test_rates_come_with_their_counts_and_intervals() -> None:
    found = rates(Evaluation(np.array([1, 1, 1, 0], bool), np.array([0.005, 0.015, 0.025, 0.001]), np.ones(4, bool)))
    assert [(name, entry["solved"]) for name, entry in found.items()] == [("3_cm", 3), ("2_cm", 2), ("1_cm", 1)]
    assert found["3_cm"]["rate"] == 0.75
    assert found["3_cm"]["interval_95"] == pytest.approx((0.3006, 0.9544), abs=1e-4)


@pytest.mark.parametrize(
    ("success", "count", "scenes"),
    [
        ([True] * 5, 2, [0, 1]),
        ([True, False, True, True], 2, [0, 1]),
        ([True, True, True, False, False], 2, [0, 1, 3]),
        ([True, False], 0, []),
    ],
)
def test_a_failure_is_among_the_films_if_there_is_one(success: list[bool], count: int, scenes: list[int]) -> None:
    assert scenes_to_film(success, count) == scenes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "1001"], "episodes must be 1 to 1000, as many as there are, got 1001"),
        (["--episodes", "0"], "episodes must be 1 to 1000"),
        (["--episodes", "3", "--video", "4"], "video must be 0 to episodes=3, got 4"),
    ],
)
def test_scenes_that_do_not_exist_are_refused(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    try:
        code: object = main(["--checkpoint", str(checkpoint), *arguments])
    except SystemExit as error:  # tyro tells by itself
        code = error.code
    told = capsys.readouterr()
    assert code == 2
    assert message in " ".join((told.out + told.err).replace("│", " ").split())


def test_a_missing_or_foreign_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--checkpoint", str(tmp_path / "nothing.pt")]) == 2
    (tmp_path / "text.pt").write_text("text")
    assert main(["--checkpoint", str(tmp_path / "text.pt")]) == 2
    told = capsys.readouterr().err
    assert "nothing.pt" in told
    assert "text.pt is no checkpoint" in told


def test_without_a_renderer_films_are_refused_before_anything_runs(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_camera(*_: int) -> None:
        raise MissingExtraError("no picture can be drawn: install a software renderer")

    monkeypatch.setattr(video, "Camera", no_camera)
    assert main(["--checkpoint", str(checkpoint), "--video", "1"]) == 2
    assert "no picture can be drawn: install a software renderer" in capsys.readouterr().err
    assert not (checkpoint.parent / "held-out.json").exists()


def test_without_a_display_the_viewer_is_refused(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["--checkpoint", str(checkpoint), "--viewer"]) == 2
    assert "the viewer needs a display" in capsys.readouterr().err
    monkeypatch.setenv("DISPLAY", ":4711")
    assert main(["--checkpoint", str(checkpoint), "--viewer"]) == 2
    assert "the viewer needs a display: :4711 cannot be opened" in capsys.readouterr().err


def test_films_need_a_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"need imageio-ffmpeg \(MP4\) or Pillow \(GIF\).*odstream\[video\]"):
        video.require_film()


def test_a_film_without_ffmpeg_is_a_gif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")

    class FakeCamera:
        def __init__(self, width: int, height: int) -> None:
            self.shape = (height, width, 3)

        def __enter__(self) -> FakeCamera:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def picture(self, pose: Pose) -> np.ndarray:
            return np.full(self.shape, pose.goal[0], np.uint8)

    monkeypatch.setattr(video, "Camera", FakeCamera)
    monkeypatch.setattr(video, "find_spec", lambda name: None if name == "imageio_ffmpeg" else object())
    poses = [Pose(np.zeros(1), np.full(3, 10.0 * step)) for step in range(8)]
    file = video.write_film(poses, tmp_path / "scene.0")
    assert file == tmp_path / "scene.0.gif"
    with image.open(file) as film:
        assert film.size == (video.SIZE_PX, video.SIZE_PX)
        assert film.n_frames >= 4
