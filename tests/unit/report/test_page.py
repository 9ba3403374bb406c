"""The page says what the run recorded, digit for digit, and what it did not record; nothing in it is run or loaded."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odstream.perf import METRICS, Record, read_records
from odstream.report import Page, build_page, read_run
from odstream.report.charts import Picture
from tests.fakes.html import PageReader
from tests.fakes.run import NASTY, PARTS, FakeRun, write_run

pytest.importorskip("matplotlib", reason="needs the extra plot")

BUDGETS = ("perf/remaining", "perf/retired")
SECTIONS = ["rates", "states", "cache", "steps", "reuse", "plan", "balances", "verification", "environment"]


def page_of(folder: Path, *, png: bool = False, draws: bool = False) -> Page:
    """Build the page; charts, which take most of the time, are drawn only where a test looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in () if png or draws else ("draw_lines", "draw_bands", "draw_bars"):
            patch.setattr(f"odstream.report.figures.{name}", lambda *_: Picture("<svg></svg>", None))
        return built(folder, png)


def built(folder: Path, png: bool) -> Page:
    return build_page(read_run(folder), png=png, now_unix_ns=lambda: 1_790_003_700_000_000_000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, PageReader]:
    folder = write_run(tmp_path_factory.mktemp("runs") / "whole")
    html = page_of(folder, draws=True).html
    return folder, html, PageReader(html)


def data_of(reader: PageReader) -> dict[str, Any]:
    (element,) = reader.all("script")
    assert element.attributes == {"type": "application/json", "id": "data"}
    found: dict[str, Any] = json.loads(element.text)
    return found


def rewrite(folder: Path, change: Any) -> None:
    path = folder / "metrics.jsonl"
    records = [change(index, record) for index, record in enumerate(read_records(path).records)]
    path.write_text("".join(record.to_json() + "\n" for record in records), encoding="utf-8")


def changed(record: Record, **values: float) -> Record:
    return dataclasses.replace(
        record, values={**record.values, **{f"perf/{name}": value for name, value in values.items()}}
    )


# ---------------------------------------------------------------- numbers


@pytest.mark.spec("PERF-02")
def test_every_metric_of_the_last_record_is_on_the_page_with_all_its_digits(
    whole: tuple[Path, str, PageReader],
) -> None:
    folder, _, reader = whole
    last = read_records(folder / "metrics.jsonl").records[-1]
    shown: dict[str, set[float]] = {}
    for element in reader.elements:
        if element.attributes.get("data-stat") == "last":
            shown.setdefault(element.attributes["data-metric"], set()).add(float(element.attributes["data-value"]))
    assert shown == {name: {value} for name, value in last.values.items()}
    assert {metric.name for metric in METRICS} <= shown.keys()


def test_means_and_extremes_are_those_of_the_file(whole: tuple[Path, str, PageReader]) -> None:
    folder, _, reader = whole
    records = read_records(folder / "metrics.jsonl").records
    weights = [1.0] * 120  # a record a second
    for name in ("perf/thru", "perf/infer_capacity", "perf/age_p95", "perf/learner/wait"):
        known = [
            (record.fresh()[name], by) for record, by in zip(records, weights, strict=True) if name in record.fresh()
        ]
        fresh, seconds = zip(*known, strict=True)
        wanted = {"least": min(fresh), "most": max(fresh), "mean": float(np.average(fresh, weights=seconds))}
        for stat, value in wanted.items():
            (cell,) = reader.all("td", data_metric=name, data_stat=stat)
            assert float(cell.attributes["data-value"]) == pytest.approx(value, rel=1e-12)


def test_the_data_block_holds_the_last_record_and_the_totals(whole: tuple[Path, str, PageReader]) -> None:
    folder, _, reader = whole
    data = data_of(reader)
    assert data["last"] == json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert data["records"] == 120
    assert data["trajectories"] == json.loads((folder / "trajectories.json").read_text())["totals"]
    assert sum(data["verdict_shares"].values()) == pytest.approx(1.0)


