"""What is known of the models that were fetched."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gristmill.core.errors import ModelFileError
from gristmill.weights.checkpoint import Checkpoint, open_checkpoint


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that is here; `architecture` and `context_tokens` are None if its files do not tell."""

    reference: str
    path: Path
    size_bytes: int
    format: str
    architecture: str | None
    context_tokens: int | None


def describe(reference: str, path: Path) -> LocalModel:
    """Read a model's headers; one that cannot be read is listed as such."""
    size = _size(path)
    try:
        checkpoint = open_checkpoint(path)
    except (ModelFileError, OSError):
        return LocalModel(reference, path, size, "unreadable", None, None)
    context = checkpoint.config.get("max_position_embeddings")
    architecture = checkpoint.config.get("model_type")
    return LocalModel(
        reference,
        path,
        size,
        f"{'safetensors' if path.is_dir() else 'GGUF'} {_main_types(checkpoint)}",
        architecture if isinstance(architecture, str) else None,
        context if isinstance(context, int) else None,
    )


def read_hub_record(record: Path) -> tuple[str, Path] | None:
    """Return the reference and path that a record of the hub names, or None if they are gone."""
    try:
        entry = json.loads(record.read_text(encoding="utf-8"))
        path = Path(entry["path"])
        return (str(entry["reference"]), path) if path.exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _main_types(checkpoint: Checkpoint) -> str:
    """Return the one or two types in which most of a model's bytes are stored."""
    sizes: Counter[str] = Counter()
    for name in checkpoint.names():
        stored = checkpoint.stored(name)
        sizes[str(stored.type)] += stored.num_bytes
    large = [kind for kind, size in sizes.most_common(2) if size >= 0.1 * sizes.total()]
    return " + ".join(large) or "empty"


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else path.parent.glob(f"{path.name[: -len('-00001-of-00001.gguf')]}-*.gguf")
    total = sum(file.stat().st_size for file in files if file.is_file())
    return total or path.stat().st_size
