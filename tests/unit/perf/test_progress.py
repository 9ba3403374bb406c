from __future__ import annotations

import io
from dataclasses import replace

import pytest

from odstream.perf.progress import ProgressBar, progress_fields
from odstream.perf.records import Record


def record(stale: frozenset[str] = frozenset(), **changes: float) -> Record:
    values = {
        "perf/thru": 12.1,
        "perf/infer_capacity": 18.5,
        "perf/train_capacity": 13.2,
        "perf/dispatch_wait": 0.1,
        "perf/pool": 24.0,
    }
    return Record(step=1, unix_ns=0, elapsed_s=1.0, values={**values, **changes}, stale=stale)


@pytest.mark.spec("PERF-05")
def test_the_bar_shows_loss_accuracy_throughput_capacities_wait_pool_and_epoch() -> None:
    file = io.StringIO()
    bar = ProgressBar(10, file=file)
    bar.step(record(), loss=0.35, acc=0.83, epoch="1/10")
    bar.close()
    shown = file.getvalue().rpartition("\r")[2]
    assert shown.startswith("Training:  10%")
    assert "loss=0.350, acc=0.830, thru=12.1, I=18.5, T=13.2, wait=0.1s, pool=24, epoch=1/10" in shown


def test_a_stale_value_has_a_star_and_an_unknown_one_is_no_zero() -> None:
    fields = progress_fields(record(stale=frozenset({"perf/infer_capacity"})))
    assert fields["I"] == "18.5*"
    assert progress_fields(None) == {"thru": "-", "I": "-", "T": "-", "wait": "-", "pool": "-"}
    assert progress_fields(record(**{"perf/thru": float("nan")}))["thru"] == "-"


def test_capacity_without_a_known_reuse_is_in_multiples_of_it() -> None:
    assert progress_fields(replace(record(), details={"reuse_known": False}))["I"] == "18.5xK"


def test_the_last_record_stays_until_the_next() -> None:
    file = io.StringIO()
    bar = ProgressBar(None, file=file)
    bar.step(record())
    for _ in range(20):
        bar.step(loss=0.25)
    bar.close()
    assert "thru=12.1" in file.getvalue().rpartition("\r")[2]
