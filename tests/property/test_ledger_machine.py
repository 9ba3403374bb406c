"""The ledger under everything that may happen to it, in any order."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tensordict import TensorDict

from odstream.cache.layout import Word
from odstream.cache.windows import SAMPLING_MODES
from odstream.engine import accounting
from odstream.engine.sampling import WindowRequest
from odstream.errors import DataBudgetExhaustedError, DataUnavailableError
from tests.fakes.cache import RUN_ID, Cache, Row, chunk, context, dying, seeded, starts_of, usable
from tests.property.episodes import episodes

SLOTS, STEPS = 3, 7
GENERATIONS = st.one_of(st.none(), st.sets(st.integers(1, 4), min_size=1).map(tuple))


@st.composite
def requests(draw: st.DrawFn) -> WindowRequest:
    batch_size = draw(st.integers(1, 12))
    if draw(st.booleans()):
        mode = draw(st.sampled_from(SAMPLING_MODES))
        return chunk(batch_size, draw(st.integers(2, 4)), mode)
    mode = draw(st.sampled_from(SAMPLING_MODES[:2]))
    return context(batch_size, draw(st.integers(1, STEPS)), draw(st.integers(1, STEPS)), mode, draw(GENERATIONS))


class Ledger(RuleBasedStateMachine):
    """Publications, samples, failures and deaths on a real cache, and plain counts beside it."""

    @initialize(budget=st.integers(1, 9), data=st.data())
    def fill(self, budget: int, data: st.DataObject) -> None:
        self.cache = Cache(slots=SLOTS, spare_rows=2, max_episode_steps=STEPS, budget=budget)
        self.sampler = self.cache.sampler()
        self.generation = 1
        self.delivered: Counter[int] = Counter()  # of every identity there ever was
        self.returned = self.calls = 0
        for slot in range(SLOTS):
            self.cache.publish(data.draw(episodes(STEPS)), slot=slot)

    @rule(data=st.data(), slot=st.integers(0, SLOTS - 1))
    def replace(self, data: st.DataObject, slot: int) -> None:
        self.cache.publish(data.draw(episodes(STEPS)), slot=slot, generation=self.generation)

    @rule()
    def begin_a_generation(self) -> None:
        self.generation = min(self.generation + 1, 4)

    @rule(written=st.integers(0, STEPS))
    def fail_an_attempt(self, written: int) -> None:
        self.cache.fail(written)

    @rule(request=requests())
    def sample(self, request: WindowRequest) -> None:
        refusal = self.refusal(request)
        if refusal is not None:
            with pytest.raises(refusal):
                self.draw(request)
            return
        self.count(self.draw(request))

    @precondition(lambda self: self.left() > 0)
    @rule()
    def sample_all_that_is_left(self) -> None:
        request = context(self.left(), 1, 2)
        if self.refusal(request) is None:
            self.count(self.draw(request))
            with pytest.raises(DataBudgetExhaustedError):
                self.draw(context(1, 1, 2))

    @rule(request=requests(), step=st.sampled_from(["copy_windows", "copy_frames", "both"]))
    def fail_to_copy(self, request: WindowRequest, step: str) -> None:
        """Field case Q02: a failed copy spends nothing."""
        if self.refusal(request) is not None:
            return
        names = ("copy_windows", "copy_frames") if step == "both" else (step,)
        with patch.multiple(self.sampler._gather, **dict.fromkeys(names, out_of_memory)):
            try:
                batch = self.draw(request)
            except MemoryError:
                return
        self.count(batch)

    @rule(request=requests(), writes=st.integers(0, 40))
    def die_while_debiting(self, request: WindowRequest, writes: int) -> None:
        """A killed consumer's last call counts as delivered or as not at all, never in part."""
        if self.refusal(request) is not None:
            return
        before = self.cache.delivered()
        batch = None
        with dying(self.cache.store, writes):
            batch = self.draw(request)
        with self.cache.store.transaction():
            pass
        if batch is not None:
            self.count(batch)
            return
        spent = Counter(self.cache.delivered())
        spent.subtract(before)
        assert sum(spent.values()) in (0, request.batch_size)
        self.delivered.update(spent)
        self.returned += sum(spent.values())

    @invariant()
    def the_ledger_is_the_sum_of_what_was_returned(self) -> None:
        if not hasattr(self, "cache"):
            return
        snapshot = accounting.ledger(self.cache.store, RUN_ID)
        assert self.cache.store.words[Word.SAMPLED_CHUNKS] == self.returned == sum(self.delivered.values())
        assert snapshot["total_delivered_chunks"] == self.returned
        assert len(snapshot["rows"]) == SLOTS
        for line in snapshot["rows"]:
            published = self.cache.slots[line["slot"]]
            assert (line["episode_id"], line["generation"]) == (published.episode_id, published.generation)
            assert line["delivered"] == self.delivered[published.episode_id] <= line["assigned"] == self.cache.budget
            assert line["remaining"] == line["assigned"] - line["delivered"]
            assert line["run_id"] == RUN_ID and line["locked"] is False
        assert snapshot["unlocked_remaining_chunks"] == self.left()

    def left(self) -> int:
        """Selections left on episodes that have an anchor."""
        return sum(
            self.cache.budget - self.delivered[published.episode_id]
            for published in self.cache.slots.values()
            if any(usable(published.row, t, "episode") for t in range(published.row.length))
        )

    def refusal(self, request: WindowRequest) -> type[Exception] | None:
        """Say which error a request must meet: eligibility comes first."""
        eligible = [
            published.episode_id
            for published in self.cache.slots.values()
            if (request.generations is None or published.generation in request.generations)
            and self.allows(published.row, request)
        ]
        if not eligible:
            return DataUnavailableError
        left = sum(self.cache.budget - self.delivered[episode_id] for episode_id in eligible)
        return DataBudgetExhaustedError if left < request.batch_size else None

    def allows(self, row: Row, request: WindowRequest) -> bool:
        if request.padded or request.length == 1:
            return any(usable(row, t, request.mode) for t in range(row.length))
        return bool(starts_of(row, request.length, request.mode))

    def draw(self, request: WindowRequest) -> TensorDict:
        self.calls += 1
        return self.sampler.draw(request, seeded(self.calls))

    def count(self, batch: TensorDict) -> None:
        identities = batch["ods_episode_id"].amax(1).tolist()
        assert set(identities) <= {published.episode_id for published in self.cache.slots.values()}
        self.delivered.update(identities)
        self.returned += len(identities)


def out_of_memory(*_: Any) -> Any:
    raise MemoryError


TestLedger = pytest.mark.spec("QUOTA-01", "QUOTA-02", "QUOTA-03", "QUOTA-04", "QUOTA-05", "QUOTA-06", "ENG-22")(
    Ledger.TestCase
)
TestLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
