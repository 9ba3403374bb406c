"""Flow control of a real engine, with a producer in its own process."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from odstream.configuration import ODSConfiguration, ODSReuseProfileCfg, ODSRuntimeCfg, configure_ods
from odstream.engine import OnlineDataEngine, OnlineDataEngineCfg
from odstream.errors import EngineStateError
from odstream.runtime import ODSFlowController, ODSFlowControllerCfg
from tests.fakes.producers import Script

B = 8


class Sequence(NamedTuple):
    history_length: int = 2
    prediction_horizon: int = 4


class Source:
    """A live source with nothing but its engine."""

    def __init__(self, engine: OnlineDataEngine) -> None:
        self.engine = engine

    def sample_context(self, batch_size: int, spec: Sequence, *, generator: Any = None) -> Any:
        return self.engine.sample_batch_with_context(
            batch_size, spec.history_length, spec.prediction_horizon, generator=generator
        )


def small_plan() -> ODSConfiguration:
    """K = 10, P = 2, C = 6; paced at 2,000 chunks/s, so never in practice."""
    profile = ODSReuseProfileCfg(
        profile_id="process",
        scope="scripted",
        qualified=True,
        min_chunks_per_episode=10,
        max_chunks_per_episode=10,
        hard_max_chunks_per_episode=10,
    )
    runtime = ODSRuntimeCfg(
        batch_size=B,
        producer_envs=2,
        first_publication_p95_seconds=0.01,
        min_cache_episodes=6,
        measurement_scope="scripted",
    )
    return configure_ods(200.0, 2000.0, profile=profile, runtime=runtime)


PLAN = small_plan()


@pytest.fixture
def engine() -> Iterator[OnlineDataEngine]:
    cfg = OnlineDataEngineCfg(
        gym_config={"num_envs": PLAN.producer_envs},
        buffer_size=PLAN.buffer_size,
        max_episode_steps=12,
        refill_policy="manual",
        episode_sample_budget=PLAN.episode_sample_budget,
        episode_sample_hard_limit=PLAN.episode_sample_hard_limit,
        include_provenance=True,
        lifecycle_event_capacity=PLAN.buffer_size,
    )
    with OnlineDataEngine(cfg, producer=Script(num_envs=2, refill_seconds_per_episode=0.005)) as running:
        yield running


@pytest.mark.spec("FLOW-05", "FLOW-07", "FLOW-08", "FLOW-12", "FLOW-13")
def test_a_limited_run_spends_what_it_may_and_accounts_for_every_episode(engine: OnlineDataEngine) -> None:
    events: list[dict[str, Any]] = []
    refills: list[int] = []
    flow = ODSFlowController(
        engine,
        ODSFlowControllerCfg(max_generated_episodes=5 * PLAN.buffer_size + 1, poll_interval=0.002),
        plan=PLAN,
        on_events=events.extend,
        on_refill=lambda generation, requested_at: refills.append(generation),
    )
    source, uses = Source(engine), Counter[int]()
    while flow.prepare_batch(B):
        batch = flow.sample_context(source, B, Sequence())
        uses.update(batch["ods_episode_id"][:, 1].tolist())
    flow.drain_events()

    status = engine.get_flow_status()
    assert refills == [2, 3, 4, 5]
    assert status["successful_episodes"] == 5 * PLAN.buffer_size
    assert status["total_delivered_chunks"] == uses.total()
    assert max(uses.values()) <= PLAN.episode_sample_budget
    remaining = status["unlocked_remaining_chunks"]
    assert remaining is not None
    assert remaining < B
    kinds = Counter(event["kind"] for event in events)
    assert kinds == {"published": 5 * PLAN.buffer_size, "evicted": 4 * PLAN.buffer_size}


@pytest.mark.spec("FLOW-09")
def test_a_round_is_requested_and_awaited_whole(engine: OnlineDataEngine) -> None:
    flow = ODSFlowController(engine, ODSFlowControllerCfg(max_generated_episodes=2 * PLAN.buffer_size))
    generation = flow.request_refill()
    assert generation is not None
    flow.wait_for_generation(generation)
    assert engine.get_flow_status()["successful_episodes"] == 2 * PLAN.buffer_size
    assert flow.request_refill() is None
    with pytest.raises(ValueError, match="generation must have been requested"):
        flow.wait_for_generation(generation + 1)
    with pytest.raises(TimeoutError):
        flow.engine.request_refill()
        flow.wait_for_generation(generation + 1, deadline=time.monotonic())


@pytest.mark.spec("FLOW-13")
def test_a_stopped_engine_still_gives_its_last_events(engine: OnlineDataEngine) -> None:
    events: list[dict[str, Any]] = []
    flow = ODSFlowController(engine, plan=PLAN, on_events=events.extend)
    engine.stop()
    flow.drain_events()
    assert Counter(event["kind"] for event in events) == {"published": PLAN.buffer_size}
    with pytest.raises(EngineStateError):
        flow.prepare_batch(B)


def test_an_engine_says_whose_it_is_and_what_an_episode_takes(engine: OnlineDataEngine) -> None:
    assert engine.is_owner
    child = os.fork()
    if child == 0:
        os._exit(7 if not engine.is_owner else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    batch = engine.sample_batch(1, 1)
    payload = sum(value.nbytes for value in batch.values(include_nested=True, leaves_only=True))
    episode = engine.bytes_per_episode
    # Twelve frames and as many guard frames at most, each padded by less than eight bytes.
    assert 12 * payload <= episode <= 24 * (payload + 8)


def test_what_an_episode_takes_is_not_known_before_the_start() -> None:
    with pytest.raises(EngineStateError, match="bytes_per_episode needs an engine that was started"):
        _ = OnlineDataEngine(OnlineDataEngineCfg(), producer=Script(num_envs=2)).bytes_per_episode
