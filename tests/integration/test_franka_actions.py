"""The Franka task's recorded actions: they bring the whole episode back, and bad ones reject an attempt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.envs.franka.actions import ACTION_CONTRACTS, EXPERT_ACTION_SPEC, JOINT_NAMES
from odstream.envs.franka.demo import DemoCfg
from odstream.envs.franka.environment import FrankaPickPlace
from odstream.envs.franka.expert import FrankaExpert
from odstream.envs.franka.observation import TCP_POSITION
from odstream.envs.franka.scenario import draw_scenario
from odstream.envs.franka.schema import SCHEMA
from odstream.envs.franka.slowed import SlowedFranka
from odstream.errors import EnvironmentContractError
from odstream.producers.actions import ControllerAction
from odstream.producers.base import ProducerContext
from odstream.producers.environment import EnvironmentProducerFactory
from tests.fakes.staging import Recorded, record

pytestmark = pytest.mark.franka

OBS, ACTIONS, REWARDS = ("obs",), ("actions",), ("rewards",)
REQUESTS = {
    "state_dim": 51,
    "action_dim": 7,
    "action_semantics": "policy_request",
    "action_contracts": ("eef_pose.relative@1", "gripper.parallel@1"),
}
T = 150


def gym_config(expert: Any = FrankaExpert, *, num_envs: int = 4, **kwargs: Any) -> dict[str, Any]:
    return {
        "factory": FrankaPickPlace,
        "kwargs": kwargs,
        "expert": expert,
        "success": "success",
        "num_envs": num_envs,
        "seed": 1,
    }


def produced(semantics: Any, expert: Any = FrankaExpert, *, count: int = 4, **kwargs: Any) -> Recorded:
    context = ProducerContext(max_episode_steps=T, max_generation_attempts=20, action_semantics=semantics)
    producer = EnvironmentProducerFactory(gym_config(expert, **kwargs))(context)
    try:
        return record(producer, count, max_episode_steps=T)
    finally:
        producer.close()


def replay(seed: int | None, frames: dict[Any, NDArray[Any]], act: Any, **kwargs: Any) -> None:
    """Act in the scene of a seed: observations and rewards are those of ``frames``, to the bit, and it is solved."""
    environment = FrankaPickPlace(1, **kwargs)
    observations, info = environment.reset(seed=seed)
    for seen, action, reward in zip(frames[OBS], frames[ACTIONS], frames[REWARDS], strict=True):
        np.testing.assert_array_equal(observations[0], seen)
        observations, rewards, _, _, info = environment.step(act(environment, action[None]))
        assert np.float32(rewards[0]) == reward
    assert info["success"][0]


@pytest.mark.spec("ENG-20", "CTX-05")
def test_recorded_requests_through_the_manager_give_the_episode_back() -> None:
    """Field case W11."""
    result = produced("policy_request", failure_rate=0.5)
    assert result.failures
    for episode, frames in result.accepted:
        assert frames[ACTIONS].shape == (episode.length, 7) and frames[ACTIONS].dtype == np.float32
        replay(episode.seed, frames, lambda environment, request: environment.action_manager.process(request))
        replay(episode.seed, frames, lambda _, request: request, failure_rate=0.5)


@pytest.mark.spec("ENG-20")
def test_recorded_commands_give_the_episode_back() -> None:
    for episode, frames in produced("expert_controller_command").accepted:
        assert frames[ACTIONS].shape == (episode.length, 8)
        replay(episode.seed, frames, lambda _, row: EXPERT_ACTION_SPEC.decode(row))


@pytest.mark.spec("ENG-20")
def test_a_command_in_float64_is_the_one_that_the_request_asked_for() -> None:
    """In float32, as it is stored and then executed, it is that rounded: another number in the last digits."""
    environment, twin, expert = FrankaPickPlace(3), FrankaPickPlace(3), FrankaExpert()
    observations, _ = environment.reset(seed=0)
    twin.reset(seed=0)
    expert.reset(observations)
    for _ in range(20):
        request = expert(observations)
        command = twin.action_manager.process(request)
        assert isinstance(command, ControllerAction) and command.joint_names == JOINT_NAMES
        observations, *_ = environment.step(request)
        same, *_ = twin.step(command)
        np.testing.assert_array_equal(observations, same)


@pytest.mark.parametrize(
    "command",
    [
        ControllerAction(np.zeros(8), JOINT_NAMES),
        ControllerAction(np.zeros((3, 8)), JOINT_NAMES),
        ControllerAction(np.zeros((2, 8)), JOINT_NAMES[::-1]),
        ControllerAction(np.zeros((2, 8)), JOINT_NAMES, np.zeros((2, 8))),
    ],
)
def test_a_command_that_does_not_fit_steps_nothing(command: ControllerAction) -> None:
    environment = FrankaPickPlace(2)
    before, _ = environment.reset(seed=0)
    with pytest.raises(ValueError, match=r"a command must be positions \(2, 8\) of the joints \['joint1', "):
        environment.step(command)
    after, *_ = environment.step(environment.action_manager.process(np.zeros((2, 7))))
    assert np.abs(after - before)[:, TCP_POSITION].max() < 0.01


class Slips(FrankaExpert):
    """The expert, except that it asks row 0 for too much at step 30 of its first attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._calls, self.bad = 0, 1.7949

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        requests = super().__call__(observations)
        if self._calls == 30:
            requests[0, 3] = self.bad
        self._calls += 1
        return requests


