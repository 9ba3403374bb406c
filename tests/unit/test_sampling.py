"""Draws from a cache in this process: who is drawn how often, what is refused, what is counted."""

from __future__ import annotations

import os
import random
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
import torch

from odstream.cache.layout import Word
from odstream.engine import failure
from odstream.engine.sampling import WindowRequest
from odstream.engine.state import State, report_failure, reported_failure, set_state, shared_state
from odstream.errors import DataBudgetExhaustedError, DataUnavailableError
from tests.fakes.cache import Cache, Row, chunk, context, seeded


def drawn(cache: Cache, request: WindowRequest, calls: int = 1, seed: int = 3) -> Counter[tuple[int, int]]:
    """Draw, and count how often each (episode, first frame) came."""
    sampler, generator, found = cache.sampler(), seeded(seed), Counter[tuple[int, int]]()
    for _ in range(calls):
        batch = sampler.draw(request, generator)
        anchor = request.before
        ids, frames = batch["ods_episode_id"][:, anchor].tolist(), batch["ods_frame_index"][:, anchor].tolist()
        found.update(zip(ids, frames, strict=True))
    return found


def chi_square(counts: Counter[tuple[int, int]], expected: dict[tuple[int, int], float]) -> float:
    """Return how many standard deviations the statistic lies above its mean, roughly."""
    assert set(counts) <= set(expected)
    total, freedom = counts.total(), len(expected) - 1
    value = sum((counts[key] - share * total) ** 2 / (share * total) for key, share in expected.items())
    return float((value - freedom) / np.sqrt(2 * freedom))


# ------------------------------------------------------------- distribution


@pytest.mark.spec("ENG-12", "ENG-13")
def test_the_last_frame_is_reachable() -> None:
    """Field case W01."""
    cache = Cache(slots=1)
    cache.publish(Row(length=2))
    counts = drawn(cache, chunk(400, 1))
    assert abs(counts[0, 0] / 400 - 0.5) < 0.1 and counts[0, 0] + counts[0, 1] == 400
    cache.publish(Row(length=4))
    assert drawn(cache, chunk(400, 4)) == {(1, 0): 400}


@pytest.mark.spec("ENG-13")
def test_episodes_are_drawn_alike_whatever_their_length_then_starts_alike() -> None:
    """Field case S09."""
    cache = Cache(slots=2, max_episode_steps=100)
    cache.fill(Row(length=10), Row(length=100))
    counts = drawn(cache, chunk(20_000, 8))
    short = sum(number for (episode, _), number in counts.items() if episode == 0)
    assert abs(short / 20_000 - 0.5) < 0.02
    for start in range(3):
        assert abs(counts[0, start] / 20_000 - 1 / 6) < 0.015
    expected = {(0, s): 1 / 6 for s in range(3)} | {(1, s): 1 / 186 for s in range(93)}
    assert chi_square(counts, expected) < 5
    assert {episode for episode, _ in drawn(cache, chunk(1000, 11))} == {1}


MIXED = Row(length=30, segments=(8, 9, 20), gaps=(4, 25), continuity=(0,) * 12 + (1,) * 18)


@pytest.mark.spec("ENG-13", "ENG-15")
@pytest.mark.parametrize(
    ("request_", "starts"),
    [
        (chunk(6000, 3, "episode"), [0, 1, *range(5, 10), *range(12, 23), 26, 27]),
        (chunk(6000, 3, "segment"), [0, 1, 5, 9, *range(12, 18), 20, 21, 22, 26, 27]),
        (chunk(6000, 3, "boundary"), [6, 7, 8, 18, 19]),
        (chunk(6000, 5, "boundary"), [5, 6, 7, *range(16, 20)]),
        (context(6000, 2, 3, "episode"), [t for t in range(30) if t not in (4, 25)]),
    ],
)
def test_every_start_is_drawn_alike_with_budgets_or_without(request_: WindowRequest, starts: list[int]) -> None:
    """A chunk that contains two boundaries (5 frames from frame 5 on) is as likely as one that contains one."""
    expected = {(0, start): 1 / len(starts) for start in starts}
    for budget in (0, 10**6):
        cache = Cache(slots=1, max_episode_steps=30, budget=budget)
        cache.publish(MIXED)
        counts = drawn(cache, request_, calls=2)
        assert set(counts) == set(expected)
        assert chi_square(counts, expected) < 5


