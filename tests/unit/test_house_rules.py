"""Rules of the house that no linter checks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    file
    for folder in ("src/odstream", "tools", "examples", "benchmarks")
    for file in sorted((ROOT / folder).rglob("*.py"))
]
WITH_TORCH = ("odstream.cache.gather", "odstream.engine.data", "odstream.engine.sampling")
"""Modules of the lower rooms that work on tensors."""


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_no_module_holds_more_than_one_idea() -> None:
    lengths = {relative(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long.append(f"{relative(file)}:{node.lineno} {node.name}: {lines} lines")
    assert long == []


def test_there_is_no_drawer_for_everything() -> None:
    assert [relative(file) for file in FILES if file.stem in ("utils", "util", "helpers", "misc", "common")] == []


def producer_side_modules() -> list[str]:
    """List what the producer process may import, and the planner."""
    found = ["odstream", "odstream.errors", "odstream.engine.worker"]
    for room in ("configuration", "producers", "cache", "validation.py"):
        path = ROOT / "src/odstream" / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            parts = file.relative_to(ROOT / "src").with_suffix("").parts
            found.append(".".join(part for part in parts if part != "__init__"))
    return [
        name
        for name in dict.fromkeys(found)
        if name not in WITH_TORCH
        and (
            (ROOT / "src" / name.replace(".", "/")).is_dir()
            or (ROOT / "src" / (name.replace(".", "/") + ".py")).is_file()
        )
    ]


def run_python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_what_the_producer_process_imports_needs_no_torch() -> None:
    imports = "\n".join(
        f"import {name}\nif 'torch' in sys.modules: sys.exit('{name} imports torch')"
        for name in producer_side_modules()
    )
    assert run_python(f"import sys\n{imports}") == ""


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = run_python("import sys, odstream; print({'torch', 'numpy', 'gymnasium', 'tensordict'} & set(sys.modules))")
    assert heavy == "set()"


def test_the_planner_imports_the_standard_library_only() -> None:
    heavy = run_python(
        "import sys, odstream.configuration;"
        "print({'torch', 'numpy', 'gymnasium', 'tensordict', 'omegaconf'} & set(sys.modules))"
    )
    assert heavy == "set()"
