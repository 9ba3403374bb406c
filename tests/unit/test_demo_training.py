"""The training loop, on streams that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from odstream.envs.franka.environment import FrankaPickPlace
from odstream.envs.franka.policy import ChunkPolicy, Context, Learner, LearnerCfg, PolicyCfg
from odstream.envs.franka.training import Stopwatch, Training, TrainingCfg
from odstream.errors import DataUnavailableError

pytestmark = pytest.mark.franka


class MadeUpStream:
    """Contexts of noise; every third draw finds no data."""

    def __init__(self, *, empty: bool = False) -> None:
        self.refills = 0
        self._draws = 0
        self._empty = empty

    def sample_batch_with_context(self, batch_size: int, history_length: int, prediction_horizon: int) -> Context:
        self._draws += 1
        if self._empty or self._draws % 3 == 0:
            raise DataUnavailableError("nothing yet")
        frames = history_length + prediction_horizon - 1
        mask = torch.ones(batch_size, frames, dtype=torch.bool)
        obs, actions = torch.randn(batch_size, frames, 51), torch.rand(batch_size, frames, 7)
        return {"obs": obs, "actions": actions, "valid": mask, "loss_mask": mask}

    def request_refill(self) -> int:
        self.refills += 1
        return self.refills

    def get_stats(self) -> Mapping[str, Any]:
        return {"successful_episodes": 5}


def make_training(stream: MadeUpStream, **settings: Any) -> Training:
    learner = Learner(ChunkPolicy(PolicyCfg(observation_dim=51, action_dim=7, width=16)), LearnerCfg())
    cfg = TrainingCfg(batch_size=4, scenes=1, final_scenes=2, **settings)
    return Training(stream, learner, cfg, lambda count: FrankaPickPlace(count, max_episode_steps=4))


def test_the_policy_is_evaluated_where_asked_and_once_more_at_the_end() -> None:
    stream = MadeUpStream()
    training = make_training(stream, updates=6, evaluate_at=(0, 4))
    updates: list[int] = []
    training.run(lambda update, loss: updates.append(update), lambda point: None)
    assert updates == [1, 2, 3, 4, 5, 6]
    assert [point.updates for point in training.curve] == [0, 4, 6]
    assert [len(point.evaluation.success) for point in training.curve] == [1, 1, 2]
    assert training.curve[0].episodes == 5
    assert stream.refills == 6  # production is asked for all the time


def test_waiting_for_data_is_told_from_fetching_it() -> None:
    training = make_training(MadeUpStream(), updates=6, evaluate_at=())
    training.run(lambda update, loss: None, lambda point: None)
    assert all(training.stopwatch.seconds[state] > 0 for state in ("wait", "fetch", "compute", "evaluate"))


def test_training_ends_in_time_on_a_slow_machine() -> None:
    training = make_training(MadeUpStream(), updates=1_000_000, evaluate_at=(), max_training_s=0.05)
    training.run(lambda update, loss: None, lambda point: None)
    assert 0 < training.updates < 1_000_000


def test_a_stream_that_stays_dry_is_an_error_that_names_the_setting() -> None:
    training = make_training(MadeUpStream(empty=True), updates=1, evaluate_at=(), data_timeout_s=0.02)
    with pytest.raises(TimeoutError, match=r"data_timeout_s=0\.02"):
        training.run(lambda update, loss: None, lambda point: None)


@pytest.mark.parametrize("settings", [{"updates": 0}, {"max_training_s": 0.0}, {"data_timeout_s": float("nan")}])
def test_a_training_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        TrainingCfg(**settings)


def test_a_stopwatch_counts_also_what_fails() -> None:
    now = iter([1.0, 3.5])
    stopwatch = Stopwatch(clock=lambda: next(now))
    with pytest.raises(RuntimeError), stopwatch.measure("compute"):
        raise RuntimeError
    assert stopwatch.seconds["compute"] == 2.5
    assert stopwatch.training_s == 2.5
