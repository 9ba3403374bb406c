"""The benchmark measures what it says: one workload for all, honest ratios, a table that hides no missed target."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("timing", "workload", "limit", "report", "peers")


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's modules, which import each other by their plain names as a script's neighbours do."""
    before = dict(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        loaded: dict[str, ModuleType] = {name: importlib.import_module(name) for name in MODULES}
        yield SimpleNamespace(**loaded)
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in set(sys.modules) - set(before):
            if name in MODULES:
                del sys.modules[name]


def test_the_workload_has_22_fields_and_358_bytes_per_frame(bench: Any) -> None:
    shape = bench.workload.Shape(rows=8, steps=30)
    fields = bench.workload.all_fields(shape)
    assert len(fields) == 22
    assert sum(value[0, 0].nbytes for value in fields.values()) == shape.frame_bytes == 358


def test_segments_cover_every_episode_and_padding_follows_it(bench: Any) -> None:
    shape = bench.workload.Shape(rows=8, steps=30)
    fields = bench.workload.all_fields(shape)
    for row, length in enumerate(bench.workload.episode_lengths(shape).tolist()):
        assert fields["valid"][row].tolist() == [True] * length + [False] * (30 - length)
        assert fields["segment_start"][row].sum() == fields["segment_end"][row].sum() == 3
        assert (np.diff(fields["segment_id"][row, :length]) >= 0).all()
        assert not fields["obs"][row, length:].any()


def test_a_case_survives_its_way_to_a_peer(bench: Any) -> None:
    case = bench.workload.Case(work="sample_context", shape=bench.workload.Shape(rows=4, steps=20), quota=True)
    assert bench.workload.Case.from_json(json.loads(json.dumps(case.to_json()))) == case
    assert case.chunk_length == 65


def test_the_limit_copies_chunks_with_and_without_a_compiler(bench: Any) -> None:
    source = np.arange(1000, dtype=np.uint8)
    offsets = np.array([3, 500, 90])
    wanted = np.concatenate([source[at : at + 50] for at in offsets])
    loops = [bench.limit.copy_with_memmove, bench.limit.compile_copy_loop()]
    for loop in filter(None, loops):
        target = np.zeros(150, np.uint8)
        loop(source.ctypes.data, target.ctypes.data, offsets, 50)
        assert (target == wanted).all()


def test_the_limit_leaves_the_batch_before_intact(bench: Any) -> None:
    shape = bench.workload.Shape(rows=4, steps=100)
    limit = bench.limit.Limit(shape)
    copy = limit.prepare(bench.workload.Case(work="sample_batch", shape=shape, batch_size=4))
    first, second, third = copy(), copy(), copy()
    assert first is third
    assert not np.shares_memory(first, second)
    limit.close()


def test_a_missed_target_says_no_and_a_missing_peer_is_not_a_yes(bench: Any) -> None:
    def row(work: str, *values: float | None) -> Any:
        targets = [bench.report.Target(text="<= 2", value=value, bound=2.0, kind="at most") for value in values]
        return bench.report.Row(work=work, ours="1 ms", targets=targets)

    rows = [
        row("kept", 1.0, 2.0),
        row("missed", 1.0, 2.1),
        row("unknown", 1.0, None),
        row("both", 2.1, None),
        row("free"),
    ]
    table = bench.report.render_table(rows, ["peer"]).splitlines()
    assert table[0].split() == ["work", "ours", "limit", "ours/limit", "peer", "peer/ours", "target", "met"]
    assert [line.split()[-1] for line in table[2:]] == ["yes", "NO", "measured", "NO", "-"]


def test_at_least_bounds_from_below(bench: Any) -> None:
    target = bench.report.Target(text=">= 30x", value=29.0, bound=30.0, kind="at least")
    assert target.met is False


@pytest.mark.parametrize(("value_s", "shown"), [(1.5, "1.5 s"), (2.25e-3, "2.25 ms"), (8e-6, "8 us"), (None, "-")])
def test_times_are_shown_in_the_unit_that_suits(bench: Any, value_s: float | None, shown: str) -> None:
    assert bench.report.show_seconds(value_s) == shown


def test_timing_counts_every_call_but_the_first(bench: Any) -> None:
    calls = []
    times_s = bench.timing.seconds_per_call(lambda: calls.append(1), 5)
    assert len(times_s) == 5
    assert len(calls) == 6


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_quick_benchmark_runs_without_peers_and_prints_its_table() -> None:
    command = [sys.executable, str(BENCHMARKS / "bench_sampling.py"), "--quick", "--peers", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["work", "ours", "limit", "ours/limit", "target", "met"]
    table = lines[2 : lines.index("")]
    for work in ("sample_batch(256, 64, boundary)", "sample_context", "67 MB", "growth", "publication", "recording"):
        assert any(line.startswith(work) for line in table), work
    results = json.loads((BENCHMARKS / "results" / "sampling-quick.json").read_text(encoding="utf-8"))
    assert len(results["rows"]) == len(table)
    assert all(row["targets"] for row in results["rows"])
