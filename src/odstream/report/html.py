"""Pieces of a page: tables, lists, remarks. What comes in as text is escaped here and nowhere else. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from odstream.report.words import compact, escaped, exact, percent, shown

__all__ = ["Cell", "Section", "anchor", "code", "figure_grid", "listed", "missing", "number", "paragraph", "table"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    content: str
    """HTML."""
    kind: str = ""
    """Class names."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Attributes ``data-<name>``."""

    def render(self, tag: str, attributes: str = "") -> str:
        """Return it as an element."""
        kind = f' class="{self.kind}"' if self.kind else ""
        data = "".join(f' data-{name}="{escaped(value)}"' for name, value in self.data.items())
        return f"<{tag}{attributes}{kind}{data}>{self.content}</{tag}>"


@dataclass(frozen=True, slots=True)
class Section:
    """One numbered part of the page."""

    anchor: str
    title: str
    body: str
    """HTML."""


def number(value: float | None, unit: str = "", **data: str) -> Cell:
    """Return a cell with a number to read, and all its digits as ``data-value``."""
    if value is None:
        return Cell("–", "number")
    return Cell(escaped(shown(value, unit)), "number", {**data, "value": exact(value)})


def share(value: float | None, **data: str) -> Cell:
    """Return a cell with a share as per cent."""
    if value is None:
        return Cell("–", "number")
    return Cell(escaped(percent(value)), "number", {**data, "value": exact(value)})


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str | Cell]], kind: str = "") -> str:
    """Return a table whose first column heads its rows. It scrolls inside its box where it is too wide.

    Args:
        caption: Text.
        header: Text; one that begins with ``#`` heads a column of numbers.
        rows: Text or cells.
        kind: Class names.
    """
    heads = "".join(
        Cell(escaped(text.removeprefix("#")), "number" if text.startswith("#") else "").render("th", ' scope="col"')
        for text in header
    )
    body = []
    for row in rows:
        first, *rest = (cell if isinstance(cell, Cell) else Cell(escaped(cell)) for cell in row)
        body.append("<tr>" + first.render("th", ' scope="row"') + "".join(cell.render("td") for cell in rest) + "</tr>")
    return (
        f'<div class="scroll" role="region" aria-label="{escaped(caption)}" tabindex="0"><table class="{kind}">'
        f"<caption>{escaped(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody>"
        "</table></div>"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Return text as a paragraph."""
    return f'<p class="{kind}">{escaped(text)}</p>' if kind else f"<p>{escaped(text)}</p>"


def missing(what: str, how: str) -> str:
    """Return a remark that something was not recorded, and how to get it."""
    return f'<p class="missing"><strong>{escaped(what)}</strong> {how}</p>'


def listed(sentences: Sequence[str]) -> str:
    """Return text as a list; nothing if there is none."""
    return "<ul>" + "".join(f"<li>{escaped(text)}</li>" for text in sentences) + "</ul>" if sentences else ""


def code(text: str) -> str:
    """Return text as inline code."""
    return f"<code>{escaped(text)}</code>"


def block(label: str, text: str) -> str:
    """Return text as it is, in a box that scrolls."""
    return f'<pre tabindex="0" role="region" aria-label="{escaped(label)}">{escaped(text)}</pre>'


def anchor(section: str, text: str) -> str:
    """Return a link to a section of the page."""
    return f'<a href="#{section}">{escaped(text)}</a>'


def figure_grid(figures: Sequence[str]) -> str:
    """Return charts side by side where there is room."""
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def tiles(facts: Sequence[tuple[str, Cell, str]]) -> str:
    """Return a row of single facts: name, value, and what it is."""
    items = "".join(
        f"<div><dt>{escaped(name)}</dt>{cell.render('dd')}<dd class=note>{escaped(note)}</dd></div>"
        for name, cell, note in facts
    )
    return f'<dl class="tiles">{items}</dl>'


def counted(count: int, noun: str) -> str:
    """Return a count and its noun, in the plural where it must be."""
    return f"{compact(count)} {noun if count == 1 else noun + 's'}"
