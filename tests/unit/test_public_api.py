"""The public API changes only on purpose."""

import difflib
from pathlib import Path

from tools.api_snapshot import SNAPSHOT, SOURCE, api_lines, without_public_names

MODULE = '''
from odstream.errors import DataUnavailableError

__all__ = ["LIMIT", "DataUnavailableError", "Shelf", "lookup"]

LIMIT = 3
HIDDEN = 4

class Shelf(dict):
    """Docstrings are no part of it."""

    width: int = 2
    _secret: int = 1

    def __init__(self, width: int) -> None: ...
    @property
    def free(self) -> bool: ...
    def _internal(self) -> None: ...

def lookup(name: str, *, depth: int = 1) -> Shelf: ...
'''


def test_the_public_api_is_the_recorded_one() -> None:
    recorded = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    difference = list(difflib.unified_diff(recorded, api_lines(SOURCE), "recorded", "source", lineterm="", n=0))
    assert not difference, "\n".join(["if this is meant: python -m tools.api_snapshot --write", *difference])


def test_every_public_module_says_what_is_public() -> None:
    assert without_public_names(SOURCE) == []


def test_names_signatures_and_fields_are_recorded(tmp_path: Path) -> None:
    package = tmp_path / "odstream"
    package.mkdir()
    (package / "shelf.py").write_text(MODULE)
    assert api_lines(package) == [
        "odstream.shelf.DataUnavailableError from odstream.errors",
        "odstream.shelf.LIMIT = 3",
        "class odstream.shelf.Shelf(dict)",
        "  odstream.shelf.Shelf.width: int = 2",
        "  odstream.shelf.Shelf.__init__(self, width: int) -> None",
        "  @property odstream.shelf.Shelf.free(self) -> bool",
        "def odstream.shelf.lookup(name: str, *, depth: int=1) -> Shelf",
    ]


def test_a_module_that_does_not_say_what_is_public_is_named(tmp_path: Path) -> None:
    package = tmp_path / "odstream"
    package.mkdir()
    (package / "open.py").write_text("def anyone() -> None: ...\n")
    (package / "_closed.py").write_text("def nobody() -> None: ...\n")
    (package / "empty.py").write_text('"""Only words."""\n')
    assert without_public_names(package) == ["odstream.open"]


def test_a_package_that_says_what_is_public_speaks_for_its_modules(tmp_path: Path) -> None:
    room = tmp_path / "odstream" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text("from odstream.room.table import lay\n__all__ = ['lay']\n")
    (room / "table.py").write_text("def lay(plates: int) -> None: ...\ndef helper() -> None: ...\n")
    assert without_public_names(tmp_path / "odstream") == []
    assert api_lines(tmp_path / "odstream") == ["def odstream.room.lay(plates: int) -> None"]
