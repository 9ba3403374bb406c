"""What recorded actions mean, as an environment says, against what the engine was configured for."""

from __future__ import annotations

import pytest

from odstream.cache.layout import CacheLayout
from odstream.engine import OnlineDataEngineCfg
from odstream.engine.contract import layout_for
from odstream.errors import EnvironmentContractError
from odstream.producers.base import ProducerContext
from odstream.producers.environment import GymEnvironmentProducer
from tests.fakes.mismatches import COMMANDS, MISMATCHES, REQUESTS, Mismatch


def layout(mismatch: Mismatch) -> CacheLayout:
    cfg = OnlineDataEngineCfg(gym_config=mismatch.gym_config, **mismatch.cfg)
    context = ProducerContext(max_episode_steps=9, max_generation_attempts=1, action_semantics=cfg.action_semantics)
    producer = GymEnvironmentProducer(cfg.gym_config, context)
    producer.close()
    return layout_for(cfg, producer.spec)


@pytest.mark.spec("ENG-19", "ENG-20")
@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_is_refused_and_both_sides_are_named(name: str) -> None:
    with pytest.raises(EnvironmentContractError, match=MISMATCHES[name].complaint):
        layout(MISMATCHES[name])


@pytest.mark.spec("ENG-19", "ENG-20")
def test_what_agrees_is_stored_under_its_own_width() -> None:
    """A request may have another width than the state and the command."""
    assert layout(Mismatch(REQUESTS, {}, "")).fields[1].shape == (3,)
    assert layout(Mismatch(COMMANDS, {}, "")).fields[1].shape == (3,)
    assert layout(Mismatch({}, {"mode": "position_velocity"}, "")).fields[1].shape == (6,)


def test_the_semantics_are_compared_first() -> None:
    cfg = REQUESTS | {"state_dim": 4, "action_dim": 9, "action_contracts": ("x@1",)}
    with pytest.raises(EnvironmentContractError, match="action_semantics is configured as"):
        layout(Mismatch(cfg, {"flaw": "no manager"}, ""))
