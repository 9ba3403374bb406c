"""The report of a run: one HTML page that loads nothing, and its charts as pictures.

`read_run` reads a run directory, `build_page` turns it into a page, `write_report` does both and writes. Imports no
torch; matplotlib, the extra ``plot``, where there is something to draw.
"""

from odstream.report.page import Page, build_page
from odstream.report.run import Run, read_run
from odstream.report.write import Written, write_report

__all__ = ["Page", "Run", "Written", "build_page", "read_run", "write_report"]
