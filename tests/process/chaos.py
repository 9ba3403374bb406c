"""Kill every kind of process of an engine at random moments, again and again, and look for a hang or a torn sample.

python -m tests.process.chaos                      a hundred kills of each kind: a few minutes
python -m tests.process.chaos --kills 10 --seed 7

Each round is a family of processes: an owner with its producer, which refills without a break and writes each episode
slowly as one number in all fields, and consumers that draw without a break and check every window. Nobody is told
before it is killed. What must hold afterwards:

- a killed consumer is missed by nobody: all others go on;
- a killed producer is an error in every other process, and no sample is returned after it;
- a killed owner takes the producer along, and is an error in every consumer;
- a process that is suspended and resumed is missed by nobody;
- no window mixes two episodes, and nothing is left behind: no process, no memory, no entry of /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from odstream.engine import OnlineDataEngine
from odstream.errors import OnlineDataWorkerError
from tests.fakes.producers import Script
from tests.process.consumers import is_running, make_engine, producer_pid, until

KINDS = ("consumer", "producer", "owner", "owner and producer", "suspended consumer", "suspended owner")
CONSUMERS = 3
CONSUMER_KILLS_PER_FAMILY = 10
PATIENCE_S = 30.0
SCRIPT = Script(constant=True, lengths=(5, 12, 20), num_envs=2, seconds_per_field=0.0004)

STARTING, RUNNING, FAILED, TORN, BROKEN = range(5)
"""What a process says of itself: an engine's failure is FAILED, any other exception BROKEN."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Memory shared by a family: per process a state, a count of calls, a process id. No lock to be killed in."""

    table: np.ndarray

    @staticmethod
    def make() -> Places:
        memory = mmap.mmap(-1, 4096)
        return Places(table=np.frombuffer(memory, np.int64).reshape(-1, 4)[: CONSUMERS + 2])

    def state(self, place: int) -> int:
        return int(self.table[place, 0])

    def calls(self, place: int) -> int:
        return int(self.table[place, 1])

    def pid(self, place: int) -> int:
        return int(self.table[place, 2])


OWNER, PRODUCER = CONSUMERS, CONSUMERS + 1


def draw_for_ever(engine: OnlineDataEngine, places: Places, place: int) -> None:
    """Draw and check until something happens, and say what."""
    row = places.table[place]
    row[1], row[2], row[0] = 0, os.getpid(), RUNNING
    generator = random.Random(os.getpid())
    try:
        while True:
            batch = engine.sample_batch(generator.choice((1, 8, 64)), generator.choice((1, 5)))
            number = batch["rewards"][:, :1]
            whole = torch.equal(batch["rewards"], number.expand_as(batch["rewards"]))
            for name in ("obs", "actions"):
                whole &= torch.equal(batch[name], number[..., None].expand_as(batch[name]))
            if not whole or not bool(batch["valid"].all()):
                row[0] = TORN
                return
            row[1] += 1
            if place == OWNER and row[1] % 8 == 0:
                engine.request_refill()
    except OnlineDataWorkerError:
        row[0] = FAILED
    except BaseException as error:
        print(f"process {os.getpid()}: {type(error).__name__}: {error}", file=sys.stderr)
        row[0] = BROKEN


