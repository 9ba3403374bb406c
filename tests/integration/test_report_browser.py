"""The report in a real browser: nothing fails to load, nothing is complained of, nothing is wider than a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from odstream.perf import read_records
from odstream.report import write_report
from tests.fakes.html import PageReader
from tests.fakes.run import FakeRun, write_run

pytest.importorskip("matplotlib", reason="needs the extra plot")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
PHONE_PX = 380

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=f"no browser on this machine: {', '.join(BROWSERS)}"),
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "run", FakeRun(name="reach with a " + "long" * 30 + " name"))
    return write_report(folder).page


def browse(url: str, profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--allow-file-access-from-files"]
    done = subprocess.run([*command, *arguments, url], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done


def framed(page: Path, folder: Path, width_px: int, question: str) -> str:
    """Return what a script says of the page in a frame of this width."""
    wrapper = folder / "frame.html"
    wrapper.write_text(
        f'<iframe id="f" src="{page.as_uri()}" style="width:{width_px}px;height:800px;border:0"></iframe>'
        f'<pre id="answer"></pre><script>document.getElementById("f").onload = () => {{'
        f'const page = document.getElementById("f").contentDocument;'
        f'document.getElementById("answer").textContent = JSON.stringify({question});}};</script>',
        encoding="utf-8",
    )
    out = browse(wrapper.as_uri(), folder / "profile", "--virtual-time-budget=5000", "--dump-dom").stdout
    found = re.search(r'<pre id="answer">(.*?)</pre>', out, re.DOTALL)
    assert found is not None, out[:500]
    return found[1]


def test_the_page_opens_without_a_complaint_and_with_the_numbers_of_the_run(page: Path, tmp_path: Path) -> None:
    done = browse(page.as_uri(), tmp_path / "profile", "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert "net::ERR" not in done.stderr
    seen = re.search(r'<script type="application/json" id="data">(.*?)</script>', done.stdout, re.DOTALL)
    assert seen is not None
    last = read_records(page.parent / "metrics.jsonl").records[-1]
    assert json.loads(seen[1])["last"]["values"] == dict(last.values)
    cells = dict(re.findall(r'data-metric="([^"]+)" data-stat="last" data-value="([^"]+)"', done.stdout))
    assert {name: float(value) for name, value in cells.items()} == dict(last.values)
    assert len(PageReader(page.read_text(encoding="utf-8")).all("svg")) == done.stdout.count("</svg>")


def test_the_page_asks_for_nothing(page: Path, tmp_path: Path) -> None:
    question = "page.defaultView.performance.getEntriesByType('resource').map(entry => entry.name)"
    assert json.loads(framed(page, tmp_path, 1280, question)) == []


@pytest.mark.parametrize("width_px", [PHONE_PX, 320, 1280])
def test_the_page_is_never_wider_than_its_window(page: Path, tmp_path: Path, width_px: int) -> None:
    assert int(framed(page, tmp_path, width_px, "page.documentElement.scrollWidth")) <= width_px


def test_no_text_of_a_chart_is_cut_off_on_a_phone(page: Path, tmp_path: Path) -> None:
    question = (
        "[...page.querySelectorAll('svg text')].map(text => [text.getBoundingClientRect(), text.textContent])"
        f".filter(([box]) => box.left < 0 || box.right > {PHONE_PX}).map(([, words]) => words)"
    )
    assert json.loads(framed(page, tmp_path, PHONE_PX, question)) == []
