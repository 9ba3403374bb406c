"""An engine without processes: production, budgets and time are simulated, exactly and at once."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odstream.errors import DataBudgetExhaustedError, DataUnavailableError


class FakeClock:
    """A monotonic clock that moves only when somebody sleeps."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.sleeps.append(seconds)
        self.now += seconds


@dataclass(kw_only=True)
class FakeEngineCfg:
    """The settings that flow control reads, under the names of ``OnlineDataEngineCfg``."""

    buffer_size: int = 12
    refill_policy: str = "manual"
    gym_config: Mapping[str, Any] | None = field(default_factory=lambda: {"num_envs": 4})
    episode_sample_budget: int | None = 600
    episode_sample_hard_limit: int | None = 1000
    lifecycle_event_capacity: int = 0


class FakeEngine:
    """An engine whose initial fill is done. A fill publishes P episodes at a time, one group per ``group_s`` seconds.

    Rows are replaced in ring order; their unused chunks are retired. Draws are uniform over rows with chunks left.

    Args:
        clock: Time.
        cfg: Settings.
        group_s: Seconds that P episodes take.
        window_locked: Whether the P rows to be replaced next are always locked, as in an engine without spare rows.
        seed: Of the draws.
    """

    def __init__(
        self,
        clock: FakeClock,
        cfg: FakeEngineCfg | None = None,
        *,
        group_s: float = 4.0,
        window_locked: bool = False,
        seed: int = 0,
    ) -> None:
        self.clock, self.cfg = clock, cfg or FakeEngineCfg()
        self.group_s, self.window_locked = group_s, window_locked
        self.rows = [self.cfg.episode_sample_budget or 0] * self.cfg.buffer_size
        self.ids = list(range(self.cfg.buffer_size))
        self.bytes_per_episode = 1000
        self.requested = self.completed = 1
        self.episodes = self.cfg.buffer_size
        self.delivered = self.retired = 0
        self.requests: list[float] = []
        self.events: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.health_checks = self.drains = 0
        self._next_row = 0
        self._next_publication = 0.0
        self._random = random.Random(seed)

    # ------------------------------------------------------------ what flow control calls

    def check_health(self) -> None:
        self.health_checks += 1
        if self.failure is not None:
            raise self.failure

    def get_flow_status(self) -> dict[str, int | None]:
        self.check_health()
        self._produce()
        protected = self.cfg.episode_sample_budget is not None
        return {
            "requested_generation": self.requested,
            "completed_generation": self.completed,
            "successful_episodes": self.episodes,
            "unlocked_remaining_chunks": sum(self.rows[row] for row in self._unlocked()) if protected else None,
            "total_delivered_chunks": self.delivered if protected else None,
        }

    def request_refill(self) -> int:
        self._produce()
        if self.requested == self.completed:
            self.requested += 1
            self.requests.append(self.clock.now)
            self._next_publication = self.clock.now + self.group_s
        return self.requested

    def wait_for_generation(self, generation: int, timeout: float) -> None:
        assert timeout > 0
        if generation > self.requested:
            raise ValueError(f"generation {generation} was never requested")
        deadline = self.clock.now + timeout
        self._produce()
        while self.completed < generation:
            if self._next_publication > deadline:
                self.clock.sleep(deadline - self.clock.now)
                raise TimeoutError(f"generation {generation} is not complete")
            self.clock.sleep(max(0.0, self._next_publication - self.clock.now))
            self._produce()

    def drain_lifecycle_events(self) -> list[dict[str, Any]]:
        self.drains += 1
        events, self.events = self.events, []
        return events

    def get_sampling_budget_snapshot(self) -> dict[str, Any]:
        """Return what is left of each row, and what was delivered."""
        budget = self.cfg.episode_sample_budget or 0
        rows = [
            {"episode_id": episode, "assigned": budget, "delivered": budget - left, "remaining": left}
            for episode, left in zip(self.ids, self.rows, strict=True)
        ]
        return {"rows": rows, "total_delivered_chunks": self.delivered}

    def log_initial_fill(self) -> None:
        """Log the episodes that are there already."""
        for episode in self.ids:
            self.events.append({"kind": "published", "generation": 1, "episode_id": episode, "monotonic_ns": 0})

    # ------------------------------------------------------------ sampling and production

    def sample_batch_with_context(self, batch_size: int, *_args: object, **_options: object) -> list[int]:
        """Draw ``batch_size`` rows, debit them, return them."""
        self.check_health()
        self._produce()
        funded = [row for row in self._unlocked() if self.rows[row] > 0]
        if not funded:
            raise DataUnavailableError("no row has chunks left")
        if sum(self.rows[row] for row in funded) < batch_size:
            raise DataBudgetExhaustedError(f"cannot fund {batch_size} chunks")
        drawn = []
        for _ in range(batch_size):
            row = self._random.choice(funded)
            drawn.append(row)
            self.rows[row] -= 1
            if self.rows[row] == 0:
                funded.remove(row)
        self.delivered += batch_size
        return drawn

    def _log(self, kind: str, generation: int) -> None:
        if self.cfg.lifecycle_event_capacity:
            at_ns = round(self._next_publication * 1e9)
            event = {"kind": kind, "generation": generation, "slot": self._next_row, "monotonic_ns": at_ns}
            self.events.append({**event, "episode_id": self.ids[self._next_row]})
            assert len(self.events) <= self.cfg.lifecycle_event_capacity

    def _num_envs(self) -> int:
        return int((self.cfg.gym_config or {}).get("num_envs", 1))

    def _unlocked(self) -> list[int]:
        count = len(self.rows)
        locked = {(self._next_row + i) % count for i in range(self._num_envs())} if self.window_locked else set()
        return [row for row in range(count) if row not in locked]

    def _produce(self) -> None:
        """Publish every group that is due by now."""
        while self.requested > self.completed and self._next_publication <= self.clock.now:
            for _ in range(self._num_envs()):
                self._log("evicted", self.completed)
                self.ids[self._next_row] = self.episodes
                self._log("published", self.requested)
                self.retired += self.rows[self._next_row]
                self.rows[self._next_row] = self.cfg.episode_sample_budget or 0
                self._next_row = (self._next_row + 1) % len(self.rows)
                self.episodes += 1
            self._next_publication += self.group_s
            if self._next_row == 0:
                self.completed += 1


class FakeSource:
    """A live source on an engine, with the call of ``OnlineDataSource``."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.calls: list[tuple[int, object, object]] = []

    def sample_context(self, batch_size: int, spec: object, *, generator: object = None) -> list[int]:
        self.calls.append((batch_size, spec, generator))
        return self.engine.sample_batch_with_context(batch_size)
