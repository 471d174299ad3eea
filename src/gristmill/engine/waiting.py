"""The sequences that wait, in policy order."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from gristmill.engine.sequence import Sequence

_ORDER = attrgetter("order")


class WaitingQueue:
    """Lower priority numbers first, then who came first; a preempted sequence keeps its place.

    `num_new_tokens` counts the prompts of those that never ran: what admission limits.
    """

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self.num_new_tokens = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._sequences)

    def __getitem__(self, position: int) -> Sequence:
        """Return the sequence at `position` of the order."""
        return self._sequences[position]

    def add(self, sequence: Sequence) -> None:
        """Put a sequence at its place."""
        insort(self._sequences, sequence, key=_ORDER)
        if sequence.started_ns == 0:
            self.num_new_tokens += sequence.prompt_len

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out."""
        position = bisect_left(self._sequences, sequence.order, key=_ORDER)
        assert self._sequences[position] is sequence
        del self._sequences[position]
        if sequence.started_ns == 0:
            self.num_new_tokens -= sequence.prompt_len
