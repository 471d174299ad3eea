"""The SHA-256 of model files, remembered per file so that a start does not read every byte again."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from gristmill.weights.download import file_sha256
from gristmill.weights.store import Store, default_store


def content_id(paths: Sequence[Path], store: Store | None = None) -> str:
    """Return the SHA-256 of one file, or of the names and hashes of several."""
    store = store or default_store()
    hashes = [_remembered(path, store) for path in paths]
    if len(hashes) == 1:
        return hashes[0]
    lines = "".join(f"{digest}  {path.name}\n" for path, digest in zip(paths, hashes, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


def _remembered(path: Path, store: Store) -> str:
    status = path.stat()
    key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}|{status.st_ino}"
    note = store.contents / hashlib.sha256(key.encode()).hexdigest()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = note.read_text(encoding="utf-8").strip()
        if len(known) == 64:
            return known
    digest = file_sha256(path)
    with contextlib.suppress(OSError):  # A store that cannot be written costs time, not correctness.
        store.write(note, digest)
    return digest
