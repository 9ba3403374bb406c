"""The store: views of one memory, the lock, and numbers read from it."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from odstream.cache.layout import Word
from odstream.cache.memory import SharedMemory
from odstream.cache.store import CacheStore
from odstream.engine import accounting
from odstream.errors import LockTimeoutError
from tests.fakes.cache import RUN_ID, Cache, Died, Row, chunk, context, dying

# ------------------------------------------------------------- the memory


@pytest.mark.spec("ENG-18")
def test_two_views_of_one_memory_see_the_same() -> None:
    cache = Cache(slots=2, budget=5)
    published = cache.fill(Row(length=4), Row(length=4))
    other = CacheStore(cache.layout, cache.store.memory)
    assert np.array_equal(other.words, cache.store.words)
    for key, rows in other.rows_of_fields().items():
        row = int(other.row_of_slot[1])
        assert rows[row, :4].tobytes() == published[1].frames[key].tobytes()
    with other.transaction():
        other.commit([Word.SAMPLED_CHUNKS], [77])
    assert cache.store.words[Word.SAMPLED_CHUNKS] == 77


def test_memory_that_cannot_be_mapped_closes_its_descriptor() -> None:
    descriptor = os.memfd_create("unmappable")
    with pytest.raises((OSError, ValueError)):
        SharedMemory(descriptor, 2**62)
    gc.collect()  # the traceback holds it
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


# ------------------------------------------------------------- transactions


def test_a_transaction_within_a_transaction_is_an_error_and_changes_nothing() -> None:
    store = Cache(slots=1).store
    with store.transaction():
        with pytest.raises(RuntimeError, match="holds the cache lock already"), store.transaction():
            pass
        store.commit([Word.SAMPLED_CHUNKS], [3])
    with store.transaction():
        assert store.words[Word.SAMPLED_CHUNKS] == 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Died])
def test_an_error_within_a_transaction_gives_the_lock_back(error: type[BaseException]) -> None:
    store = Cache(slots=1).store
    for _ in range(2):
        with pytest.raises(error), store.transaction():
            raise error
    with store.transaction():
        pass


def hold(store: CacheStore) -> tuple[threading.Thread, threading.Event]:
    """Hold the lock in another thread until the event is set."""
    held, let_go = threading.Event(), threading.Event()

    def run() -> None:
        with store.transaction():
            held.set()
            let_go.wait(30)

    thread = threading.Thread(target=run)
    thread.start()
    assert held.wait(30)
    return thread, let_go


@pytest.mark.parametrize("checked", [False, True])
def test_waiting_for_the_lock_ends_also_if_the_check_needs_the_lock(checked: bool) -> None:
    """Field cases C03 and Q13: the holder lives and does not let go."""
    store = Cache(slots=1).store
    store.lock.timeout_s = 0.3
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        with store.transaction(patient=True):
            pass

    store.when_waiting(check if checked else None)
    thread, let_go = hold(store)
    try:
        with pytest.raises(LockTimeoutError, match=r"not free within 0.3 s"), store.transaction():
            pass
    finally:
        let_go.set()
        thread.join()
    assert len(calls) == checked
    with store.transaction():
        pass


def test_a_check_may_end_the_wait() -> None:
    store = Cache(slots=1).store

    def check() -> None:
        raise ValueError("boom-42")

    store.when_waiting(check)
    thread, let_go = hold(store)
    try:
        with pytest.raises(ValueError, match="boom-42"), store.transaction():
            pass
    finally:
        let_go.set()
        thread.join()


@pytest.mark.spec("QUOTA-03")
def test_threads_that_change_one_counter_at_once_lose_no_change() -> None:
    store = Cache(slots=1).store

    def count() -> None:
        for _ in range(300):
            with store.transaction():
                store.commit([Word.SAMPLED_CHUNKS], [int(store.words[Word.SAMPLED_CHUNKS]) + 1])

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.words[Word.SAMPLED_CHUNKS] == 1200


# ------------------------------------------------------------- numbers for users


@pytest.mark.spec("ENG-22", "QUOTA-06")
def test_statistics_and_the_ledger_of_an_empty_a_partly_and_a_wholly_filled_cache() -> None:
    cache = Cache(slots=3, budget=4, max_episode_steps=9)
    assert accounting.stats(cache.store, budgeted=True)["valid_frames"] == 0
    assert accounting.ledger(cache.store, RUN_ID) == {
        "rows": [],
        "unlocked_remaining_chunks": 0,
        "total_delivered_chunks": 0,
    }
    cache.publish(Row(length=5, gaps=(1,)), slot=1)
    cache.publisher.claim()
    assert (
        accounting.stats(cache.store, budgeted=True)["valid_frames"] == 4
    )  # not those of the row that is being recorded
    line: dict[str, Any] = {
        "run_id": RUN_ID,
        "episode_id": 0,
        "generation": 1,
        "slot": 1,
        "assigned": 4,
        "delivered": 0,
        "remaining": 4,
        "locked": False,
    }
    assert accounting.ledger(cache.store, RUN_ID)["rows"] == [line]
    assert list(accounting.ledger(cache.store, RUN_ID)["rows"][0]) == list(line)


@pytest.mark.spec("QUOTA-06")
def test_only_episodes_with_an_anchor_count_as_unlocked_quota() -> None:
    cache = Cache(slots=3, budget=10, max_episode_steps=9)
    jumps, gaps, one = (
        Row(length=3, continuity=(-1,) * 3),
        Row(length=2, gaps=(0, 1)),
        Row(length=2, continuity=(-1, 0)),
    )
    cache.fill(jumps, gaps, one)
    assert accounting.flow_status(cache.store, budgeted=True)["unlocked_remaining_chunks"] == 10
    cache.sampler().draw(context(6, 2, 2), None)
    status = accounting.flow_status(cache.store, budgeted=True)
    assert status["unlocked_remaining_chunks"] == 4 and status["total_delivered_chunks"] == 6
    assert {line["remaining"] for line in accounting.ledger(cache.store, RUN_ID)["rows"]} == {10, 4}


@pytest.mark.spec("ENG-22", "QUOTA-04")
def test_totals_survive_the_replacement_of_the_episodes_they_came_from() -> None:
    cache = Cache(slots=1, budget=3)
    sampler = cache.sampler()
    for _ in range(5):
        cache.publish(Row(length=2))
        sampler.draw(chunk(2, 1), None)
    ledger = accounting.ledger(cache.store, RUN_ID)
    assert ledger["total_delivered_chunks"] == 10 == accounting.stats(cache.store, budgeted=True)["sampled_chunks"]
    assert (
        ledger["unlocked_remaining_chunks"] == 1
        and accounting.stats(cache.store, budgeted=True)["successful_episodes"] == 5
    )


@pytest.mark.spec("ENG-25")
def test_without_budgets_totals_are_absent_and_deliveries_still_counted() -> None:
    cache = Cache(slots=1)
    cache.publish(Row(length=2))
    cache.sampler().draw(chunk(2, 1), None)
    status = accounting.flow_status(cache.store, budgeted=False)
    assert status["unlocked_remaining_chunks"] is None and status["total_delivered_chunks"] is None
    assert accounting.stats(cache.store, budgeted=True)["sampled_chunks"] == 2
    assert cache.delivered() == {0: 0}


@pytest.mark.spec("ENG-22")
def test_what_is_reported_is_detached_and_sees_no_unfinished_change() -> None:
    cache = Cache(slots=1, budget=9)
    cache.publish(Row(length=2))
    before = accounting.ledger(cache.store, RUN_ID)
    kept = pickle.dumps(before)
    with dying(cache.store, 7):  # everything is written down, almost nothing is changed yet
        cache.sampler().draw(chunk(3, 1), None)
    assert accounting.flow_status(cache.store, budgeted=True)["unlocked_remaining_chunks"] == 6
    assert accounting.ledger(cache.store, RUN_ID)["rows"][0]["delivered"] == 3
    assert pickle.dumps(before) == kept