@pytest.mark.spec("QUOTA-07")
def test_drawing_with_budgets_stays_uniform_until_episodes_deplete() -> None:
    cache = Cache(slots=4, budget=100, max_episode_steps=4)
    cache.fill(*[Row(length=n) for n in (1, 2, 3, 4)])
    sampler, early = cache.sampler(), Counter[int]()
    for seed in range(40):
        early.update(sampler.draw(context(1, 1, 1), seeded(seed))["ods_episode_id"].ravel().tolist())
    assert min(early.values()) >= 2
    sampler.draw(context(360, 1, 1), None)
    assert cache.delivered() == dict.fromkeys(range(4), 100)


# ------------------------------------------------------------- contexts


@pytest.mark.spec("CTX-01", "CTX-03")
def test_history_before_the_first_step_is_zero_and_never_a_repeated_frame() -> None:
    """Field case W07."""
    cache = Cache(slots=1)
    seven = np.full((1, 3), 7, np.float32)
    cache.publish(Row(length=1), values={("obs",): seven})
    batch = cache.sampler().draw(context(1, 3, 1), None)
    assert batch["obs"][0, :, 0].tolist() == [0, 0, 7]
    assert batch["valid"].tolist() == batch["loss_mask"].tolist() == [[False, False, True]]


@pytest.mark.spec("CTX-01", "CTX-03")
def test_the_anchor_is_always_a_real_frame() -> None:
    """Field case W05."""
    cache = Cache(slots=1)
    cache.publish(Row(length=3))
    batch = cache.sampler().draw(context(500, 1, 10), seeded(1))
    assert bool(batch["valid"][:, 0].all()) and torch.equal(batch["valid"], batch["loss_mask"])
    anchors = {
        int(frame): int(valid.sum())
        for frame, valid in zip(batch["ods_frame_index"][:, 0], batch["valid"], strict=True)
    }
    assert anchors == {0: 3, 1: 2, 2: 1}


@pytest.mark.spec("CTX-01", "CTX-02", "CTX-03")
def test_every_frame_can_be_an_anchor_and_the_opening_ones_too() -> None:
    """Field case W08."""
    cache = Cache(slots=1)
    cache.publish(Row(length=16))
    batch = cache.sampler().draw(context(2000, 2, 8), seeded(1))
    assert batch.batch_size == (2000, 9)
    anchor = batch["ods_frame_index"][:, 1].tolist()
    valid = dict(zip(anchor, batch["valid"].sum(1).tolist(), strict=True))
    mask = dict(zip(anchor, batch["loss_mask"].sum(1).tolist(), strict=True))
    assert sorted(valid) == list(range(16))
    assert sum(valid.values()) == 115 and sum(mask.values()) == 100


@pytest.mark.spec("CTX-02", "ENG-12")
@pytest.mark.parametrize("ending", [{"terminated": True}, {"terminated": False, "truncated": True}])
def test_no_context_walks_into_the_neighbouring_episode_however_it_ended(ending: dict[str, bool]) -> None:
    """Field case W06: two episodes that fill their rows lie next to each other in memory."""
    cache = Cache(slots=2, max_episode_steps=4)
    cache.fill(Row(length=4, **ending), Row(length=4))
    batch = cache.sampler().draw(context(200, 2, 1), seeded(1))
    first = batch["ods_frame_index"][:, 1] == 0
    assert 20 < int(first.sum()) < 80
    assert (batch["ods_frame_index"][first, 0] == -1).all() and not batch["valid"][first, 0].any()
    assert (batch["obs"][first, 0] == 0).all() and (batch["obs"][~first, 0] > 0).all()
    same = batch["ods_episode_id"][~first]
    assert (same[:, 0] == same[:, 1]).all()


@pytest.mark.spec("CTX-05")
def test_an_observation_stays_with_the_action_taken_on_it() -> None:
    """Field case W11."""
    cache = Cache(slots=1, max_episode_steps=6)
    obs = np.arange(1, 19, dtype=np.float32).reshape(6, 3)
    cache.publish(Row(length=6), values={("obs",): obs, ("actions",): obs[:, :2] + 100})
    batch = cache.sampler().draw(context(100, 3, 4), seeded(1))
    difference = batch["actions"] - batch["obs"][..., :2]
    assert (difference[batch["valid"]] == 100).all() and (difference[~batch["valid"]] == 0).all()


# ------------------------------------------------------------- replacement and generations


