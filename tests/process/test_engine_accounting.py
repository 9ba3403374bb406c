"""The ledger and the lifecycle log, with eight consumers that are killed while the producer refills."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from odstream.engine import OnlineDataEngine
from odstream.engine.sampling import Sampler
from odstream.errors import DataBudgetExhaustedError
from tests.fakes.producers import Script
from tests.process.consumers import PATIENCE_S, Consumer, running

CONSUMERS, KILLS = 8, 16
BATCH, BUDGET, SLOTS = 7, 40, 12


def draw_and_note(engine: OnlineDataEngine, log: str, end: str) -> int:
    """Draw until the file ``end`` exists. Note every batch before the next call, in one write that no kill divides."""
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    calls = 0
    while not os.path.exists(end):
        try:
            batch = engine.sample_batch(BATCH, 3)
        except DataBudgetExhaustedError:
            time.sleep(0.001)
            continue
        episodes = batch["ods_episode_id"]
        assert bool((episodes == episodes[:, :1]).all())
        assert bool((batch["obs"] == episodes[..., None]).all())
        os.write(notes, (" ".join(map(str, episodes[:, 0].tolist())) + "\n").encode())
        calls += 1
    os.close(notes)
    return calls


def noted(folder: Path) -> tuple[Counter[int], int]:
    """Return the selections per episode that consumers noted, and the number of batches."""
    selections: Counter[int] = Counter()
    batches = 0
    for log in folder.glob("log*"):
        for line in log.read_text().splitlines():
            episodes = [int(word) for word in line.split()]
            assert len(episodes) == BATCH
            selections.update(episodes)
            batches += 1
    return selections, batches


@pytest.mark.timeout(150)
@pytest.mark.spec("QUOTA-03", "QUOTA-04", "ENG-22", "ENG-23")
def test_the_ledger_is_exact_though_consumers_are_killed(tmp_path: Path) -> None:
    """Field cases Q02, Q11 and C03."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    end, events = f"{tmp_path}/end", []
    script = Script(constant=True, lengths=(6, 9, 14), num_envs=3, refill_seconds_per_episode=0.004, initial=SLOTS)
    settings: dict[str, Any] = {"include_provenance": True, "lifecycle_event_capacity": 3 * SLOTS}
    settings |= {"episode_sample_budget": BUDGET, "episode_sample_hard_limit": BUDGET, "buffer_size": SLOTS}
    with running(script, **settings) as engine:
        engine.sample_batch(BATCH, 3)  # so that forked consumers share a sampler that has been in use
        own = BATCH

        def new_consumer(number: int) -> Consumer:
            consumer = Consumer("fork", engine)
            consumer.begin(draw_and_note, f"{tmp_path}/log{number}", end)
            return consumer

        consumers = [new_consumer(number) for number in range(CONSUMERS)]
        for killed in range(KILLS):
            pause_until = time.monotonic() + chance.uniform(0.02, 0.3)
            while time.monotonic() < pause_until:
                engine.request_refill()
                events += engine.drain_lifecycle_events()
                time.sleep(0.001)
            victim = consumers.pop(chance.randrange(len(consumers)))
            os.kill(victim.pid, signal.SIGKILL)
            victim.close()
            consumers.append(new_consumer(CONSUMERS + killed))
        Path(end).touch()
        assert sum(consumer.result() for consumer in consumers) > 0
        for consumer in consumers:
            consumer.close()
        events += finish(engine)
        check_ledger(engine, own, *noted(tmp_path))
        check_log(engine, events)


def finish(engine: OnlineDataEngine) -> list[dict[str, Any]]:
    """Let the last refill end, and return its events."""
    events = []
    deadline = time.monotonic() + PATIENCE_S
    while engine.get_stats()["completed_generation"] < engine.get_stats()["requested_generation"]:
        assert time.monotonic() < deadline
        events += engine.drain_lifecycle_events()
    return events + engine.drain_lifecycle_events()


def check_ledger(engine: OnlineDataEngine, own: int, selections: Counter[int], batches: int) -> None:
    snapshot = engine.get_sampling_budget_snapshot()
    total = snapshot["total_delivered_chunks"]
    assert total == engine.get_stats()["sampled_chunks"]
    # A killed consumer's last call was delivered as a whole, or not at all.
    lost = total - own - sum(selections.values())
    assert sum(selections.values()) == batches * BATCH
    assert lost % BATCH == 0
    assert 0 <= lost <= KILLS * BATCH
    assert max(selections.values()) <= BUDGET
    for row in snapshot["rows"]:
        assert row["assigned"] == BUDGET
        assert row["remaining"] == BUDGET - row["delivered"] >= 0
        assert 0 <= row["delivered"] - selections[row["episode_id"]] <= lost + own
    assert len(selections) > 10 * SLOTS  # many were retired


def check_log(engine: OnlineDataEngine, events: list[dict[str, Any]]) -> None:
    assert [event["sequence"] for event in events] == list(range(len(events)))
    published = [event["episode_id"] for event in events if event["kind"] == "published"]
    assert published == list(range(engine.get_stats()["successful_episodes"]))
    readable: dict[int, int] = {}
    for event in events:
        if event["kind"] == "evicted":
            assert readable.pop(event["slot"]) == event["episode_id"]
        else:
            assert event["slot"] not in readable
            readable[event["slot"]] = event["episode_id"]
    rows = engine.get_sampling_budget_snapshot()["rows"]
    assert readable == {row["slot"]: row["episode_id"] for row in rows}


@pytest.mark.spec("QUOTA-02", "QUOTA-03", "ENG-22")
def test_counters_say_what_callers_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case Q02: three calls of five, and one whose copy fails."""
    with running(episode_sample_budget=50, episode_sample_hard_limit=50) as engine:
        for _ in range(2):
            engine.sample_batch(5, 4)

        def fail(*_: object) -> None:
            raise MemoryError("no memory for the copy")

        with monkeypatch.context() as patch:
            patch.setattr(Sampler, "_copy", fail)
            with pytest.raises(MemoryError):
                engine.sample_batch(5, 4)
        with suppress(ValueError):
            engine.sample_batch(0, 4)
        with Consumer("fork", engine) as consumer:
            consumer.call(five)
        snapshot = engine.get_sampling_budget_snapshot()
        assert snapshot["total_delivered_chunks"] == 15
        assert engine.get_stats()["sampled_chunks"] == 15
        assert engine.get_flow_status()["total_delivered_chunks"] == 15
        assert sum(row["delivered"] for row in snapshot["rows"]) == 15
        assert snapshot["unlocked_remaining_chunks"] == 4 * 50 - 15


def five(engine: OnlineDataEngine) -> None:
    engine.sample_batch(5, 4)
