"""Writes the report: the page whole or not at all, and its pictures in a folder beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from odstream.perf.run_directory import write_whole
from odstream.report.page import build_page
from odstream.report.run import read_run

__all__ = ["Written", "write_report"]

PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    page: Path
    pictures: tuple[Path, ...]
    missing: tuple[str, ...]
    """In words, what could not be shown because a file ends too early or is damaged."""


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
        ValueError: If ``run.json`` is not what its name says, or a line of the metrics before the last one.
        MissingExtraError: If the extra ``plot`` is not installed.
    """
    page = run / PAGE if output is None else output
    if output is not None and output.exists() and not overwrite:
        raise FileExistsError(f"output: {output} exists; choose another file, or say --overwrite")
    if output is not None and not output.parent.is_dir():
        raise FileNotFoundError(f"output: the folder {output.parent} does not exist")
    found = read_run(run)
    built = build_page(found, png=png)
    write_whole(page, built.html)
    folder = page.with_name(f"{page.stem}-plots")
    return Written(page, _write_pictures(folder, built.pictures), found.missing)


def _write_pictures(folder: Path, pictures: Mapping[str, bytes]) -> tuple[Path, ...]:
    if not pictures:
        return ()
    folder.mkdir(exist_ok=True)
    written = []
    for name, picture in pictures.items():
        written.append(folder / f"{name}.png")
        write_whole(written[-1], picture)
    return tuple(written)
