"""The parts of the Franka task that need no physics."""

from __future__ import annotations

import numpy as np
import pytest

from odstream.envs.franka import observation
from odstream.envs.franka.expert import SEGMENT_NAMES, WAYPOINTS, FrankaExpert
from odstream.envs.franka.observation import OBSERVATION_DIM, SceneState, observe, rotation_columns
from odstream.envs.franka.scenario import check_reset_kind, draw_scenario
from odstream.envs.franka.scene import CUBE_HALF_SIZE_M
from odstream.envs.franka.success import SuccessJudge

pytestmark = pytest.mark.franka

SLICES = {name: value for name, value in vars(observation).items() if isinstance(value, slice)}


def placed_state() -> SceneState:
    state = SceneState.zeros(2)
    state.goal[:] = state.cube_position[:] = [0.5, 0.2, CUBE_HALF_SIZE_M]
    state.tcp_position[:] = [0.5, 0.2, 0.15]
    state.joint_positions[:, 7:] = 0.04
    return state


def test_every_feature_belongs_to_exactly_one_named_slice() -> None:
    features = [index for part in SLICES.values() for index in range(OBSERVATION_DIM)[part]]
    assert sorted(features) == list(range(OBSERVATION_DIM))
    assert len(SLICES) == 10


def test_a_rotation_survives_being_observed() -> None:
    state = SceneState.zeros(1)
    rotation = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    state.tcp_rotation[0] = rotation.ravel()
    columns = rotation_columns(observe(state)[:, observation.TCP_ROTATION])
    np.testing.assert_array_equal(columns[0].T, rotation)


def test_a_scenario_is_a_function_of_its_seed() -> None:
    first, again, other = draw_scenario(7), draw_scenario(7), draw_scenario(8)
    np.testing.assert_array_equal(first.cube, again.cube)
    np.testing.assert_array_equal(first.joints, again.joints)
    assert not np.array_equal(first.cube, other.cube)


@pytest.mark.parametrize(
    ("reset", "cube_m", "yaw_deg", "goal_m"),
    [("randomised", 0.10, 40.0, (0.08, 0.05)), ("reference", 0.04, 0.0, (0, 0))],
)
def test_scenarios_fill_their_range_and_stay_within_it(
    reset: str, cube_m: float, yaw_deg: float, goal_m: tuple[float, float]
) -> None:
    scenes = [draw_scenario(seed, reset=check_reset_kind(reset)) for seed in range(400)]
    cube = np.ptp([scene.cube for scene in scenes], axis=0) / 2
    goal = np.ptp([scene.goal for scene in scenes], axis=0) / 2
    yaw = np.rad2deg([scene.cube_yaw for scene in scenes])
    seen = np.array([*cube[:2], np.ptp(yaw) / 2, *goal[:2]])
    wanted = np.array([cube_m, cube_m, yaw_deg, *goal_m])
    assert (0.95 * wanted <= seen).all()
    assert (seen <= wanted + 1e-12).all()


def test_faults_do_not_move_the_scene_and_come_at_the_rate_asked_for() -> None:
    plain = [draw_scenario(seed) for seed in range(1000)]
    faulty = [draw_scenario(seed, failure_rate=0.3) for seed in range(1000)]
    assert all(np.array_equal(one.goal, other.goal) for one, other in zip(plain, faulty, strict=True))
    assert all(scene.grip_fails_at is None for scene in plain)
    assert sum(scene.grip_fails_at is not None for scene in faulty) == pytest.approx(300, abs=45)


def test_an_unknown_reset_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="reset must be one of randomised, reference, got 'easy'"):
        check_reset_kind("easy")


def test_a_cube_that_was_never_lifted_is_no_success() -> None:
    judge, state = SuccessJudge(2, 0.05), placed_state()
    judge.lifted[1] = True
    for _ in range(10):
        solved = judge.judge(state, np.ones(2, np.bool_))
    assert solved.tolist() == [False, True]


def test_success_takes_a_third_of_a_second_of_rest() -> None:
    judge, state = SuccessJudge(2, 0.05), placed_state()
    judge.lifted[:] = True
    everyone = np.ones(2, np.bool_)
    assert not any(judge.judge(state, everyone).any() for _ in range(5))
    assert judge.judge(state, everyone).all()
    judge.reset(0)
    assert judge.judge(state, everyone).tolist() == [False, True]


def test_an_idle_scene_does_not_become_a_success() -> None:
    judge, state = SuccessJudge(2, 0.05), placed_state()
    judge.lifted[:] = True
    for _ in range(10):
        solved = judge.judge(state, np.array([True, False]))
    assert solved.tolist() == [True, False]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cube_position", [0.5, 0.235, 0.025]),
        ("tcp_position", [0.5, 0.2, 0.1]),
        ("cube_velocity", [0.06, 0, 0, 0, 0, 0]),
    ],
)
def test_a_cube_off_the_goal_or_moving_or_held_is_no_success(field: str, value: list[float]) -> None:
    judge, state = SuccessJudge(2, 0.05), placed_state()
    judge.lifted[:] = True
    getattr(state, field)[0] = value
    for _ in range(10):
        solved = judge.judge(state, np.ones(2, np.bool_))
    assert solved.tolist() == [False, True]


def test_the_expert_commands_what_a_policy_could_command() -> None:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(4, OBSERVATION_DIM)).astype(np.float32)
    expert = FrankaExpert()
    expert.reset(observations)
    actions = expert(observations)
    assert actions.dtype == np.float32
    assert actions.shape == (4, 7)
    assert np.abs(actions).max() <= 1.0
    assert np.linalg.norm(actions[:, :3], axis=1).max() <= 1.0 + 1e-6


def test_only_rows_that_begin_start_over() -> None:
    observations = np.zeros((3, OBSERVATION_DIM), np.float32)
    expert = FrankaExpert()
    expert.reset(observations)
    expert.segments[:] = 5
    expert.reset(observations, np.array([False, True, False]))
    assert expert.segments.tolist() == [5, 0, 5]


def test_segments_have_eight_different_names_and_an_instruction_each() -> None:
    assert len(set(SEGMENT_NAMES)) == 8
    assert all(waypoint.instruction for waypoint in WAYPOINTS)


def test_cross_products_are_those_of_numpy_to_the_bit() -> None:
    left, right = np.random.default_rng(0).normal(size=(2, 8, 3, 3))
    np.testing.assert_array_equal(observation.cross(left, right), np.cross(left, right))
