"""Write the public API as text, so that a change of it shows in review.

``python -m tools.api_snapshot`` prints it; with ``--write`` it goes to ``tests/unit/public_api.txt``.

The source is read, nothing is imported: the text is the same whatever extras are installed. Public is what a
module lists in ``__all__``, in every room that is not internal.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["SNAPSHOT", "SOURCE", "api_lines", "modules", "public_names", "without_public_names"]

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/odstream"
SNAPSHOT = ROOT / "tests/unit/public_api.txt"

INTERNAL = (
    "odstream.cache",
    "odstream.cli",
    "odstream.engine.accounting",
    "odstream.engine.contract",
    "odstream.engine.failure",
    "odstream.engine.process",
    "odstream.engine.sampling",
    "odstream.engine.state",
    "odstream.engine.worker",
    "odstream.envs.franka",
    "odstream.validation",
)
"""Rooms and modules that are free to change: what they list in ``__all__`` is for the rest of the house."""


def modules(source: Path) -> dict[str, Path]:
    """Map the dotted names of the public modules below the package folder ``source`` to their files."""
    found = {}
    for file in sorted(source.rglob("*.py")):
        parts = file.relative_to(source.parent).with_suffix("").parts
        if any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        name = ".".join(part for part in parts if part != "__init__")
        if not name.startswith(INTERNAL):
            found[name] = file
    return dict(sorted(found.items()))


def public_names(tree: ast.Module) -> list[str] | None:
    """Read ``__all__``; None where the module has none."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__" and isinstance(node, ast.Assign | ast.AnnAssign):
            return sorted(ast.literal_eval(node.value)) if node.value else None
    return None


def without_public_names(source: Path) -> list[str]:
    """List the modules that define names of their own, but neither they nor a package above them say what is public."""
    trees = {name: _parse(file) for name, file in modules(source).items()}
    saying = {name for name, tree in trees.items() if public_names(tree)}
    return [
        name
        for name, tree in trees.items()
        if not any(name == other or name.startswith(f"{other}.") for other in saying)
        and any(not getattr(node, "name", "_").startswith("_") for node in tree.body)
    ]


def api_lines(source: Path) -> list[str]:
    """One line for each public name, and one for each public member of a public class.

    A name that a package takes from a module which does not list it is described where it is public.
    """
    trees = {name: _parse(file) for name, file in modules(source).items()}
    lines: list[str] = []
    for module, tree in trees.items():
        definitions = dict(_definitions(tree))
        for name in public_names(tree) or ():
            node = definitions.get(name)
            if isinstance(node, ast.ImportFrom) and (origin := trees.get(str(node.module))):
                if name not in (public_names(origin) or ()):
                    node = dict(_definitions(origin)).get(name, node)
            lines += _describe(f"{module}.{name}", node)
    return lines


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield what the module binds at its top level, imports for type checkers included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def _describe(path: str, node: ast.stmt | None) -> Iterator[str]:
    match node:
        case ast.ClassDef():
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            yield f"class {path}({bases})" if bases else f"class {path}"
            yield from _members(path, node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield f"def {path}{_signature(node)}"
        case ast.ImportFrom():
            yield f"{path} from {node.module}"
        case ast.AnnAssign():
            yield f"{path}: {ast.unparse(node.annotation)}"
        case ast.Assign():
            yield f"{path} = {ast.unparse(node.value)}"
        case _:
            yield path


def _members(path: str, node: ast.ClassDef) -> Iterator[str]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            if not member.name.startswith("_") or member.name in ("__init__", "__call__", "__iter__"):
                kinds = [f"@{ast.unparse(decorator)} " for decorator in member.decorator_list]
                yield f"  {''.join(kinds)}{path}.{member.name}{_signature(member)}"
        elif isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            default = f" = {ast.unparse(member.value)}" if member.value else ""
            yield f"  {path}.{ast.unparse(member.target)}: {ast.unparse(member.annotation)}{default}"
        elif isinstance(member, ast.Assign) and not ast.unparse(member.targets[0]).startswith("_"):
            yield f"  {path}.{ast.unparse(member)}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m tools.api_snapshot", description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help=f"write {SNAPSHOT.relative_to(ROOT)}")
    action.add_argument("--check", action="store_true", help="compare with it, and show the difference")
    options = parser.parse_args(arguments)
    text = "\n".join(api_lines(SOURCE)) + "\n"
    if options.write:
        SNAPSHOT.write_text(text, encoding="utf-8")
        return 0
    if not options.check:
        print(text, end="")
        return 0
    before = SNAPSHOT.read_text(encoding="utf-8")
    sys.stdout.writelines(
        difflib.unified_diff(before.splitlines(True), text.splitlines(True), "public_api.txt", "source")
    )
    return int(before != text)


if __name__ == "__main__":
    raise SystemExit(main())
