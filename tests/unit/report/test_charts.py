"""Charts fit into a page: no id twice, nothing loaded, text as it is, labels that do not overlap."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odstream.errors import MissingExtraError
from odstream.report.charts import Band, Bars, Canvas, Line, Picture, draw_bands, draw_bars, draw_lines, spread

pytest.importorskip("matplotlib", reason="needs the extra plot")

MOMENTS = np.linspace(0, 60, 200)


def canvas(name: str = "one", **more: object) -> Canvas:
    return Canvas(name=name, title="A <title> & more", across="s", up="samples/s", **more)  # type: ignore[arg-type]


def drawn(name: str = "one") -> Picture:
    values = 20 + np.sin(MOMENTS)
    gaps = np.where(MOMENTS > 30, np.nan, values)
    return draw_lines(
        canvas(name, steps=(MOMENTS, MOMENTS * 30)),
        MOMENTS,
        [Line("thru 20.123456 #0072b2", gaps, "red", values), Line("T 30", values + 10, "blue")],
    )


def test_two_charts_share_no_id_and_refer_to_their_own() -> None:
    page = drawn("one").svg + drawn("two").svg
    ids = re.findall(r' id="([^"]+)"', page)
    assert ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_a_chart_names_no_address_and_brings_no_style() -> None:
    svg = drawn().svg
    assert svg.startswith("<svg") and svg.endswith("</svg>")
    assert "http" not in svg
    assert "<style" not in svg
    assert "DejaVu" not in svg
    assert not re.search(r"#[0-9a-f]{6}\b", re.sub(r">[^<]*<", "><", svg)), "every colour follows the page's scheme"


def test_text_of_a_chart_stays_text_to_the_last_digit() -> None:
    svg = drawn().svg
    assert ">A &lt;title&gt; &amp; more</text>" in svg
    assert ">thru 20.123456 #0072b2</text>" in svg


def test_lines_stay_within_a_thousand_points_or_so() -> None:
    assert len(drawn().svg) < 60_000


def test_pictures_are_png_and_only_where_wanted() -> None:
    picture = drawn().png
    assert picture is not None and picture.startswith(b"\x89PNG")
    bars = Bars(np.arange(5.0), np.array([1.0, 2, 3, 4]), 3.0, "K = 3")
    assert draw_bars(canvas(png=False), bars).png is None


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_one_record_is_enough(value: float) -> None:
    one = np.array([value])
    draw_lines(canvas(), one, [Line("thru", one, "red")])
    draw_bands(canvas(percent=True), one, [Band("wait", one, "red"), Band("busy", one, "blue")], ["wait"])


def test_what_is_not_known_yet_is_not_drawn() -> None:
    unknown = np.full(200, np.nan)
    draw_lines(canvas(), MOMENTS, [Line("thru", unknown, "red", np.where(MOMENTS > 5, 1.0, np.nan))])


def test_values_far_apart_get_a_logarithmic_axis_that_says_so() -> None:
    apart = [Line("T", np.full(200, 9000.0), "blue"), Line("thru", np.full(200, 12.0), "red")]
    assert ", logarithmic axis</text>" in draw_lines(canvas(), MOMENTS, apart).svg
    assert ", logarithmic axis</text>" not in draw_lines(canvas(), MOMENTS, apart[:1]).svg


@given(st.lists(st.floats(-50, 250), max_size=8))
def test_labels_keep_their_distance_their_order_and_their_place(wanted: list[float]) -> None:
    found = spread(wanted, 160.0, 13.5)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [found[index] for index in order]
    assert all(upper - lower >= 13.5 - 1e-6 for lower, upper in zip(places[:-1], places[1:], strict=True))
    assert all(-1e-6 <= place <= 160 + 1e-6 for place in places)


def test_labels_that_have_room_stay_where_they_belong() -> None:
    assert spread([10.0, 100.0, 50.0], 160.0, 13.5) == [10.0, 100.0, 50.0]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"odstream\[plot\]"):
        draw_bars(canvas(), Bars(np.arange(2.0), np.array([1.0])))
