"""Files stay under 400 lines, functions under 70, the median function at 8 lines or fewer."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

from gristmill.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in (".cpp", ".h"))


def test_no_file_is_over_400_lines() -> None:
    """Mend: which room of the file is a room of its own?"""
    written = SOURCES + NATIVE + [path for folder in ("tests", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    long = [
        f"{path}:1: {count} lines, 400 allowed"
        for path in written
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400
    ]
    assert not long, "\n".join(long)


def test_no_function_is_over_70_lines_and_the_median_is_short() -> None:
    """Mend: branch in the parent, compute in pure leaves."""
    lengths = []
    long = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                length = (body[-1].end_lineno or 0) - body[0].lineno + 1
                lengths.append(length)
                if length > 70:
                    long.append(f"{path}:{node.lineno}: {node.name} has {length} lines, 70 allowed")
    assert not long, "\n".join(long)
    assert statistics.median(lengths) <= 8


def test_no_file_has_an_empty_name() -> None:
    """A name says what is inside: no utils, helpers, common, misc, manager."""
    empty = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?)$")
    found = [str(path) for path in SOURCES + NATIVE if empty.search(path.stem)]
    assert not found, "\n".join(found)


def test_every_module_is_imported_by_something() -> None:
    """A file that nothing imports is dead. Mend: delete it, or say where it enters."""
    entries = {"gristmill.__main__", *(f"gristmill.cli.{name}" for name in ("main", *COMMANDS))}
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))])
    dead = []
    for path in SOURCES:
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        parent, _, leaf = name.rpartition(".")
        if leaf == "__init__" or name in entries:
            continue
        if (
            f"{name} import" not in text
            and f"import {name}" not in text
            and not re.search(rf"from {re.escape(parent)} import [^\n]*\b{leaf}\b", text)
        ):
            dead.append(f"{path}:1: nothing imports {name}")
    assert not dead, "\n".join(dead)
