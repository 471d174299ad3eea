"""The import layers of docs/architecture.md, section 2, checked over every import statement."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "gristmill"

ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "graph": {"core"},
    "quant": {"core"},
    "text": {"core"},
    "sampling": {"core"},
    "kv": {"core"},
    "metrics": {"core"},
    "models": {"core", "graph"},
    "weights": {"core", "graph", "quant"},
    "backends.base": {"core", "graph", "quant"},
    "backends.reference": {"core", "graph", "quant", "sampling", "backends.base"},
    "backends.cpu": {"core", "graph", "quant", "sampling", "backends.base", "_native"},
    "engine": {"core", "backends.base", "kv", "sampling", "metrics"},
    "planner": {"core", "graph", "models", "weights", "quant", "backends.base"},
    "repository": {
        "core",
        "graph",
        "quant",
        "text",
        "models",
        "weights",
        "backends.base",
        "backends.cpu",
        "backends.reference",
        "engine",
        "planner",
        "metrics",
    },
    "service": {"core", "repository", "text", "engine", "metrics"},
    "server": {"core", "service", "repository", "planner", "metrics", "text"},
    "llm": {"core", "service", "repository", "planner"},
    "cli": {
        "core",
        "service",
        "repository",
        "planner",
        "server",
        "weights",
        "models",
        "backends.base",
        "backends.cpu",
        "text",
        "graph",
        "quant",
        "llm",
    },
}
THIRD_PARTY: dict[str, set[str]] = {
    "core": {"pydantic"},
    "text": {"tokenizers", "jinja2"},
    "metrics": {"prometheus_client"},
    "weights": {"huggingface_hub"},
    "server": {"fastapi", "starlette", "uvicorn", "pydantic"},
    "cli": {"click", "rich"},
    "llm": {"rich"},
}
NUMPY = {"quant", "weights", "sampling", "kv", "backends.base", "backends.reference", "backends.cpu", "engine"}
STANDARD = frozenset(sys.stdlib_module_names)


def test_every_import_goes_down_the_layers() -> None:
    """A failure names the file, the line, the rule and the mend."""
    faults = [fault for path in sorted(SOURCE.rglob("*.py")) for fault in _faults(path)]
    assert not faults, "\n".join(faults)


def _faults(path: Path) -> Iterator[str]:
    package = _package_of(path.relative_to(SOURCE).with_suffix("").parts)
    if package is None:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for name in _imported(node):
            target = _package_of(tuple(name.split("."))[1:]) if name.split(".")[0] == "gristmill" else None
            if target is not None and target != package and target not in ALLOWED[package]:
                yield f"{path}:{node.lineno}: {package} must not import {target}. Mend: move it, or pass data."
            if name.split(".")[0] != "gristmill" and not _may_import(package, name.split(".")[0]):
                yield f"{path}:{node.lineno}: {package} must not import {name}. Mend: only the layer that owns it may."


def _package_of(parts: tuple[str, ...]) -> str | None:
    if not parts or parts[0] in ("__init__", "__main__", "__version__"):
        return None
    return (
        ".".join(parts[:2])
        if parts[0] == "backends" and len(parts) > 1 and parts[1] != "__init__"
        else (None if parts[0] == "backends" else parts[0])
    )


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        whole = node.module in ("gristmill", "gristmill.backends")
        return [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__"] if whole else [node.module]
    return []


def _may_import(package: str, name: str) -> bool:
    return name in STANDARD or name in THIRD_PARTY.get(package, set()) or (name == "numpy" and package in NUMPY)
