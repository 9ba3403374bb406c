"""Python blocks of Markdown pages, as scripts whose line numbers are those of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OPEN = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The Python of one page."""

    path: str
    """Relative to the repository."""
    script: str
    """All blocks that run, in order; every other line of the page is empty. Empty if there is none."""
    not_run: int
    """Blocks that are marked ``no-run``."""


def read_page(path: str, text: str) -> Page:
    """Split a page into what runs and what does not.

    Raises:
        ValueError: If a block says something about Python that is neither ``python`` nor ``python no-run``.
    """
    script: list[str] = []
    not_run = 0
    fence, indent, runs = "", 0, False
    for number, line in enumerate(text.splitlines(), start=1):
        keep = ""
        if fence:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            elif runs:
                keep = line[indent:]
        elif opened := _OPEN.match(line):
            fence, indent = opened["fence"], len(opened["indent"])
            words = opened["info"].split()
            if words[:1] in (["py"], ["python3"], ["pycon"]) or (
                words[:1] == ["python"] and words[1:] not in ([], ["no-run"])
            ):
                raise ValueError(f"{path}:{number}: {opened['info']!r} must be 'python' or 'python no-run'")
            runs = words == ["python"]
            not_run += words == ["python", "no-run"]
        script.append(keep)
    text = "\n".join(script) + "\n"
    return Page(path=path, script=text if text.strip() else "", not_run=not_run)


def pages(root: Path = ROOT) -> list[Page]:
    """Read the README and every page of the docs that is written by hand."""
    files = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    generated = (root / "docs/_build", root / "docs/reference/api", root / "docs/conformance.md")
    return [
        read_page(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))
        for file in files
        if not any(file.is_relative_to(folder) for folder in generated)
    ]
