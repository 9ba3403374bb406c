"""Recorded actions through the whole engine: compared before the first step, stored as chosen, bad ones rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from odstream.datasets import OnlineDataSource, SequenceSpecCfg
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.errors import DemonstrationError, EnvironmentContractError
from tests.fakes.arms import STEPS, ArmEnv, ArmVectorEnv, ArrayRobot, Commands, Requests, arm_manager
from tests.fakes.mismatches import COMMANDS, MISMATCHES, REQUESTS
from tests.fakes.producers import Script


def engine(
    expert: Any, factory: Any = ArmEnv, *, kwargs: Any = None, num_envs: int = 2, **cfg: Any
) -> OnlineDataEngine:
    gym_config = {"factory": factory, "kwargs": kwargs or {}, "expert": expert, "num_envs": num_envs, "seed": 0}
    return OnlineDataEngine(OnlineDataEngineCfg(gym_config=gym_config, buffer_size=4, max_episode_steps=8, **cfg))


@pytest.mark.spec("ENG-19", "ENG-20")
@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_is_refused_before_the_first_transition(name: str, tmp_path: Path) -> None:
    mismatch, log = MISMATCHES[name], tmp_path / "steps"
    gym_config = mismatch.gym_config
    if gym_config["factory"] is ArmEnv:
        gym_config["kwargs"] = {**mismatch.kwargs, "log": str(log)}
    with pytest.raises(EnvironmentContractError, match=mismatch.complaint):
        OnlineDataEngine(OnlineDataEngineCfg(gym_config=gym_config, buffer_size=4, **mismatch.cfg)).start()
    assert not log.exists()


def test_what_agrees_steps(tmp_path: Path) -> None:
    """The log of the test above would show a step."""
    log = tmp_path / "steps"
    with engine(Requests(), num_envs=1, kwargs={"log": str(log)}, **REQUESTS):
        assert len(log.read_text()) >= 4 * STEPS


@pytest.mark.spec("ENG-20")
def test_a_producer_of_one_s_own_must_say_that_it_records_requests() -> None:
    cfg = OnlineDataEngineCfg(buffer_size=4, **(REQUESTS | {"state_dim": 3}))
    with pytest.raises(EnvironmentContractError, match="'policy_request', the environment records 'expert_contr"):
        OnlineDataEngine(cfg, producer=Script()).start()


@pytest.mark.spec("ENG-20", "CTX-05")
@pytest.mark.parametrize("factory", [ArmEnv, ArmVectorEnv])
def test_published_requests_replayed_through_the_manager_give_the_episode_back(factory: Any) -> None:
    """Field case W11."""
    with engine(Requests(), factory, **REQUESTS) as running:
        batch = running.sample_batch(16, STEPS)
    assert batch["actions"].dtype == torch.float32 and batch["actions"].shape == (16, STEPS, 3)
    for obs, actions, rewards in zip(*(batch[key].numpy() for key in ("obs", "actions", "rewards")), strict=True):
        robot = ArrayRobot(1)
        robot.positions[0] = obs[0, 2:]
        for seen, request, reward in zip(obs, actions, rewards, strict=True):
            np.testing.assert_array_equal(robot.positions[0], seen[2:])
            robot.positions[0] = arm_manager(robot).process(request).positions
            assert np.float32(robot.positions[0, 0]) == reward


@pytest.mark.spec("ENG-14", "ENG-20")
@pytest.mark.parametrize("factory", [ArmEnv, ArmVectorEnv])
def test_attempts_with_bad_requests_are_counted_and_never_published(factory: Any) -> None:
    """Field cases N08, W13."""
    with engine(Requests(np.nan, at=2, row=0), factory, **REQUESTS) as running:
        batch = running.sample_batch(64, STEPS)
        stats = running.get_stats()
    assert stats["failed_episodes"] == (1 if factory is ArmVectorEnv else 2)
    assert stats["successful_episodes"] == 4
    assert torch.isfinite(batch["actions"]).all() and batch["actions"].abs().max() <= 1.0


@pytest.mark.spec("ENG-14", "ENG-20")
def test_requests_that_are_always_bad_end_production_with_value_and_bound() -> None:
    """Field case N08."""
    with pytest.raises(DemonstrationError, match=r"3 attempts .*arm.b = 1.7949 \(element 1\).* within \[-1.0, 1.0\]"):
        engine(Requests(1.7949, at=1, attempts=99), num_envs=1, **REQUESTS).start()


@pytest.mark.spec("ENG-20")
def test_a_command_is_stored_only_as_a_command() -> None:
    """Field case N08."""
    with pytest.raises(EnvironmentContractError, match="gave a ControllerAction, which is no policy request"):
        engine(Commands(), **REQUESTS).start()
    with engine(Commands(), **COMMANDS) as running:
        batch = running.sample_batch(8, STEPS)
    assert (batch["actions"][..., 1] == np.float32(1.7949)).all()


@pytest.mark.spec("ENG-20", "SRC-02")
def test_a_source_must_declare_what_the_engine_records() -> None:
    schema: dict[str, Any] = {
        "observation": {"shape": [5], "dtype": "float64"},
        "action": {"names": ["a", "b", "g"], "dtype": "float32", "semantics": "policy_request", "step_dt": 0.05},
    }
    with engine(Requests(), include_provenance=True, **COMMANDS) as running:
        with pytest.raises(ValueError, match="is 'policy_request', the engine records action_semantics='expert_contr"):
            OnlineDataSource(running, schema=schema)
    with engine(Requests(), include_provenance=True, **REQUESTS) as running:
        context = OnlineDataSource(running, schema=schema).sample_context(4, SequenceSpecCfg(2, 2))
        assert context["actions"].shape == (4, 3, 3)


def test_settings_of_the_action_manager_reach_the_environment() -> None:
    with engine(Requests(), action_config={"scale": 0.25}, **REQUESTS) as running:
        assert running.rollout_spec is not None
        assert running.rollout_spec.action_descriptors[0].settings == {"scale": (0.25, 0.25)}
