"""Writes the report: the page whole or not at all, and its pictures in a folder beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from odstream.report.page import build_page
from odstream.report.run import read_run

__all__ = ["Written", "write_report"]

PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    page: Path
    pictures: tuple[Path, ...]
    torn: str
    """In words, what is missing at the end of the metrics; empty if nothing is."""


def write_report(run: Path, output: Path | None = None, *, png: bool = True, overwrite: bool = False) -> Written:
    """Write the report of a run.

    Args:
        run: The run directory.
        output: The page; its pictures go into a folder of the same name that ends in ``-plots``. None: the run's
            ``report.html``, which is replaced where there is one.
        png: Whether to write pictures.
        overwrite: Whether another ``output`` may be replaced.

    Raises:
        OSError: If the run cannot be read, or the report not be written.
        FileExistsError: If ``output`` exists and may not be replaced.
        ValueError: If a file of the run is not what its name says.
        MissingExtraError: If the extra ``plot`` is not installed.
    """
    page = run / PAGE if output is None else output
    if output is not None and output.exists() and not overwrite:
        raise FileExistsError(f"output: {output} exists; choose another file, or say --overwrite")
    if output is not None and not output.parent.is_dir():
        raise FileNotFoundError(f"output: the folder {output.parent} does not exist")
    found = read_run(run)
    built = build_page(found, png=png)
    _write(page, built.html.encode("utf-8"))
    folder = page.with_name(f"{page.stem}-plots")
    return Written(page, _write_pictures(folder, built.pictures), found.torn)


def _write_pictures(folder: Path, pictures: Mapping[str, bytes]) -> tuple[Path, ...]:
    if not pictures:
        return ()
    folder.mkdir(exist_ok=True)
    written = []
    for name, picture in pictures.items():
        written.append(folder / f"{name}.png")
        _write(written[-1], picture)
    return tuple(written)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)