@pytest.mark.spec("ENG-10", "ENG-12", "QUOTA-05")
def test_nothing_of_a_replaced_episode_can_be_read() -> None:
    """Field case W03."""
    cache = Cache(slots=1, spare_rows=1, max_episode_steps=10)
    for length, mark in ((10, 1), (1, 5), (4, 2)):  # the third takes the row of the first
        last = cache.publish(Row(length=length, mark=mark))
    batch = cache.sampler().draw(chunk(200, 3), seeded(1))
    assert set(batch["ods_frame_index"][:, 0].tolist()) == {0, 1}
    assert set(batch["obs"].ravel().tolist()) == set(last.frames["obs",].ravel().tolist())
    with pytest.raises(DataUnavailableError, match="window of 5 frames .* longest possible is 4"):
        cache.sampler().draw(chunk(1, 5), None)


@pytest.mark.spec("ENG-10")
@pytest.mark.parametrize("written", [0, 3, 9, 10])
def test_nothing_of_a_failed_attempt_can_be_read(written: int) -> None:
    """Field case W13: the attempt was longer than the episode that took its row."""
    cache = Cache(slots=1, spare_rows=1, max_episode_steps=10)
    for _ in range(2):
        cache.fail(written)
        cache.publish(Row(length=4))
    batch = cache.sampler().draw(context(64, 4, 9), seeded(1))
    for key in ("obs", "actions", "rewards"):
        assert (batch[key][~batch["valid"]] == 0).all(), key


@pytest.mark.spec("ENG-17", "CTX-04")
def test_generations_are_readable_together_and_can_be_told_apart() -> None:
    cache = Cache(slots=2, max_episode_steps=4)
    cache.fill(Row(length=4), Row(length=4), generation=1)
    cache.publish(Row(length=4), slot=0, generation=2)
    sampler = cache.sampler()
    both = sampler.draw(context(100, 1, 2), seeded(1))
    assert set(both["ods_generation"][:, 0].tolist()) == {1, 2}
    for generation in (1, 2):
        only = sampler.draw(context(100, 1, 2, generations=(generation, 9)), seeded(1))
        assert set(only["ods_generation"][:, 0].tolist()) == {generation}
    with pytest.raises(DataUnavailableError, match=r"asked for generations \(3,\), readable are \[1, 2\]"):
        sampler.draw(context(1, 1, 2, generations=(3,)), None)


@pytest.mark.spec("ENG-25")
def test_without_provenance_no_field_says_where_a_frame_is_from() -> None:
    cache = Cache(slots=1, provenance=False)
    cache.publish(Row(length=3))
    batch = cache.sampler().draw(context(2, 2, 2), None)
    assert not [key for key in batch.keys() if key.startswith("ods_")]


# ------------------------------------------------------------- errors and accounts


@pytest.mark.spec("QUOTA-05", "QUOTA-06")
def test_eligibility_comes_before_budgets_and_nothing_is_spent_in_part() -> None:
    """Field case Q03: a batch that cannot be funded fails at once."""
    cache = Cache(slots=3, budget=2)
    cache.fill(Row(length=5), Row(length=2), Row(length=3, continuity=(-1,) * 3))
    sampler = cache.sampler()
    with pytest.raises(DataUnavailableError):
        sampler.draw(chunk(100, 6), None)
    with pytest.raises(DataBudgetExhaustedError, match="1 eligible episodes have 2 selections left, the batch needs 3"):
        sampler.draw(chunk(3, 5), None)
    assert cache.delivered() == {0: 0, 1: 0, 2: 0} and not cache.store.words[Word.SAMPLED_CHUNKS]
    sampler.draw(chunk(2, 5), None)
    with pytest.raises(DataBudgetExhaustedError, match="2 eligible episodes have 2 selections left"):
        sampler.draw(chunk(3, 1), None)
    sampler.draw(chunk(2, 1), None)
    assert cache.delivered() == {0: 2, 1: 2, 2: 0}


@pytest.mark.spec("QUOTA-02", "QUOTA-03", "ENG-22")
def test_the_counters_equal_what_callers_received() -> None:
    """Field case Q02: three calls of five and one failing copy."""
    cache = Cache(slots=2, budget=100)
    cache.fill(Row(length=5), Row(length=2))
    sampler = cache.sampler()
    for number, request in enumerate((chunk(5, 2), context(5, 3, 4), chunk(5, 1))):
        sampler.draw(request, seeded(number))
        with patch.object(sampler._gather, "_select", side_effect=MemoryError), pytest.raises(MemoryError):
            sampler.draw(request, None)
    assert cache.store.words[Word.SAMPLED_CHUNKS] == sum(cache.delivered().values()) == 15


