"""Records become columns: held values stay apart, shares are of time, and thinning hides no peak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from odstream.perf import Record
from odstream.report.series import Timeline, averaged, thinned


def record(at_s: float, value: float, *, stale: bool = False, verdict: str = "balanced") -> Record:
    return Record(
        step=int(at_s * 10),
        unix_ns=1000,
        elapsed_s=at_s,
        values={"perf/thru": value, "perf/window": 2.0},
        stale=frozenset({"perf/thru"} if stale else ()),
        verdict=verdict,
    )


def test_a_held_value_is_the_last_one_and_counts_nowhere_else() -> None:
    timeline = Timeline([record(2, 10.0), record(4, 20.0), record(6, 20.0, stale=True)])
    found = timeline.summary("perf/thru")
    assert (found.last, found.last_is_held, found.mean, found.least, found.most) == (20.0, True, 15.0, 10.0, 20.0)


def test_means_are_by_time_not_by_record() -> None:
    timeline = Timeline([record(2, 10.0), record(8, 30.0)])
    assert timeline.summary("perf/thru").mean == pytest.approx((2 * 10 + 6 * 30) / 8)


def test_a_metric_that_was_never_recorded_is_unknown() -> None:
    timeline = Timeline([record(2, 10.0)])
    assert not timeline.series("perf/age_p50").is_known
    assert np.isnan(timeline.summary("perf/age_p50").last)


def test_verdicts_have_the_share_of_time_for_which_they_held() -> None:
    verdicts = ["insufficient; 3 steps", "training (compute); a faster device", "training (compute); other advice"]
    records = [record(at_s, 1.0, verdict=verdict) for at_s, verdict in zip((2, 4, 8), verdicts, strict=True)]
    timeline = Timeline(records)
    assert timeline.verdicts() == [("insufficient", 0.0, 2.0), ("training (compute)", 2.0, 8.0)]
    assert timeline.verdict_shares() == pytest.approx({"training (compute)": 0.75, "insufficient": 0.25})


def test_time_is_that_of_the_monotonic_clock_whatever_the_machines_clock_says() -> None:
    """Field case T12."""
    found = [replace(record(at_s, 1.0), unix_ns=stamp) for at_s, stamp in ((2, 900), (5, 100), (7, 500))]
    assert Timeline(found).seconds.tolist() == [2.0, 5.0, 7.0]


def test_thinning_keeps_values_and_every_peak() -> None:
    across = np.arange(10_000, dtype=np.float64)
    line = np.sin(across / 50)
    line[7_654] = 99.0
    line[1_234] = -99.0
    line[5_000:5_500] = np.nan
    moments, (drawn,) = thinned(across, [line])
    assert len(moments) <= 1002
    assert {99.0, -99.0} <= set(drawn.tolist())
    assert np.array_equal(line[moments.astype(int)], drawn, equal_nan=True)
    assert np.isnan(drawn).any()
    assert (moments[0], moments[-1]) == (0.0, 9_999.0)
    assert (np.diff(moments) > 0).all()


def test_short_lines_are_not_thinned() -> None:
    across = np.arange(10.0)
    moments, (drawn,) = thinned(across, [across])
    assert moments is across
    assert drawn is across


def test_averaged_shares_still_add_up() -> None:
    parts = np.random.default_rng(0).dirichlet((1, 2, 3), 5_000).T
    moments, drawn = averaged(np.arange(5_000.0), list(parts))
    assert len(moments) == len(drawn[0]) == 250
    assert np.sum(drawn, axis=0) == pytest.approx(1.0)
    assert drawn[0].mean() == pytest.approx(parts[0].mean())


def test_no_record_is_no_error() -> None:
    timeline = Timeline([])
    assert (len(timeline), timeline.names, timeline.verdicts(), timeline.verdict_shares()) == (0, (), [], {})
