"""The one source of time: injected, so that tests own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic nanoseconds; never goes back."""

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary, fixed point."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """Return `time.monotonic_ns()`."""
        return time.monotonic_ns()


class FakeClock:
    """A clock that moves only when a test says so."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Return the time that the test has set."""
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Move forward by `ns` nanoseconds."""
        assert ns >= 0, "a monotonic clock never goes back"
        self._now_ns += ns
