"""The rows of the sampling benchmark: what is measured, in which order, against what."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np
import ours
import torch
from limit import Limit
from peers import EMBODICHAIN, TORCHRL, Peer, PeerPackage, make_environment, peer_python
from report import Row, Target, render_table, show_seconds, write_json
from timing import seconds_per_call
from workload import Case, Shape

import odstream
from odstream.engine import OnlineDataEngine

Measure = Callable[[], list[float]]
PeerUse = Literal["make", "existing", "none"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    name: str
    rounds: int
    calls: int
    """Timed calls per round of ours and of the limit."""
    peer_calls: int
    rows: tuple[int, ...]
    growth_rows: tuple[int, int]
    growth_steps: tuple[int, int]
    growth_fixed_rows: int
    wide_rows: int
    """Rows of the cache with 4094-byte frames."""
    peer_targets: Mapping[int, float] = field(default_factory=dict)
    """How many times faster than EmbodiChain ``sample_batch`` should be, by rows."""


FULL = Size(
    name="full",
    rounds=9,
    calls=20,
    peer_calls=2,
    rows=(256, 2048),
    growth_rows=(32, 8192),
    growth_steps=(100, 2000),
    growth_fixed_rows=256,
    wide_rows=256,
    peer_targets={256: 30.0, 2048: 200.0},
)
QUICK = Size(
    name="quick",
    rounds=3,
    calls=5,
    peer_calls=1,
    rows=(32,),
    growth_rows=(16, 64),
    growth_steps=(100, 200),
    growth_fixed_rows=16,
    wide_rows=8,
)


def interleaved(measures: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Take every measure once per round, forwards and backwards in turn; return the median of each round."""
    medians_s: dict[str, list[float]] = {name: [] for name in measures}
    for index in range(rounds):
        order = list(measures)[:: 1 if index % 2 == 0 else -1]
        for name in order:
            medians_s[name].append(median(measures[name]()))
    return medians_s


def ratio(above: list[float], below: list[float]) -> float:
    """Median over the rounds of one time over another of the same round."""
    return median(a / b for a, b in zip(above, below, strict=True))


def _growth_row(work: str, times_s: Mapping[str, list[float]]) -> Row:
    """Our growth from the small to the large shape, and how it relates to the limit's."""
    limit_growth = ratio(times_s["limit large"], times_s["limit small"])
    ours_growth = ratio(times_s["ours large"], times_s["ours small"])
    relative = ours_growth / limit_growth
    shown = {name: show_seconds(median(values)) for name, values in times_s.items()}
    return Row(
        work=work,
        ours=f"{ours_growth:.2f}x",
        limit_ratio=relative,
        note=f"limit {shown['limit small']} to {shown['limit large']} ({limit_growth:.2f}x), "
        f"ours {shown['ours small']} to {shown['ours large']}",
        targets=[Target(text="<= 1.2x the limit's", value=relative, bound=1.2, kind="at most")],
        figures={"round_medians_s": dict(times_s)},
    )


