"""Every Python block of the README and of the docs runs, or is counted here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import Page, pages, read_page

NOT_RUN: dict[str, int] = {}
"""Blocks marked ``no-run``, by page. A new one is a decision: write it down here."""

PAGES = pages()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in PAGES if page.script], ids=lambda page: page.path)
def test_the_blocks_of_a_page_run_as_one_script(page: Page, tmp_path: Path) -> None:
    script = tmp_path / (Path(page.path).stem.lower().replace("-", "_") + ".py")
    script.write_text(page.script, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert run.returncode == 0, f"{page.path} (line numbers are the page's)\n{run.stdout}{run.stderr}"


def test_blocks_that_do_not_run_are_counted() -> None:
    assert {page.path: page.not_run for page in PAGES if page.not_run} == NOT_RUN


def test_a_script_keeps_the_line_numbers_of_its_page() -> None:
    text = "Words\n\n```python\nfirst = 1\n```\n\n1. item\n   ```python\n   if first:\n       second = 2\n   ```\n"
    assert read_page("page.md", text).script.splitlines() == [
        *["", "", "", "first = 1", "", "", "", "", "if first:", "    second = 2", ""]
    ]


def test_blocks_in_other_languages_and_marked_blocks_do_not_run() -> None:
    text = "```bash\nmake test\n```\n```python no-run\nimport nowhere\n```\n````\n```python\nnested = 1\n```\n````\n"
    page = read_page("page.md", text)
    assert (page.script, page.not_run) == ("", 1)


def test_a_mark_that_is_not_documented_is_refused() -> None:
    with pytest.raises(ValueError, match=r"page\.md:1: 'python skip' must be 'python' or 'python no-run'"):
        read_page("page.md", "```python skip\n```\n")