@pytest.mark.spec("PLAN-15")
def test_every_line_of_the_comparison_is_there_and_judged(whole: tuple[Path, str, PageReader]) -> None:
    folder, html, reader = whole
    lines = json.loads((folder / "comparison.json").read_text())["lines"]
    for line in lines:
        name = f"{line['name']}, {line['unit']}"
        (cell,) = reader.all("td", data_line=name, data_stat="observed")
        assert float(cell.attributes["data-value"]) == line["observed"]
    (ratio,) = reader.all("td", data_line="producer duty, share", data_stat="ratio")
    assert float(ratio.attributes["data-value"]) == 0.93 / 0.8
    verdicts = [cell.text for cell in reader.all("td") if cell.text.startswith(("within", "outside", "no plan"))]
    assert verdicts == ["within", "no plan for it", "outside", "outside", "within"]


def test_the_verdict_stands_at_the_top_with_its_advice_and_its_shares(
    whole: tuple[Path, str, PageReader],
) -> None:
    _, html, reader = whole
    assert html.index("Production holds the run back.") < html.index("<nav")
    assert "1.3 times the producers" in html
    shares = {
        cell.attributes["data-verdict"]: float(cell.attributes["data-value"])
        for cell in reader.all("td")
        if "data-verdict" in cell.attributes
    }
    assert list(shares) == ["production", "insufficient"]
    assert shares == data_of(reader)["verdict_shares"]


# ---------------------------------------------------------------- balances


def differences(reader: PageReader) -> dict[str, int]:
    return {words: difference for _, words, difference in data_of(reader)["balances"]}


def test_a_run_that_balances_says_so(whole: tuple[Path, str, PageReader]) -> None:
    _, html, reader = whole
    assert len(differences(reader)) == 7
    assert set(differences(reader).values()) == {0}
    assert html.count(">balances</td>") == 7
    assert "Out of balance" not in html
    assert "does not balance" not in html


@pytest.mark.parametrize(
    ("count", "wrong"),
    [
        (
            "published",
            ["accepted = published + lost", "100 × published = delivered + prefetched + remaining + retired"],
        ),
        ("retired", ["100 × published = delivered + prefetched + remaining + retired"]),
        ("failed_updates", ["delivered = completed + in flight + failed updates"]),
    ],
)
def test_a_count_that_is_wrong_is_named_with_its_difference(tmp_path: Path, count: str, wrong: list[str]) -> None:
    write_run(tmp_path)
    rewrite(tmp_path, lambda _, record: changed(record, **{count: record.values[f"perf/{count}"] + 1000}))
    html = page_of(tmp_path).html
    found = differences(PageReader(html))
    assert [words for words, difference in found.items() if difference] == wrong
    assert html.count("does not balance by ") == len(wrong)
    if count != "failed_updates":
        assert "Out of balance" in html


def test_counts_of_different_moments_are_not_put_into_one_equation(tmp_path: Path) -> None:
    write_run(tmp_path, parts=("metrics.jsonl",))
    rewrite(tmp_path, lambda _, record: dataclasses.replace(record, stale=frozenset({"perf/retired"})))
    assert not any("retired" in words for words in differences(PageReader(page_of(tmp_path).html)))


def test_deliveries_beyond_the_budget_are_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path) / "trajectories.json"
    found = json.loads(path.read_text())
    found["episodes"][3][5] += 50
    path.write_text(json.dumps(found), encoding="utf-8")
    wrong = {words: by for words, by in differences(PageReader(page_of(tmp_path).html)).items() if by}
    assert wrong["delivered = sum over trajectories"] == -50
    assert wrong["deliveries beyond K = none"] > 0


# ---------------------------------------------------------------- what is missing


def test_each_section_is_there_in_order_with_any_part_of_the_files(tmp_path: Path) -> None:
    for index, kept in enumerate([(), *[(name,) for name in PARTS]]):
        reader = PageReader(page_of(write_run(tmp_path / str(index), parts=kept)).html)
        assert [one.attributes["id"] for one in reader.all("section") if "id" in one.attributes] == SECTIONS


def test_a_run_without_metrics_says_how_to_get_them(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, parts=()), png=True)
    assert "Metrics were off." in page.html
    assert "debug.enable_perf_metrics=true" in page.html
    assert "odstream train --plan plan.json" in page.html
    assert page.pictures == {}


def test_nothing_is_drawn_that_needs_matplotlib_where_there_is_nothing_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odstream.report.charts._new_chart", None)
    page_of(write_run(tmp_path, parts=("task.yaml", "comparison.json", "plan.json")))


