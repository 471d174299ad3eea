"""One step after another: schedule, build the batch, run it, take it in. Knows no thread."""

from __future__ import annotations

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, Executable
from gristmill.core.clock import Clock
from gristmill.core.request import TokenEvent
from gristmill.engine.batch import BatchBuilder
from gristmill.engine.growth import Growth
from gristmill.engine.limits import EngineLimits
from gristmill.engine.rows import Rows
from gristmill.engine.schedule import Schedule
from gristmill.engine.scheduler import Scheduler
from gristmill.kv.block_pool import BlockPool
from gristmill.kv.prefix_index import PrefixIndex
from gristmill.metrics.engine_metrics import EngineMetrics


class Loop:
    """The engine's state, all of which belongs to the thread that calls `step`."""

    def __init__(self, executable: Executable, limits: EngineLimits, clock: Clock, metrics: EngineMetrics) -> None:
        rows = Rows(limits.max_running, -(-limits.max_sequence_len // BLOCK_SIZE_TOKENS))
        self.index = PrefixIndex(BLOCK_SIZE_TOKENS)
        self.pool = BlockPool(limits.num_blocks, self.index)
        self._growth = Growth(executable, self.pool, clock)
        self.scheduler = Scheduler(limits, rows, self.pool, self.index, self._growth, clock, metrics)
        self._executable = executable
        self._builder = BatchBuilder(rows, limits.max_running)
        self._metrics = metrics
        self._growth.keep_ahead(0)
        self.publish()

    def step(self) -> tuple[Schedule, list[TokenEvent]]:
        """Run one step. An empty schedule means that all wait for memory: nothing ran."""
        schedule = self.scheduler.schedule()
        if schedule.is_empty:
            self.publish()
            return schedule, []
        if schedule.copies:
            copies = np.array(schedule.copies, np.int32)
            self._executable.copy_blocks(copies[:, 0].copy(), copies[:, 1].copy())
        output = self._executable.collect(self._executable.submit(self._builder.build(schedule)))
        events = self.scheduler.update(schedule, output)
        self._metrics.observe_step(len(schedule.decodes) + len(schedule.chunks), output.device_ns)
        self.publish()
        return schedule, events

    def publish(self) -> None:
        """Show the state as it is now in the metrics."""
        metrics, pool = self._metrics, self.pool
        metrics.num_running = self.scheduler.num_running
        metrics.num_waiting = len(self.scheduler.waiting)
        metrics.num_blocks = pool.num_blocks
        metrics.num_committed_blocks = pool.num_committed
        metrics.num_referenced_blocks = pool.num_referenced
        metrics.num_cached_blocks = pool.num_cached
        metrics.is_kv_growth_stalled = self._growth.is_stalled()
