"""The producer meter of another process, as far as its snapshots have arrived here."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from odstream.perf.meter import ProducerMeter, Snapshot, StateMeter

__all__ = ["RemoteMeter"]


class RemoteMeter:
    """Stands in for a `ProducerMeter` whose process sends its snapshots over, by whatever way its results take.

    A snapshot holds durations and counts, so that it may come from another machine. Before the first one and after
    `end` the producer is ``down``, by this process's clock. Send one with every result, and now and then while nothing
    can be handed over: time that no snapshot has told of is in no window.

    Args:
        name: Of the slot, as in its snapshots.
        clock_ns: Monotonic nanoseconds of this process.
    """

    def __init__(self, name: str, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.name = name
        self._clock_ns = clock_ns
        self._presence = StateMeter(("up", "down"), initial="down", clock_ns=clock_ns)
        nothing = ProducerMeter(name, clock_ns=lambda: 0).snapshot()
        self._latest = dataclasses.replace(nothing, state="down")

    def update(self, snapshot: Snapshot) -> None:
        """Take the newest snapshot; the producer is up. One of a restarted process begins from zero.

        Raises:
            ValueError: If it is of another producer.
        """
        if (snapshot.role, snapshot.name) != ("producer", self.name):
            raise ValueError(
                f"snapshot must be of the producer {self.name!r}, got one of the {snapshot.role} {snapshot.name!r}"
            )
        if snapshot.incarnation != self._latest.incarnation:
            self._presence = StateMeter(("up", "down"), initial="up", clock_ns=self._clock_ns)
        self._latest = snapshot
        self._presence.enter("up")

    def end(self) -> None:
        """Count the producer as down from now on, until `update`."""
        self._presence.enter("down")

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot, with the time that the producer was down for."""
        latest, absent_ns = self._latest, self._presence.totals_ns()["down"]
        return dataclasses.replace(
            latest,
            state="down" if self._presence.state == "down" else latest.state,
            states_ns={**latest.states_ns, "down": latest.states_ns["down"] + absent_ns},
            counts=dict(latest.counts),
        )