def test_a_torn_file_is_said_at_the_top(tmp_path: Path) -> None:
    """Field case Q02."""
    path = write_run(tmp_path) / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    html = page_of(tmp_path).html
    assert html.index("shown up to the 119 whole records") < html.index("<nav")


def test_metrics_that_went_to_other_sinks_are_not_said_to_be_off(tmp_path: Path) -> None:
    path = write_run(tmp_path, parts=("task.yaml",)) / "run.json"
    head = json.loads(path.read_text())
    head["settings"]["debug"] = {"enable_perf_metrics": True, "sinks": ["tensorboard"]}
    path.write_text(json.dumps(head), encoding="utf-8")
    html = page_of(tmp_path).html
    assert "Metrics went to other sinks (tensorboard), this report is made from jsonl." in html
    assert "Metrics were off" not in html


@pytest.mark.parametrize("records", [0, 1, 2])
def test_a_run_of_hardly_any_record_is_shown(tmp_path: Path, records: int) -> None:
    write_run(tmp_path, FakeRun(records=2, seconds=20))
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:records]), encoding="utf-8")
    html = page_of(tmp_path, png=True).html
    assert ("no record was written" in html) == (records == 0)
    PageReader(html)


def test_a_metric_that_nobody_knows_is_shown_with_the_rest(tmp_path: Path) -> None:
    write_run(tmp_path)
    rewrite(tmp_path, lambda index, record: changed(record, **{"odd/<thing>": float(index)}))
    reader = PageReader(page_of(tmp_path).html)
    (cell,) = reader.all("td", data_metric="perf/odd/<thing>", data_stat="last")
    assert cell.attributes["data-value"] == "119.0"


def test_values_that_are_not_finite_do_not_stop_the_report(tmp_path: Path) -> None:
    write_run(tmp_path)
    rewrite(
        tmp_path,
        lambda index, record: changed(
            record, thru=float("nan"), age_p50=float("inf") if index % 2 else 3.0, infer_capacity=float("nan")
        ),
    )
    html = page_of(tmp_path, png=True).html
    assert data_of(PageReader(html))["last"]["values"]["perf/thru"] == "NaN"


def test_held_values_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path)
    rewrite(tmp_path, lambda _, record: dataclasses.replace(record, stale=frozenset({"perf/infer_capacity"})))
    html = page_of(tmp_path).html
    assert "held from an earlier window" in html
    (cell,) = PageReader(html).all("td", data_metric="perf/infer_capacity", data_stat="last")
    assert cell.text.endswith("held")


def test_a_run_without_budgets_has_no_equation_of_budgets(tmp_path: Path) -> None:
    write_run(tmp_path, parts=("metrics.jsonl", "trajectories.json"))
    path = tmp_path / "trajectories.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "assigned_chunks": None}), encoding="utf-8")
    head = json.loads((tmp_path / "run.json").read_text())
    head["settings"] = {}
    (tmp_path / "run.json").write_text(json.dumps(head), encoding="utf-8")
    reader = PageReader(page_of(tmp_path).html)
    assert not any("×" in words or "beyond" in words for words in differences(reader))


def test_without_budgets_production_is_no_bound_of_what_training_consumes(tmp_path: Path) -> None:
    write_run(tmp_path, parts=("metrics.jsonl",))
    assert "of min(I, T) =" in page_of(tmp_path).html

    def without_budget(_: int, record: Record) -> Record:
        return dataclasses.replace(
            record, values={name: value for name, value in record.values.items() if name not in BUDGETS}
        )

    rewrite(tmp_path, without_budget)
    html = page_of(tmp_path).html
    assert "min(I, T) =" not in html
    assert "is no bound" in html


def test_what_was_drawn_beside_the_loop_did_not_retire_unused(tmp_path: Path) -> None:
    path = write_run(tmp_path) / "trajectories.json"
    found = json.loads(path.read_text())
    whole = page_of(tmp_path).html
    found["episodes"][0][5] -= 7
    path.write_text(json.dumps(found), encoding="utf-8")
    html = page_of(tmp_path).html
    assert "That is the cache" not in whole
    assert "7 were drawn and used otherwise" in html
    unused = re.findall(r"replaced trajectories: ([\d\u202f]+) of", whole + html)
    assert unused[0] == unused[1]


