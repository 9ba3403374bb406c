"""Numbers are short enough to read and never lie about zero."""

from __future__ import annotations

import math

import pytest

from odstream.report.words import compact, duration, escaped, exact, moment, percent, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (1234567, "1\u202f234\u202f567"),
        (12345.678, "12\u202f346"),
        (120.9612, "121"),
        (12.3456, "12.35"),
        (0.012345, "0.01235"),
        (0.00001234, "1.23e−05"),
        (-5.5, "−5.5"),
        (math.nan, "unknown"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (True, "1"),
    ],
)
def test_numbers_have_four_digits_and_thin_spaces(value: float, text: str) -> None:
    assert compact(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (0.5234, "52 %"), (0.031, "3.1 %"), (0.0001, "< 0.1 %"), (1.0, "100 %")]
)
def test_a_small_share_is_not_nothing(share: float, text: str) -> None:
    assert percent(share).replace("\u202f", " ") == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0325, "s", "32.5 ms"),
        (12.0, "s", "12 s"),
        (4000.0, "s", "66 min 40 s"),
        (1.382e9, "bytes", "1.382 GB"),
        (500.0, "bytes", "500 bytes"),
        (0.25, "fraction", "25 %"),
        (121.94, "samples/s", "121.9 samples/s"),
        (math.nan, "s", "unknown"),
    ],
)
def test_units_suit_the_size(value: float, unit: str, text: str) -> None:
    assert shown(value, unit).replace("\u202f", " ") == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.21, "3.2 s"), (119.6, "120 s"), (600, "10 min 0 s"), (7261, "2 h 1 min")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds).replace("\u202f", " ") in (text, text.replace("120 s", "2 min 0 s"))


@pytest.mark.parametrize("value", [0.1 + 0.2, 1 / 3, 12345678901234567, 1e-300])
def test_exact_numbers_keep_every_digit(value: float) -> None:
    assert type(value)(exact(value)) == value


def test_text_is_escaped() -> None:
    assert escaped('<b a="1">\'&') == "&lt;b a=&quot;1&quot;&gt;&#x27;&amp;"


def test_a_moment_says_its_zone() -> None:
    assert moment(1_790_000_000_000_000_000) == "2026-09-21 14:13:20 UTC"
