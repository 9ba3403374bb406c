from __future__ import annotations

from pathlib import Path

import pytest

from odstream.perf.metrics import METRICS, metrics_table

PAGE = Path(__file__).resolve().parents[3] / "docs/metrics.md"


@pytest.mark.spec("PERF-02")
def test_the_named_metrics_exist_with_their_units() -> None:
    units = {metric.name: metric.unit for metric in METRICS}
    assert {
        "perf/step_time": "s",
        "perf/data_time": "s",
        "perf/compute_time": "s",
        "perf/train_capacity": "samples/s",
        "perf/infer_capacity": "samples/s",
        "perf/infer_batch_time": "s",
        "perf/dispatch_wait": "s",
        "perf/thru": "samples/s",
    }.items() <= units.items()


def test_names_are_unique_and_every_metric_is_explained() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("perf/")
        assert metric.unit and metric.formula
        assert metric.help.endswith(".")


def test_the_page_shows_the_table_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- table: begin -->\n\n", "\n<!-- table: end -->"
    assert page.partition(begin)[2].partition(end)[0] + "\n" == metrics_table(), (
        "write it anew: python -c 'from odstream.perf.metrics import metrics_table; print(metrics_table())'"
    )