@pytest.mark.spec("QUOTA-04")
def test_a_replacement_retires_what_was_left_and_begins_with_a_full_budget() -> None:
    cache = Cache(slots=1, budget=3)
    cache.publish(Row(length=2))
    sampler = cache.sampler()
    sampler.draw(chunk(1, 1), None)
    cache.publish(Row(length=2))
    assert cache.delivered() == {1: 0}
    sampler.draw(chunk(3, 1), None)
    with pytest.raises(DataBudgetExhaustedError):
        cache.sampler().draw(chunk(1, 1), None)  # a new sampler resets nothing


@pytest.mark.spec("ENG-06", "QUOTA-05")
@pytest.mark.parametrize("request_", [chunk(1, 99), chunk(9, 1)], ids=["unavailable", "exhausted"])
def test_a_failure_of_the_producer_comes_before_a_shortage_and_can_be_reported_then(request_: WindowRequest) -> None:
    """The check takes the cache's lock itself, as the engine's does to report a death it finds."""
    cache = Cache(slots=1, budget=2)
    cache.publish(Row(length=3))
    for state in (State.STARTING, State.READY):
        set_state(cache.store, state)

    def check() -> None:
        report_failure(cache.store, failure.encode(ValueError("boom-42")))
        raise reported_failure(cache.store)

    with pytest.raises(ValueError, match="boom-42"):
        cache.sampler(check).draw(request_, None)
    assert shared_state(cache.store) is State.FAILED
    cache.sampler().draw(chunk(2, 1), None)  # the lock was given back, once


@pytest.mark.spec("ENG-16")
def test_a_refill_is_requested_after_enough_selections_and_never_twice() -> None:
    cache = Cache(slots=1)
    cache.publish(Row(length=4))
    words = cache.store.words
    words[Word.REQUESTED_GENERATION] = words[Word.COMPLETED_GENERATION] = 1
    sampler = cache.sampler(refill_after=10)
    requested = []
    for batch_size in (4, 5, 1, 9, 9, 9):
        sampler.draw(chunk(batch_size, 2), None)
        requested.append(int(words[Word.REQUESTED_GENERATION]))
    assert requested == [1, 1, 2, 2, 2, 2]
    words[Word.COMPLETED_GENERATION] = 2
    sampler.draw(chunk(1, 2), None)
    assert words[Word.REQUESTED_GENERATION] == 3


# ------------------------------------------------------------- randomness


def fingerprint(cache: Cache, seed: int | None, batches: int = 100) -> list[int]:
    sampler, generator = cache.sampler(), None if seed is None else seeded(seed)
    found = []
    for number in range(batches):
        request = chunk(4, 3) if number % 2 else context(4, 2, 3)
        batch = sampler.draw(request, generator)
        found += (batch["ods_episode_id"].amax(1) * 1000 + batch["ods_frame_index"].amax(1)).tolist()
    return found


@pytest.mark.parametrize("budget", [0, 500])
def test_a_seeded_generator_repeats_exactly_and_no_global_state_is_touched(budget: int) -> None:
    """Field case S06."""
    results = []
    before = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()
    for seed in (7, 7, 8, None):
        cache = Cache(slots=4, max_episode_steps=64, budget=budget)
        cache.fill(*[Row(length=n) for n in (10, 20, 40, 64)])
        results.append(fingerprint(cache, seed))
    assert results[0] == results[1] != results[2]
    after = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


@pytest.mark.spec("DATA-04")
def test_no_two_samplers_draw_alike_by_themselves() -> None:
    """Field case S02: also after the same global seeds, and in a forked copy of one sampler."""
    cache = Cache(slots=4, max_episode_steps=64)
    cache.fill(*[Row(length=64)] * 4)
    results = []
    for _ in range(3):
        torch.manual_seed(0)
        np.random.seed(0)
        results.append(fingerprint(cache, None, 25))
    assert len({tuple(result) for result in results}) == 3
    sampler = cache.sampler()
    sampler.draw(chunk(1, 1), None)
    mine = sampler._rng
    with patch("os.getpid", return_value=os.getpid() + 1):
        sampler.draw(chunk(1, 1), None)
    assert sampler._rng is not mine and sampler._rng.bit_generator.state != mine.bit_generator.state
