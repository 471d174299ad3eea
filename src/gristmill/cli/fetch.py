"""Fetches a model where a person can see it: what every command that takes a model does first."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def fetch(reference: str) -> Path:
    """Return where the model is; what is fetched for it is shown on stderr. Raises: ModelReferenceError, ModelFileError."""
    from gristmill.weights.references import resolve  # slow to import, and `--help` does not need it

    with DownloadReport() as report:
        return resolve(reference, progress=report.update)


class DownloadReport:
    """What is fetched, on stderr: a bar on a terminal, elsewhere a line for each file. Nothing if nothing is fetched."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID | None] = {}

    def update(self, name: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show that `done_bytes` of `name` are here; `total_bytes` is None while it is unknown."""
        if name not in self._tasks:
            self._tasks[name] = self._add(name)
        if self._bar is not None and (task := self._tasks[name]) is not None:
            self._bar.update(task, completed=done_bytes, total=total_bytes)

    def _add(self, name: str) -> TaskID | None:
        if not sys.stderr.isatty():
            print(name if name.startswith("unpacking") else f"fetching {name}", file=sys.stderr, flush=True)
            return None
        self._bar = self._bar or _started_bar()
        return self._bar.add_task(name, total=None)

    def __enter__(self) -> DownloadReport:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def _started_bar() -> Progress:
    # Imported here: a model that is here already must not wait for it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
    from rich.table import Column

    name = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (
        TextColumn("{task.description}", table_column=name),
        BarColumn(20),
        DownloadColumn(table_column=Column(no_wrap=True)),
        TransferSpeedColumn(table_column=Column(no_wrap=True)),
    )
    bar = Progress(*columns, console=Console(stderr=True), expand=True)
    bar.start()
    return bar