def test_the_result_that_a_trainer_left_is_told(tmp_path: Path) -> None:
    outcome = {"target": 0.95, "target_met": False, "final": {"scenes": 100, "success": 0.83}}
    (write_run(tmp_path, parts=()) / "demo.json").write_text(json.dumps(outcome), encoding="utf-8")
    html = page_of(tmp_path).html
    assert "of 100 fresh scenes at the end" in html
    assert ">missed</dd>" in html


# ---------------------------------------------------------------- a page that is safe, and for everyone


def test_nothing_of_the_files_becomes_markup(tmp_path: Path) -> None:
    write_run(tmp_path / NASTY.replace("/", "_"), FakeRun(name=NASTY))
    folder = tmp_path / NASTY.replace("/", "_")
    rewrite(folder, lambda _, record: dataclasses.replace(record, verdict=f"{NASTY}; {NASTY}"))
    html = page_of(folder).html
    reader = PageReader(html)
    assert "<script>alert" not in html
    assert len(reader.all("script")) == 1
    assert NASTY in reader.all("h1")[0].text
    assert NASTY in data_of(reader)["last"]["verdict"]
    assert any("<script>alert" in one.text for one in reader.all("pre"))


def test_the_page_loads_nothing_and_runs_nothing(whole: tuple[Path, str, PageReader]) -> None:
    _, html, reader = whole
    assert "http://" not in html
    assert "https://" not in html
    assert not reader.all("img") and not reader.all("iframe")
    assert [one.attributes for one in reader.all("link")] == [{"rel": "icon", "href": "data:,"}]
    assert "@import" not in html and "url(" not in re.sub(r"url\(#[\w-]+\)", "", html)
    assert not any(name.startswith("on") for one in reader.elements for name in one.attributes)


def test_ids_are_unique_and_links_lead_somewhere(whole: tuple[Path, str, PageReader]) -> None:
    _, _, reader = whole
    ids = [one.attributes["id"] for one in reader.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    links = [one.attributes["href"] for one in reader.all("a")]
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_headings_are_in_order_and_charts_and_tables_have_words(whole: tuple[Path, str, PageReader]) -> None:
    _, _, reader = whole
    levels = [int(one.tag[1]) for one in reader.elements if re.fullmatch(r"h[1-6]", one.tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels[:-1], levels[1:], strict=True))
    charts = reader.all("svg")
    assert len(charts) == 12
    for chart in charts:
        assert chart.attributes["role"] == "img"
        assert re.search(r"\d", chart.attributes["aria-label"])
    for cell in reader.all("th"):
        assert cell.attributes["scope"] in ("col", "row")
    assert len(reader.all("caption")) == len(reader.all("table"))
    assert reader.all("html")[0].attributes["lang"] == "en"


@pytest.mark.spec("APP-03")
def test_each_row_of_the_verification_table_says_what_was_recorded_and_where(
    whole: tuple[Path, str, PageReader], tmp_path: Path
) -> None:
    _, _, reader = whole
    heads = [one.text for one in reader.all("th", scope="row") if one.text.endswith("recorded")]
    names = ("Supply and consumption", "Protected reuse", "Frame exposure", "Waiting and resources")
    assert [head.startswith(name) for head, name in zip(heads, names, strict=True)] == [True] * 4
    assert [head[len(name) :] for head, name in zip(heads, names, strict=True)][1:] == [
        "4 of 4 recorded",
        "2 of 2 recorded",
        "6 of 6 recorded",
    ]
    nothing = PageReader(page_of(write_run(tmp_path, parts=())).html)
    without = [one.text for one in nothing.all("th", scope="row") if one.text.endswith("recorded")]
    assert [re.sub(r"\D*(\d+) of.*", r"\1", head) for head in without] == ["0"] * 4


def test_no_text_runs_into_the_next_element(whole: tuple[Path, str, PageReader]) -> None:
    _, html, _ = whole
    assert "None" not in re.sub(r'<script type="application/json".*?</script>', "", html, flags=re.DOTALL)
    assert "nan" not in re.sub(r"<[^>]*>", " ", html)