class Bench:
    """Collects the rows of the table."""

    def __init__(self, size: Size, embodichain: Peer | None, torchrl: Peer | None) -> None:
        self.size = size
        self.rows: list[Row] = []
        self._embodichain = embodichain
        self._torchrl = torchrl
        self.limit_name = ""

    def sampling(self) -> None:
        """``sample_batch`` in its three modes and ``sample_context`` with budgets, at each number of rows."""
        for rows in self.size.rows:
            shape = Shape(rows=rows, steps=300)
            with self._contestants(shape, plain=True, budgeted=True) as (limit, plain, budgeted):
                for mode in ("episode", "segment", "boundary"):
                    case = Case(work="sample_batch", shape=shape, mode=mode)
                    self._sampling_row(case, limit, plain, f"sample_batch(256, 64, {mode}), N={rows}")
                case = Case(work="sample_context", shape=shape, quota=True)
                self._sampling_row(case, limit, budgeted, f"sample_context(256, H=2, F=64), quota, N={rows}")
                self._status_row(budgeted, rows)

    def wide_frames(self) -> None:
        """Batches of 67 MB."""
        shape = Shape(rows=self.size.wide_rows, steps=300, obs_dim=988)
        case = Case(work="sample_batch", shape=shape)
        with self._contestants(shape, plain=True) as (limit, plain, _):
            megabytes = case.batch_size * case.chunk_length * shape.frame_bytes / 1e6
            self._sampling_row(case, limit, plain, f"{megabytes:.0f} MB batches, N={shape.rows}", limit_bound=2.5)

    def growth(self) -> None:
        """How our time grows with the cache and with the episodes, relative to how the limit's does."""
        small, large = (Shape(rows=rows, steps=300) for rows in self.size.growth_rows)
        self._growth_rows(small, large, f"N={small.rows} to {large.rows}, T=300")
        small, large = (Shape(rows=self.size.growth_fixed_rows, steps=steps) for steps in self.size.growth_steps)
        self._growth_rows(small, large, f"T={small.steps} to {large.steps}, N={small.rows}")

    def publication(self) -> None:
        """Publication of 8 episodes of 300 frames, and recording for 8 environments."""
        times = ours.publication(rows=8, steps=300, repeats=10 * self.size.rounds)
        held_s, all_s = median(times["held"]), median(times["all"])
        peer = self._special(self._embodichain, "publication", rows=8, steps=300, repeats=10 * self.size.rounds)
        self._simple_row(
            "publication of 8 episodes of 300 frames, lock held",
            held_s,
            0.3e-3,
            figures={"all_s": all_s},
            note=f"publishing them takes {show_seconds(all_s)} in all; samplers wait only while the lock is held",
            embodichain_s=None if peer is None else median(peer),
        )
        steps_s = ours.recording(300)
        self._simple_row("recording, per step of 8 environments", median(steps_s), 10e-6)

    def imports(self) -> None:
        """The planner's import in a fresh interpreter."""
        seen = [ours.first_import("odstream.configuration") for _ in range(self.size.rounds)]
        theirs = None
        if self._embodichain is not None:
            python, module = str(peer_python(EMBODICHAIN)), "embodichain.data_pipeline.configuration"
            theirs = median(ours.first_import(module, python)["seconds"] for _ in range(self.size.rounds))
        torch_came = any(one["torch"] for one in seen)
        self._simple_row(
            "import odstream.configuration" + (" (imports torch!)" if torch_came else ""),
            median(one["seconds"] for one in seen),
            0.0 if torch_came else 50e-3,
            target_text="<= 50 ms, no torch",
            embodichain_s=theirs,
        )

    def killed_worker(self) -> None:
        """From SIGKILL of the worker to the error of a sampling call."""
        found = ours.killed_worker()
        peer = self._special(self._embodichain, "killed_worker", stop_timeout_s=5.0)
        note = f"{found['served']} batches were still served before the kernel had ended the process"
        if peer is not None:
            note += f"; EmbodiChain served {peer['served']}"
            note += ", its stop() returned" if peer["returned"] else ", its stop() did not return within 5 s"
        self._simple_row(
            "detection of a killed worker",
            found["seconds"],
            1.0,
            note=note,
            embodichain_s=None if peer is None else peer["seconds"],
            figures={"ours": found, "embodichain": peer},
        )

    @contextlib.contextmanager
    def _contestants(
        self, shape: Shape, *, plain: bool = False, budgeted: bool = False
    ) -> Iterator[tuple[Limit, OnlineDataEngine, OnlineDataEngine]]:
        """The limit and two engines of one shape, without and with budgets; both are one if only one is wanted."""
        with contextlib.ExitStack() as stack:
            limit = stack.enter_context(contextlib.closing(Limit(shape)))
            self.limit_name = limit.name
            engines = [
                stack.enter_context(ours.running_engine(shape, quota=quota))
                for quota, wanted in ((False, plain), (True, budgeted))
                if wanted
            ]
            yield limit, engines[0], engines[-1]

    def _sampling_row(
        self, case: Case, limit: Limit, engine: OnlineDataEngine, work: str, *, limit_bound: float = 2.0
    ) -> None:
        copy, bare_copy, sample = limit.prepare(case), limit.prepare(case, buffers=1), ours.prepare(engine, case)
        measures: dict[str, Measure] = {
            "bare limit": self._timed(bare_copy),
            "limit": self._timed(copy),
            "ours": self._timed(sample),
        }
        own = tuple(measures)
        for peer in self._peers_for(case):
            peer.prepare(case)
            measures[peer.name] = lambda peer=peer: peer.measure(self.size.peer_calls)  # type: ignore[misc]
        times_s = interleaved(measures, self.size.rounds)
        limit_ratio = ratio(times_s["ours"], times_s["limit"])
        peer_ratios = {name: ratio(times_s[name], times_s["ours"]) for name in measures if name not in own}
        self._add(
            Row(
                work=work,
                ours=show_seconds(median(times_s["ours"])),
                limit_s=median(times_s["limit"]),
                limit_ratio=limit_ratio,
                peers_s={name: median(times_s[name]) for name in peer_ratios},
                peer_ratios=peer_ratios,
                targets=[
                    Target(text=f"<= {limit_bound:g}x limit", value=limit_ratio, bound=limit_bound, kind="at most"),
                    *self._peer_targets(case, peer_ratios),
                ],
                note=f"{ratio(times_s['ours'], times_s['bare limit']):.2f}x the bare limit",
                figures={"case": case.to_json(), "round_medians_s": times_s},
            )
        )

    def _peer_targets(self, case: Case, peer_ratios: Mapping[str, float]) -> list[Target]:
        bound = self.size.peer_targets.get(case.shape.rows)
        if bound is None or case.shape.frame_bytes > 1000:
            return []
        bound = 10.0 if case.work == "sample_context" else bound
        value = peer_ratios.get(EMBODICHAIN.name)
        return [Target(text=f">= {bound:g}x EmbodiChain", value=value, bound=bound, kind="at least")]

    def _growth_rows(self, small: Shape, large: Shape, span: str) -> None:
        with self._contestants(small, budgeted=True) as few, self._contestants(large, budgeted=True) as many:
            for work in ("sample_batch", "sample_context"):
                measures: dict[str, Measure] = {}
                for name, shape, (limit, engine, _) in (("small", small, few), ("large", large, many)):
                    case = Case(work=work, shape=shape, quota=True)
                    measures[f"limit {name}"] = self._timed(limit.prepare(case))
                    measures[f"ours {name}"] = self._timed(ours.prepare(engine, case))
                self._add(_growth_row(f"growth of {work}, {span}", interleaved(measures, self.size.rounds)))
            if large.rows not in self.size.rows:
                self._status_row(many[1], large.rows)

    def _timed(self, call: Callable[[], object]) -> Measure:
        return lambda: seconds_per_call(call, self.size.calls)

    def _status_row(self, engine: OnlineDataEngine, rows: int) -> None:
        ours_s = median(seconds_per_call(engine.get_flow_status, 10 * self.size.calls))
        peer = None
        if rows in self.size.rows:
            peer = self._special(self._embodichain, "flow_status", rows=rows, calls=self.size.calls)
        self._simple_row(
            f"get_flow_status, N={rows}", ours_s, 0.1e-3, embodichain_s=None if peer is None else median(peer)
        )

    def _simple_row(
        self,
        work: str,
        ours_s: float,
        bound_s: float,
        *,
        target_text: str = "",
        note: str = "",
        embodichain_s: float | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        peers_s = {} if embodichain_s is None else {EMBODICHAIN.name: embodichain_s}
        text = target_text or f"<= {show_seconds(bound_s)}"
        self._add(
            Row(
                work=work,
                ours=show_seconds(ours_s),
                peers_s=peers_s,
                peer_ratios={name: value_s / ours_s for name, value_s in peers_s.items()},
                targets=[Target(text=text, value=ours_s, bound=bound_s, kind="at most")],
                note=note,
                figures={"ours_s": ours_s, **(figures or {})},
            )
        )

    def _peers_for(self, case: Case) -> list[Peer]:
        plain = case.work == "sample_batch" and case.mode == "episode"
        return [peer for peer in (self._embodichain, self._torchrl if plain else None) if peer is not None]

    def _special(self, peer: Peer | None, name: str, **arguments: Any) -> Any:
        return None if peer is None else peer.special(name, **arguments)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(f"  {row.work}: {row.ours}", file=sys.stderr, flush=True)


def start_peer(package: PeerPackage, use: PeerUse, missing: dict[str, str]) -> Peer | None:
    """Start a peer, after making its environment if that is wanted; where there is none, note why in ``missing``."""
    if use == "none":
        missing[package.name] = "not asked for"
        return None
    try:
        if not peer_python(package).exists():
            if use == "existing":
                missing[package.name] = "its environment does not exist"
                return None
            print(f"making an environment for {package.name} (once)", file=sys.stderr, flush=True)
            make_environment(package)
        peer = Peer(package)
        peer.special("ready")
    except Exception as error:
        missing[package.name] = f"{type(error).__name__}: {error}"
        return None
    return peer


def run(size: Size, peer_use: PeerUse) -> None:
    """Measure everything, print the table, write the JSON file."""
    torch.set_num_threads(1)
    missing: dict[str, str] = {}
    load_before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        embodichain = start_peer(EMBODICHAIN, peer_use, missing)
        torchrl = start_peer(TORCHRL, peer_use, missing)
        for peer in (embodichain, torchrl):
            if peer is not None:
                stack.callback(peer.close, 5.0)
        bench = Bench(size, embodichain, torchrl)
        for part in (
            bench.sampling,
            bench.wide_frames,
            bench.growth,
            bench.publication,
            bench.imports,
            bench.killed_worker,  # last: the peer may not survive it
        ):
            part()
    names = [package.name for package in (EMBODICHAIN, TORCHRL) if package.name not in missing]
    print(render_table(bench.rows, names))
    for name, why in missing.items():
        print(f"{name} was not measured: {why}")
    print(
        f"load average {load_before:.1f} at the start, on {os.cpu_count()} cores; figures are good on an idle machine"
    )
    facts = {
        "size": size.name,
        "load_average": {"at_start": load_before, "at_end": os.getloadavg()[0]},
        "limit": bench.limit_name,
        "missing": missing,
        "versions": {"odstream": odstream.__version__, "torch": torch.__version__, "numpy": np.__version__},
    }
    print(f"limit: {bench.limit_name}; {write_json(f'sampling-{size.name}', bench.rows, facts)}")
