"""Write ``docs/conformance.md``: every numbered requirement with the tests that prove it.

python -m tools.conformance            write the page
python -m tools.conformance --check    only report markers with a number that does not exist
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Proof", "Requirement", "conformance_page", "proofs", "requirements", "unknown_numbers"]

ROOT = Path(__file__).resolve().parent.parent
_ROW = re.compile(r"^\| (?P<number>[A-Z]+-\d\d) \| (?P<text>.*) \|$")
_HEADING = re.compile(r"^## (?P<title>[A-Z]+: .*)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One row of ``docs/requirements.md``."""

    number: str
    text: str
    room: str
    """Title of the section it stands in."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Proof:
    """One test that carries the marker of a number."""

    number: str
    path: str
    """Relative to the repository."""
    line: int
    test: str


def requirements(text: str) -> list[Requirement]:
    """Read the numbered rows of the requirements page, in its order."""
    room, found = "", []
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            room = heading["title"]
        elif row := _ROW.match(line):
            found.append(Requirement(number=row["number"], text=row["text"], room=room))
    return found


def proofs(tests: Path, root: Path) -> list[Proof]:
    """Find every ``pytest.mark.spec`` under ``tests`` without importing anything."""
    found = []
    for file in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        path = file.relative_to(root).as_posix()
        found += [
            Proof(number=number, path=path, line=line, test=test) for number, line, test in _marked(tree.body, (), "")
        ]
    return sorted(found)


def unknown_numbers(known: Sequence[Requirement], found: Sequence[Proof]) -> list[str]:
    """Describe the markers whose number no requirement has."""
    numbers = {requirement.number for requirement in known}
    return [
        f"{proof.path}:{proof.line} {proof.test}: no requirement {proof.number!r}"
        for proof in found
        if proof.number not in numbers
    ]


def conformance_page(known: Sequence[Requirement], found: Sequence[Proof]) -> str:
    """Render the page as Markdown."""
    tests_of: Mapping[str, list[Proof]] = defaultdict(list)
    for proof in found:
        tests_of[proof.number].append(proof)
    proven = sum(1 for requirement in known if tests_of[requirement.number])
    lines = [
        "# Conformance",
        "",
        "Generated from [the requirements](requirements.md) and the markers of the tests. A number without a test is",
        f"not proven, whatever the code does. {proven} of {len(known)} numbers have at least one test.",
    ]
    room = None
    for requirement in known:
        if requirement.room != room:
            room = requirement.room
            lines += ["", f"## {room}"]
        lines += ["", f"**{requirement.number}** {requirement.text}", ""]
        lines += [f"- {_promise(proof)}" for proof in tests_of[requirement.number]] or ["- *not proven yet*"]
    return "\n".join(lines) + "\n"


def _promise(proof: Proof) -> str:
    """Write a test's name as the sentence that it is."""
    *group, name = proof.test.split(".")
    words = name.removeprefix("test_").replace("_", " ")
    return f"{words} (`{'::'.join([proof.path, *group])}`)"


def _marked(body: Sequence[ast.stmt], inherited: tuple[str, ...], prefix: str) -> Iterator[tuple[str, int, str]]:
    """Yield number, line and name of every marked test; a class and ``pytestmark`` pass their markers on."""
    inherited += tuple(number for node in body for number in _module_numbers(node))
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _marked(node.body, inherited + _decorator_numbers(node), f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            for number in dict.fromkeys(inherited + _decorator_numbers(node)):
                yield number, node.lineno, prefix + node.name


def _decorator_numbers(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    return tuple(number for decorator in node.decorator_list for number in _numbers(decorator))


def _module_numbers(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets):
        return tuple(number for child in ast.walk(node.value) for number in _numbers(child))
    return ()


def _numbers(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.spec":
        return tuple(str(ast.literal_eval(argument)) for argument in node.args)
    return ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a marker names a number that does not exist."""
    parser = argparse.ArgumentParser(prog="python -m tools.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    known = requirements((ROOT / "docs/requirements.md").read_text(encoding="utf-8"))
    found = proofs(ROOT / "tests", ROOT)
    for problem in (problems := unknown_numbers(known, found)):
        print(problem, file=sys.stderr)
    if not options.check:
        (ROOT / "docs/conformance.md").write_text(conformance_page(known, found), encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
