"""The pool of KV blocks: reference counts, lowest numbers first, and what is evicted when."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from gristmill.kv.prefix_index import PrefixIndex


class BlockPool:
    """Hands out block ids 0 .. num_committed - 1, and takes them back.

    A block is *referenced* (by one or more sequences), *cached* (referenced by none, but indexed: it may be
    adopted again, and is evicted least recently used first), *free* (used before) or *fresh* (never used).
    Free blocks go first, the lowest number first; then fresh ones, then cached ones, so that a cache fills
    the committed pool.
    """

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        self.num_blocks = num_blocks
        self.num_committed = 0
        self.high_water = 0  # ids below were used at least once; those above are fresh
        self._index = index
        self._references = [0] * num_blocks
        self._free: list[int] = []  # a heap
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_available(self) -> int:
        """How many blocks `allocate` could give now."""
        return len(self._free) + self.num_committed - self.high_water + len(self._cached)

    @property
    def num_referenced(self) -> int:
        """How many blocks sequences hold."""
        return self.high_water - len(self._free) - len(self._cached)

    @property
    def num_cached(self) -> int:
        """How many blocks are held by nobody but can be adopted."""
        return len(self._cached)

    def commit(self, num_committed: int) -> None:
        """Say that ids 0 .. num_committed - 1 have memory behind them; the number never shrinks."""
        assert self.num_committed <= num_committed
        self.num_committed = min(num_committed, self.num_blocks)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one reference. The caller has looked at `num_available`."""
        assert count <= self.num_available, f"{count} blocks asked, {self.num_available} available"
        blocks = [self._take() for _ in range(count)]
        for block in blocks:
            assert self._references[block] == 0, f"block {block} is handed out twice"
            self._references[block] = 1
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block; they are referenced or cached."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a sequence, in its order.

        Those that nobody else holds become cached if indexed, free if not. The end of a text is evicted
        before its beginning, which more texts share.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is freed twice"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._retire(block)

    def num_cached_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are held by nobody: adopting them takes them from what is available."""
        return sum(self._references[block] == 0 for block in blocks)

    def references(self, block: int) -> int:
        """How many sequences hold a block; one that writes to a block of several must copy it first."""
        return self._references[block]

    def _take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        if self.high_water < self.num_committed:
            self.high_water += 1
            return self.high_water - 1
        block, _ = self._cached.popitem(last=False)
        self._index.remove(block)
        return block

    def _retire(self, block: int) -> None:
        if self._index.holds(block):
            self._cached[block] = None
        else:
            heapq.heappush(self._free, block)
