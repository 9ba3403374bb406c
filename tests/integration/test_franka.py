"""The Franka task in MuJoCo: scenes, expert, rejects, pictures, and the task as a producer."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from odstream.envs.franka.camera import Camera
from odstream.envs.franka.environment import INSTRUCTION, FrankaPickPlace
from odstream.envs.franka.expert import SEGMENT_NAMES, FrankaExpert
from odstream.envs.franka.observation import GOAL_POSITION, TCP_POSITION
from odstream.envs.franka.scenario import draw_scenario
from odstream.errors import MissingExtraError
from odstream.producers.base import ProducerContext
from odstream.producers.environment import EnvironmentProducerFactory
from tests.fakes.staging import record

pytestmark = pytest.mark.franka


class Run:
    """The expert in one batch of scenes, until all have ended."""

    def __init__(self, seeds: list[int], **settings: Any) -> None:
        count = len(seeds)
        environment, expert = FrankaPickPlace(count, **settings), FrankaExpert()
        observations, self.info = environment.reset(seed=seeds)
        expert.reset(observations)
        self.frames: list[list[bytes]] = [[] for _ in seeds]
        self.segments: list[list[int]] = [[] for _ in seeds]
        self.ends = np.zeros(count, np.int64)
        while environment.active.any():
            under_way = environment.active
            actions = expert(observations)
            for row in np.flatnonzero(under_way):
                self.frames[row].append(observations[row].tobytes() + actions[row].tobytes())
                self.segments[row].append(int(expert.segments[row]))
            observations, _, terminated, truncated, self.info = environment.step(actions)
            self.ends += terminated | truncated
        environment.close()


def digest(frames: list[bytes]) -> str:
    return hashlib.sha256(b"".join(frames)).hexdigest()


@pytest.mark.parametrize("reset", ["randomised", "reference"])
def test_the_expert_solves_fresh_scenes(reset: str) -> None:
    solved = [Run(list(range(first, first + 25)), reset=reset).info["success"] for first in range(0, 100, 25)]
    assert np.concatenate(solved).mean() >= 0.99


def test_a_scene_is_the_same_in_every_row_and_at_every_batch_size() -> None:
    alone = Run([11]).frames[0]
    crowd = Run([5, 6, 7, 8, 9, 10, 11]).frames
    assert crowd[6] == alone
    assert Run([11, 3]).frames[0] == alone


def test_a_scene_is_the_same_in_every_process() -> None:
    code = (
        "from tests.integration.test_franka import Run, digest\n"
        "print(digest(Run([3, 4]).frames[1]))"
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest(Run([4]).frames[0])


def test_a_row_that_begins_again_does_not_disturb_the_others() -> None:
    undisturbed = Run([1, 2]).frames[0]
    environment, expert = FrankaPickPlace(2), FrankaExpert()
    observations, _ = environment.reset(seed=[1, 2])
    expert.reset(observations)
    seen = []
    for step in range(30):
        if step % 10 == 9:
            again = np.array([False, True])
            observations, _ = environment.reset(seed=[None, 50 + step], options={"reset_mask": again})
            expert.reset(observations, again)
        actions = expert(observations)
        seen.append(observations[0].tobytes() + actions[0].tobytes())
        observations, *_ = environment.step(actions)
    assert seen == undisturbed[:30]


def test_every_row_goes_through_all_segments_in_order_at_its_own_time() -> None:
    segments = Run([1, 2, 3]).segments
    for of_row in segments:
        assert sorted(of_row) == of_row
        assert set(of_row) == set(range(len(SEGMENT_NAMES)))
    assert len({tuple(of_row) for of_row in segments}) == 3


def test_faults_are_the_only_reason_to_fail_and_seeds_choose_them() -> None:
    seeds = list(range(24))
    info = Run(seeds, failure_rate=0.5, max_episode_steps=150).info
    faulty = [draw_scenario(seed, failure_rate=0.5).grip_fails_at is not None for seed in seeds]
    assert 0 < sum(faulty) < len(seeds)
    assert info["grip_failed"].tolist() == faulty
    assert info["success"].tolist() == [not fault for fault in faulty]
    assert info["lifted"].all()
    assert (info["distance"][faulty] > 0.03).all()


def test_an_ended_row_is_idle_and_reports_no_second_end() -> None:
    run = Run([1, 2, 3], max_episode_steps=95)
    assert run.ends.tolist() == [1, 1, 1]
    environment = FrankaPickPlace(2, max_episode_steps=2)
    environment.reset(seed=0)
    still = np.zeros((2, 7), np.float32)
    environment.step(still)
    last, reward, terminated, truncated, _ = environment.step(still)
    assert truncated.all() and not terminated.any() and not environment.active.any()
    not_a_number = np.full((2, 7), np.nan, np.float32)
    idle, reward, terminated, truncated, _ = environment.step(not_a_number)
    np.testing.assert_array_equal(idle, last)
    assert not (terminated.any() or truncated.any() or reward.any())


def test_a_solved_row_terminates_with_a_reward() -> None:
    environment, expert = FrankaPickPlace(1), FrankaExpert()
    observations, _ = environment.reset(seed=1)
    expert.reset(observations)
    rewards, terminated = np.zeros(1), np.zeros(1, np.bool_)
    while environment.active.any():
        assert not rewards.any()
        observations, rewards, terminated, _, info = environment.step(expert(observations))
    assert rewards[0] == 1.0 and terminated[0] and info["success"][0] and info["distance"][0] < 0.03


def test_one_seed_for_the_batch_counts_upwards() -> None:
    one, _ = FrankaPickPlace(3).reset(seed=7)
    other, _ = FrankaPickPlace(3).reset(seed=[7, 8, 9])
    np.testing.assert_array_equal(one, other)


def test_scenes_without_a_seed_differ() -> None:
    observations, _ = FrankaPickPlace(3).reset()
    assert len({row.tobytes() for row in observations[:, GOAL_POSITION]}) == 3


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"num_envs": 0}, "num_envs must be a positive integer, got 0"),
        ({"num_envs": True}, "num_envs must be a positive integer, got True"),
        ({"max_episode_steps": 1.5}, "max_episode_steps must be a positive integer"),
        ({"failure_rate": 1.5}, r"failure_rate must be a number from 0 to 1, got 1\.5"),
        ({"failure_rate": float("nan")}, "failure_rate must be a number from 0 to 1, got nan"),
        ({"reset": "easy"}, "reset must be one of randomised, reference, got 'easy'"),
        ({"render_mode": "human"}, "render_mode must be None or 'rgb_array', got 'human'"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FrankaPickPlace(**settings)


@pytest.mark.parametrize(
    ("seed", "options", "complaint"),
    [
        ([1], None, r"seed must hold one entry per row \(2\), got 1"),
        ([1, -1], None, "seed must be at least 0, got -1 for row 1"),
        (1, {"reset_mask": np.zeros(2, np.bool_)}, r"options\['reset_mask'\] must be"),
        (1, {"reset_mask": np.ones(2)}, r"options\['reset_mask'\] must be"),
        (1, {"mask": np.ones(2, np.bool_)}, r"options may hold 'reset_mask' only, got \['mask'\]"),
    ],
)
def test_a_reset_that_does_not_fit_is_refused_and_changes_nothing(seed: Any, options: Any, complaint: str) -> None:
    environment = FrankaPickPlace(2)
    with pytest.raises(ValueError, match=complaint):
        environment.reset(seed=seed, options=options)
    assert not environment.active.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.01])
def test_an_action_out_of_range_is_refused_and_steps_nothing(bad: float) -> None:
    environment = FrankaPickPlace(2)
    before, _ = environment.reset(seed=0)
    actions = np.zeros((2, 7), np.float32)
    actions[1, 3] = bad
    with pytest.raises(ValueError, match=r"row 1 has arm.turn_x = .*finite and within \[-1.0, 1.0\]"):
        environment.step(actions)
    with pytest.raises(ValueError, match=r"actions must have shape \(2, 7\), got \(7,\)"):
        environment.step(actions[0])
    actions[1, 3] = 0.0
    after, *_ = environment.step(actions)
    assert np.abs(after - before)[:, TCP_POSITION].max() < 0.01


@pytest.fixture
def renderer() -> Iterator[None]:
    try:
        Camera(8, 8).close()
    except MissingExtraError as error:
        pytest.skip(str(error))
    yield


@pytest.mark.usefixtures("renderer")
def test_a_picture_shows_the_red_cube_and_the_green_goal() -> None:
    environment = FrankaPickPlace(2, render_mode="rgb_array")
    environment.reset(seed=3)
    pictures: Any = environment.render()
    environment.close()
    assert len(pictures) == 2
    for picture in pictures:
        assert picture.shape == (256, 256, 3) and picture.dtype == np.uint8
        red, green, blue = picture.astype(int).transpose(2, 0, 1)
        assert ((red > 120) & (green < 80) & (blue < 80)).sum() > 50
        assert ((green > 100) & (red < 80) & (blue < 110)).sum() > 50
    assert not np.array_equal(*pictures)


@pytest.mark.usefixtures("renderer")
def test_the_same_pose_gives_the_same_picture() -> None:
    environment = FrankaPickPlace(1)
    environment.reset(seed=3)
    pose = environment.pose(0)
    with Camera(32, 32) as camera:
        first = camera.picture(pose)
        np.testing.assert_array_equal(first, camera.picture(pose))
        camera.close()


def test_a_missing_renderer_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr("odstream.envs.franka.camera.find_library", lambda name: None)
    monkeypatch.setattr("sys.platform", "linux")
    environment = FrankaPickPlace(1)
    environment.reset(seed=3)
    with pytest.raises(MissingExtraError, match=r"apt-get install libegl1 .*neither libEGL nor libOSMesa"):
        environment.picture(0)
    environment.step(np.zeros((1, 7), np.float32))


def test_a_picture_of_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="width_px must be 1 to 1024, got 0"):
        Camera(0, 8)


def produce(**settings: Any) -> Any:
    factory = EnvironmentProducerFactory(
        {
            "factory": "odstream.envs.franka.environment:FrankaPickPlace",
            "expert": "odstream.envs.franka.expert:FrankaExpert",
            "success": "success",
            "instruction": INSTRUCTION,
            "num_envs": 4,
            "seed": 1,
            **settings,
        }
    )
    context = ProducerContext(max_episode_steps=150, max_generation_attempts=20, action_semantics="policy_request")
    producer = factory(context)
    try:
        return producer.spec, record(producer, 6, max_episode_steps=150)
    finally:
        producer.close()


def test_a_producer_records_what_a_policy_could_have_commanded() -> None:
    spec, recorded = produce()
    assert (spec.state_dim, spec.action_dim, spec.step_dt) == (51, 7, 0.05)
    assert len(recorded.accepted) == 6
    for episode, frames in recorded.accepted:
        assert episode.instruction == INSTRUCTION
        assert tuple(segment.name for segment in episode.segments) == SEGMENT_NAMES
        assert episode.segments[-1].end == episode.length
        assert np.abs(frames[("actions",)]).max() <= 1.0
        assert frames[("rewards",)].sum() == 1.0
        replay_one(episode.seed, frames)


def replay_one(seed: int, frames: dict[tuple[str, ...], NDArray[Any]]) -> None:
    """Play recorded actions in the scene of their seed: the observations come out the same."""
    environment = FrankaPickPlace(1)
    observations, info = environment.reset(seed=seed)
    for recorded, action in zip(frames[("obs",)], frames[("actions",)], strict=True):
        np.testing.assert_array_equal(observations[0], recorded)
        observations, _, _, _, info = environment.step(action[None])
    assert info["success"][0]


def test_a_producer_tries_scenes_again_that_failed() -> None:
    _, recorded = produce(kwargs={"failure_rate": 0.5})
    assert len(recorded.accepted) == 6
    assert recorded.failures
    assert all("'success'" in failure or "max_episode_steps" in failure for failure in recorded.failures)


def test_a_producer_process_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "import odstream.envs.franka.environment, odstream.envs.franka.expert, odstream.producers.environment\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