@pytest.mark.spec("ENG-20")
def test_a_bad_request_rejects_one_attempt_and_leaves_the_others_as_they_are() -> None:
    """Field case N08."""
    slipped, clean = produced("policy_request", Slips), produced("policy_request")
    assert slipped.failures == [
        "the expert requested arm.turn_x = 1.7949 (element 3), which must be finite and within [-1.0, 1.0]"
    ]
    expected = {episode.seed: frames for episode, frames in clean.accepted}
    others = [(frames, expected[episode.seed]) for episode, frames in slipped.accepted if episode.seed in expected]
    assert len(others) == 3
    for frames, same in others:
        for key in frames:
            np.testing.assert_array_equal(frames[key], same[key])


@pytest.mark.spec("ENG-14")
def test_a_perturbed_expert_changes_how_fast_episodes_come_and_not_which() -> None:
    """Field case W13: failures are counted, and every published episode is a success."""
    seeds = 40
    result = produced("policy_request", count=seeds, failure_rate=0.2, num_envs=8)
    assert len(result.accepted) == seeds
    for episode, frames in result.accepted:
        assert frames[REWARDS].sum() == 1.0 and frames[REWARDS][-1] == 1.0
        assert episode.seed is not None and draw_scenario(episode.seed, failure_rate=0.2).grip_fails_at is None
    for episode, frames in result.accepted[:4]:
        replay(episode.seed, frames, lambda _, request: request)  # as it is without failures
    assert 2 <= len(result.failures) <= 22  # 10 are expected; four standard deviations
    faulty = [
        draw_scenario(episode.seed, failure_rate=0.2).grip_fails_at is not None
        for episode in result.episodes
        if episode.seed is not None and not episode.accepted
    ]
    assert all(faulty)


@pytest.mark.spec("ENG-19")
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"action_contracts": ACTION_CONTRACTS[::-1]},
            "are configured as .*'gripper.parallel@1', 'eef",
        ),
        ({"action_contracts": ("eef_pose.relative@2", ACTION_CONTRACTS[1])}, "eef_pose.relative@2.* has .*relative@1"),
        ({"action_dim": 8}, "action_dim is configured as 8, .* width 7"),
        ({"state_dim": 9}, "state_dim is configured as 9, .* width 51"),
        ({"action_semantics": "expert_controller_command", "action_contracts": None}, "configured as 7, .* width 8"),
    ],
)
def test_the_shipped_task_is_compared_with_its_configuration(changes: dict[str, Any], complaint: str) -> None:
    cfg = OnlineDataEngineCfg(gym_config=gym_config(), buffer_size=4, **(REQUESTS | changes))
    with pytest.raises(EnvironmentContractError, match=complaint):
        OnlineDataEngine(cfg).start()


def test_every_shipped_configuration_says_what_it_records() -> None:
    from odstream.cli.task import read_engine

    for cfg in (DemoCfg().engine(), read_engine("franka")):
        assert {name: getattr(cfg, name) for name in REQUESTS} == REQUESTS
    assert SCHEMA["action"]["semantics"] == "policy_request"
    names = [name for item in FrankaPickPlace(1).action_manager.descriptors for name in item.feature_names]
    assert SCHEMA["action"]["names"] == names
    assert tuple(SCHEMA["action"]["contracts"]) == ACTION_CONTRACTS


def test_settings_of_the_action_manager_scale_a_request() -> None:
    small = FrankaPickPlace(1, action_config={"translation_scale_m": 0.01})
    assert small.action_manager.descriptors[0].settings["translation_scale_m"] == 0.01
    with pytest.raises(ValueError, match="action_config may hold translation_scale_m, .* got 'scale'"):
        FrankaPickPlace(1, action_config={"scale": 1})
    with pytest.raises(ValueError, match="damping must be finite and greater than 0, got 0"):
        SlowedFranka(1, seconds_per_step=0.001, action_config={"damping": 0.0})
