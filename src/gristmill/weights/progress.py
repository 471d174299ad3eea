"""How fetching tells what it has done."""

from __future__ import annotations

from collections.abc import Callable

# Name of what is fetched, bytes that are here, bytes in all (None while unknown).
Progress = Callable[[str, int, int | None], None]


def silent(name: str, done_bytes: int, total_bytes: int | None) -> None:
    """Show nothing."""
