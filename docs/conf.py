"""Sphinx configuration. Building the docs writes the conformance page and one reference page per public module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import odstream  # noqa: E402
from tools import api_snapshot, conformance  # noqa: E402

project = "odstream"
author = "the odstream authors"
copyright = "the odstream authors. Apache-2.0"
release = version = odstream.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "odstream"
html_static_path: list[str] = []
templates_path: list[str] = []
suppress_warnings = ["config.cache"]

default_role = "py:obj"  # single backquotes in docstrings link where there is something to link to
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["metaworld"]  # it lives in an environment of its own
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_preprocess_types = False
myst_heading_anchors = 3


def write_reference(folder: Path) -> None:
    """Write a page for every module that says what is public, each name documented in the module that owns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.md"):
        stale.unlink()
    trees = {
        name: ast.parse(file.read_text(encoding="utf-8"))
        for name, file in api_snapshot.modules(api_snapshot.SOURCE).items()
    }
    public = {name: set(names) for name, tree in trees.items() if (names := api_snapshot.public_names(tree))}
    for module, names in public.items():
        elsewhere = {
            alias.asname or alias.name: (str(node.module), alias.name)
            for node in ast.walk(trees[module])
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (alias.asname or alias.name) in names and alias.name in public.get(str(node.module), ())
        }
        own = ", ".join(sorted(names - set(elsewhere)))
        lines = [f"# `{module}`", "", "```{eval-rst}", f".. automodule:: {module}"]
        lines += [f"   :members: {own}", "   :show-inheritance:"] if own else []
        lines += ["```", ""]
        lines += [f"- `{name}` is [`{home}.{real}`]({home}.md)" for name, (home, real) in sorted(elsewhere.items())]
        (folder / f"{module}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


write_reference(DOCS / "reference/api")
if conformance.main([]) != 0:
    raise SystemExit("a test is marked with a requirement that does not exist; see above")
