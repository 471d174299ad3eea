"""Every error that the code raises carries a mend."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from gristmill.core import errors

SOURCE = Path(__file__).parents[2] / "src" / "gristmill"
NAMES = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.GristmillError)}


def test_every_raised_error_has_a_message_and_a_mend() -> None:
    """Two arguments at least, and the mend is not empty."""
    faults = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
                given = len(node.args) + sum(k.arg == "mend" for k in node.keywords)
                starred = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
                if given < 2 and not starred:
                    faults.append(f"{path}:{node.lineno}: {node.func.id} without a mend. Mend: say what to do.")
    assert not faults, "\n".join(faults)


def test_every_error_class_is_drawn_in_the_tree() -> None:
    """The module's docstring draws the whole tree."""
    missing = [name for name in NAMES if name not in (errors.__doc__ or "")]
    assert not missing, f"core/errors.py:1: the tree lacks {missing}"
