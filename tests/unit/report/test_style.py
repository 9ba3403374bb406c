"""Everyone can tell text from paper and marks from each other, by day and by night."""

from __future__ import annotations

import re

import pytest

from odstream.report.style import STYLE


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(scheme: str) -> None:
    """Contrast of at least 4.5 for text, 3 for marks, as WCAG 2.1 AA asks."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6})", blocks[0]))
    if scheme == "dark":
        colours.update(re.findall(r"--(\w+): (#\w{6})", blocks[1]))
    for name in ("ink", "soft", "good", "bad", "link"):
        for ground in ("paper", "shade"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in ("blue", "red", "green", "grey"):
        assert contrast(colours[name], colours["paper"]) >= 3.0, name


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
