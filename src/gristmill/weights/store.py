"""The folder where fetched models and what is known of files are kept. Safe under several processes at once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gristmill.core.settings import ENVIRONMENT_PREFIX

HOME_VARIABLE = f"{ENVIRONMENT_PREFIX}HOME"


@dataclass(frozen=True, slots=True)
class Store:
    """`models/` has complete models only: each is written elsewhere and renamed into place."""

    home: Path

    @property
    def models(self) -> Path:
        """Where complete models are."""
        return self.home / "models"

    @property
    def downloads(self) -> Path:
        """Where half-fetched files wait to be resumed."""
        return self.home / "downloads"

    @property
    def contents(self) -> Path:
        """Where the SHA-256 of files are remembered."""
        return self.home / "contents"

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock `name`, waiting for other processes; it falls with the process that holds it."""
        path = self.home / "locks" / hashlib.sha256(name.encode()).hexdigest()[:32]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def building(self, target: Path) -> Iterator[Path]:
        """Give a fresh folder, which becomes `target` if the block ends well and vanishes otherwise."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=self.home) as folder:
            built = Path(folder) / "built"
            built.mkdir()
            yield built
            built.rename(target)

    def write(self, path: Path, text: str) -> None:
        """Write a small file so that no reader ever sees half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)


def default_store() -> Store:
    """Return the store at $GRISTMILL_HOME, else in the user's cache folder."""
    given, cache = os.environ.get(HOME_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    if given:
        return Store(Path(given).expanduser())
    return Store((Path(cache) if cache else Path.home() / ".cache") / "gristmill")
