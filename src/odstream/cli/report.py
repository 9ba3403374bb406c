"""``odstream report``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from odstream.report import write_report

INVALID_INPUT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportCfg:
    """What to report on, and where to."""

    run: tyro.conf.Positional[Path]
    """The run directory: what `odstream train` left."""
    output: Path | None = None
    """The page; by default report.html in the run directory, replaced where there is one."""
    png: bool = True
    """Write the charts as PNG, too, into a folder beside the page."""
    overwrite: bool = False
    """Replace the output if it exists."""


def main(arguments: Sequence[str]) -> int:
    """Turn what a run left into one HTML page that loads nothing, and its charts as PNG.

    Returns:
        0, or 2 if the run cannot be read or the report not be written.
    """
    cfg = tyro.cli(
        ReportCfg, args=arguments, prog="odstream report", description=(main.__doc__ or "").partition("\n")[0]
    )
    try:
        written = write_report(cfg.run, cfg.output, png=cfg.png, overwrite=cfg.overwrite)
    except (OSError, ValueError) as error:
        print(f"odstream report: {error}", file=sys.stderr)
        return INVALID_INPUT
    for sentence in written.missing:
        print(f"left out   {sentence}")
    print(f"report     {written.page}")
    if written.pictures:
        print(f"pictures   {written.pictures[0].parent}: {', '.join(path.name for path in written.pictures)}")
    return 0
