"""Tests of the package's own shape: imports go one way, and stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import kernels_async

PACKAGE = Path(kernels_async.__file__).parent
ROWS = [
    {
        "_errors",
        "_specialization",
        "_source",
        "_options",
        "_includes",
        "_reader",
        "_outcome",
        "_outside",
        "_threads",
        "_machine",
        "_resources",
        "_value",
        "_files",
        "_replacing",
        "_trust",
        "_types",
    },
    {
        "_digest",
        "_artifact",
        "_diagnostics",
        "_occupancy",
        "_record",
        "_events",
        "_manifest",
        "_staging",
        "_private",
        "_build",
        "_collector",
    },
    {"_store", "_inventory", "_upkeep", "_bundle", "_locks", "_tiers"}
    | {"_report", "_reporters", "_scope", "_lane", "toolchains", "devices"}
    | {"page", "_html"},
    {
        "_frames",
        "_sandbox",
        "_worker",
        "_start",
        "_spawn",
        "_child",
        "_process",
        "_memory",
        "_sharing",
        "_plan",
        "_blame",
        "_crew",
        "_flight",
        "_pool",
        "_maker",
        "_makers",
        "_settings",
        "_compiler",
    },
    {"_pending", "_batch", "_loader", "_home", "_frozen", "_stats", "_ledger"}
    | {"_cache", "_keyed", "_fallback", "_warm", "_recording", "_operations", "_kernels"}
    | {"_notebook"},
    {"adapters"},
    {"__init__", "__main__", "cli"},
]
TYPES_ONLY = {("_errors", "_diagnostics"), ("_errors", "_digest"), ("_pending", "_cache")}
IN_NOTEBOOKS = {("_errors", "_notebook"), ("_artifact", "_notebook")}


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, by their first name."""
    depth = len(path.relative_to(PACKAGE).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.partition(".")[0] for name in names if name}
    return found


def row(module: str) -> int:
    """The row of a module; a module that is in none is an error."""
    return next(number for number, names in enumerate(ROWS) if module in names)


def test_every_module_imports_only_from_its_own_row_or_above() -> None:
    """Imports go one way."""
    wrong = [
        (module, imported)
        for path in PACKAGE.rglob("*.py")
        for module in [path.relative_to(PACKAGE).parts[0].removesuffix(".py")]
        for imported in imports(path)
        if row(imported) > row(module)
        and (module, imported) not in TYPES_ONLY | IN_NOTEBOOKS
    ]
    assert wrong == []


def test_the_front_only_imports() -> None:
    """`__init__` has a docstring, imports and `__all__`."""
    kinds = [type(node) for node in ast.parse((PACKAGE / "__init__.py").read_text()).body]

    assert set(kinds) == {ast.Expr, ast.ImportFrom, ast.Assign}
    assert kinds.count(ast.Assign) == 1


def test_importing_the_package_imports_no_large_library() -> None:
    """A worker, and a tool that only compiles, must start quickly."""
    program = (
        "import sys, kernels_async\n"
        "heavy = {'cupy', 'numpy', 'cuda', 'elftools', 'typer', 'rich', 'IPython'}\n"
        "heavy |= {'prometheus_client', 'opentelemetry'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


def test_no_module_outgrows_one_subject() -> None:
    """A module that grows past this has taken on a second subject."""
    long = {
        path.name: lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 350
    }
    assert long == {}