class Family:
    """An owner, its producer and its consumers."""

    def __init__(self, deadline_s: float = PATIENCE_S) -> None:
        self.places = Places.make()
        self.patience_s = deadline_s
        self.owner = fork(self._own)
        self.await_all(range(CONSUMERS + 1), lambda place: self.places.calls(place) > 0, "everybody has drawn")
        self.producer = self.places.pid(PRODUCER)
        self.memory = memory_of(self.producer)

    def _own(self) -> None:
        engine = make_engine(SCRIPT, buffer_size=6, episode_sample_budget=10**9, episode_sample_hard_limit=10**9)
        engine.start()
        self.places.table[PRODUCER, 2] = producer_pid(engine)
        for place in range(CONSUMERS):
            self._fork_consumer(engine, place)
        signal.signal(signal.SIGCHLD, lambda *_: self._replace_dead_consumers(engine))
        draw_for_ever(engine, self.places, OWNER)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        until(lambda: all(self.places.state(place) != RUNNING for place in range(CONSUMERS)), "consumers noticed")
        try:
            engine.stop()
        except OnlineDataWorkerError:
            return

    def _fork_consumer(self, engine: OnlineDataEngine, place: int) -> None:
        self.places.table[place, 0] = STARTING
        fork(lambda: draw_for_ever(engine, self.places, place))

    def _replace_dead_consumers(self, engine: OnlineDataEngine) -> None:
        for place in range(CONSUMERS):
            pid = self.places.pid(place)
            if self.places.state(place) == RUNNING and not is_running(pid):
                os.waitpid(pid, 0)
                self._fork_consumer(engine, place)

    def await_all(self, places: range, condition: Callable[[int], bool], what: str) -> None:
        def fulfilled() -> bool:
            states = {self.places.state(place) for place in places}
            assert TORN not in states, "torn sample"
            assert BROKEN not in states, "unexpected error"
            return all(condition(place) for place in places)

        until(fulfilled, what, self.patience_s)

    def everybody_goes_on(self, others: range) -> None:
        before = [self.places.calls(place) for place in range(CONSUMERS + 1)]
        pids = [self.places.pid(place) for place in range(CONSUMERS + 1)]
        self.await_all(
            others,
            lambda place: self.places.calls(place) > before[place] + 2 or self.places.pid(place) != pids[place],
            "everybody goes on",
        )

    def everybody_fails(self, places: range) -> None:
        self.await_all(places, lambda place: self.places.state(place) == FAILED, "everybody fails")

    def end(self) -> None:
        """End what still runs, and see that nothing is left."""
        if is_running(self.producer):
            os.kill(self.producer, signal.SIGKILL)
        until(lambda: not is_running(self.owner), "the owner ends", self.patience_s)
        os.waitpid(self.owner, 0)
        pids = [self.places.pid(place) for place in range(CONSUMERS + 2)]
        until(lambda: not any(map(is_running, pids)), "all processes are gone", self.patience_s)
        until(
            lambda: not any(memory_of(pid) == self.memory for pid in all_pids()), "the memory is free", self.patience_s
        )


def fork(run: Callable[[], None]) -> int:
    """Run a function in a forked process, and return its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            sys.stderr.flush()
            os._exit(0)
    return pid


def all_pids() -> list[int]:
    return [int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit()]


def memory_of(pid: int) -> str | None:
    """Return the inode of the cache that a process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return None
    return next((line.split()[4] for line in lines if "memfd:odstream" in line), None)


def one_kill(family: Family, kind: str, chance: random.Random) -> None:
    """Let the family run for a moment, do it, and see that what must hold does."""
    time.sleep(chance.uniform(0.0, 0.08))
    place = chance.randrange(CONSUMERS)
    everybody = range(CONSUMERS + 1)
    if kind == "consumer":
        os.kill(family.places.pid(place), signal.SIGKILL)
        family.everybody_goes_on(everybody)
    elif kind.startswith("suspended"):
        pid = family.owner if kind.endswith("owner") else family.places.pid(place)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(chance.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGCONT)
        family.everybody_goes_on(everybody)
    elif kind == "producer":
        os.kill(family.producer, signal.SIGKILL)
        family.everybody_fails(everybody)
    else:
        os.kill(family.owner, signal.SIGKILL)
        if kind == "owner and producer":
            os.kill(family.producer, signal.SIGKILL)
        family.everybody_fails(range(CONSUMERS))
        until(lambda: not is_running(family.producer), "the producer is gone", 10.0)


def run(kills: int, seed: int, report: Callable[[str], None] = print) -> Counter[str]:
    """Kill ``kills`` processes of each kind; return how many were. Raises at the first thing that is not right."""
    chance = random.Random(seed)
    before = set(os.listdir("/dev/shm"))
    done: Counter[str] = Counter()
    while any(done[kind] < kills for kind in KINDS):
        family = Family()
        last = chance.choice([kind for kind in KINDS[1:4] if done[kind] < kills] or ["producer"])
        survivable = [kind for kind in ("consumer", *KINDS[4:]) for _ in range(min(kills - done[kind], 3))]
        for kind in [*chance.sample(survivable, min(len(survivable), CONSUMER_KILLS_PER_FAMILY)), last]:
            one_kill(family, kind, chance)
            done[kind] += 1
        family.end()
        report(json.dumps(done))
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "odstream" in name}
    return done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.process.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="of each kind")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    print("seed", options.seed)
    started = time.monotonic()
    done = run(
        options.kills, options.seed, lambda line: print(f"{time.monotonic() - started:7.1f} s {line}", flush=True)
    )
    print(f"{sum(done.values())} kills and suspensions in {time.monotonic() - started:.0f} s: no hang, no torn sample")


if __name__ == "__main__":
    main()
