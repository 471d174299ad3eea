"""Where the server is between start and end, and what is still in flight."""

from __future__ import annotations

import asyncio


class Lifecycle:
    """Belongs to the server's event loop."""

    def __init__(self) -> None:
        self.is_draining = False
        self._num_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Count a request in."""
        self._num_in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request out."""
        self._num_in_flight -= 1
        if self._num_in_flight == 0:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; return False if that takes longer."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
