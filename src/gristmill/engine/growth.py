"""How the KV pool grows: asked ahead of need, committed in the background, never waited for."""

from __future__ import annotations

import logging

from gristmill.backends.base import Executable
from gristmill.core.clock import Clock
from gristmill.kv.block_pool import BlockPool

PATIENCE_NS = 1_000_000_000  # a commit that takes longer is not coming: memory is short
LEAST_AHEAD_BLOCKS = 16

logger = logging.getLogger(__name__)


class Growth:
    """Passes committed blocks from the executable to the pool, and asks for more."""

    def __init__(self, executable: Executable, pool: BlockPool, clock: Clock) -> None:
        self._executable = executable
        self._pool = pool
        self._clock = clock
        self._asked = 0
        self._waiting_since_ns = clock.now_ns()
        self._is_stalled_logged = False

    def observe(self) -> None:
        """Give the pool what has been committed since the last time."""
        committed = min(self._executable.num_committed_blocks(), self._pool.num_blocks)
        if committed > self._pool.num_committed:
            self._pool.commit(committed)
            self._waiting_since_ns = self._clock.now_ns()
            self._is_stalled_logged = False

    def keep_ahead(self, num_running: int) -> None:
        """Ask for as many fresh blocks as the running sequences could take in their next steps."""
        self.ask(self._pool.high_water + max(LEAST_AHEAD_BLOCKS, num_running))

    def ask_more(self, count: int) -> None:
        """Ask for `count` blocks beyond those that are committed."""
        self.ask(self._pool.num_committed + count)

    def ask(self, count: int) -> None:
        """Ask that `count` blocks in all be committed."""
        count = min(count, self._pool.num_blocks)
        if count <= self._asked:
            return
        if self._asked <= self._pool.num_committed:
            self._waiting_since_ns = self._clock.now_ns()
        self._asked = count
        self._executable.request_blocks(count)

    def is_coming(self) -> bool:
        """Tell whether more blocks were asked for and may soon be there."""
        return self._is_behind() and self._clock.now_ns() - self._waiting_since_ns < PATIENCE_NS

    def is_stalled(self) -> bool:
        """Tell whether blocks were asked for and memory is too short; logged once."""
        stalled = self._is_behind() and not self.is_coming()
        if stalled and not self._is_stalled_logged:
            self._is_stalled_logged = True
            logger.warning(
                "memory is short: %d of %d KV blocks are committed, %d were asked for; requests wait for those.",
                self._pool.num_committed,
                self._pool.num_blocks,
                self._asked,
            )
        return stalled

    def _is_behind(self) -> bool:
        return self._pool.num_committed < self._asked
