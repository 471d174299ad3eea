"""Host time per step, in µs: schedule, batch and update, with an executable that does nothing.

    .venv/bin/python benchmarks/host_overhead.py [--steps 400] [--json]

Two cases: 64 sequences that all decode, and 256 that decode while 1,000 wait. Each figure is the median over
steps of CPU time of the engine's own thread; the executable's share is not in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, Batch, StepOutput
from gristmill.core.clock import MonotonicClock
from gristmill.core.request import Request
from gristmill.core.sampling_params import SamplingParams
from gristmill.engine.admission import make_sequence
from gristmill.engine.limits import EngineLimits
from gristmill.engine.loop import Loop
from gristmill.metrics.engine_metrics import EngineMetrics

PROMPT_LEN = 100


class IdleExecutable:
    """Samples token 7 everywhere."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks

    def submit(self, batch: Batch) -> StepOutput:
        count = len(batch.logits_rows)
        none = np.zeros((count, 0), np.float32)
        return StepOutput(
            np.full(count, 7, np.int32), np.ones(count, np.bool_), none.sum(1), none.astype(np.int32), none, 1_000_000
        )

    def collect(self, ticket: StepOutput) -> StepOutput:
        return ticket

    def num_committed_blocks(self) -> int:
        return self._num_blocks

    def request_blocks(self, count: int) -> None:
        pass

    def copy_blocks(self, source_ids: np.ndarray, target_ids: np.ndarray) -> None:
        pass

    def fingerprint(self) -> str:
        return "idle"

    def close(self) -> None:
        pass


def measure(num_running: int, num_waiting: int, num_steps: int) -> dict[str, float]:
    """Return median µs per step of each part, once all `num_running` decode."""
    blocks = num_running * -(-(PROMPT_LEN + num_steps + 600) // BLOCK_SIZE_TOKENS)
    limits = EngineLimits(num_running, 8192, 0, 4096, blocks, True)
    executable, clock = IdleExecutable(blocks), MonotonicClock()
    loop = Loop(executable, limits, clock, EngineMetrics())
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=num_steps + 500)
    for number in range(num_running + num_waiting):
        request = Request(str(number), [number % 50 + i for i in range(PROMPT_LEN)], params, frozenset({2}))
        sequence = make_sequence(request, limits, loop.index, clock.now_ns())
        sequence.set_number(number)
        loop.scheduler.add(sequence)
    while loop.scheduler.num_running < num_running or not loop.step()[0].is_dense:
        loop.step()
    times: dict[str, list[int]] = {"schedule": [], "batch": [], "update": []}
    for _ in range(num_steps):
        marks = [time.thread_time_ns()]
        schedule = loop.scheduler.schedule()
        marks.append(time.thread_time_ns())
        batch = loop._builder.build(schedule)
        marks.append(time.thread_time_ns())
        output = executable.submit(batch)
        marks.append(time.thread_time_ns())
        loop.scheduler.update(schedule, output)
        loop._metrics.observe_step(len(schedule.decodes), output.device_ns)
        loop.publish()
        marks.append(time.thread_time_ns())
        assert schedule.is_dense
        for name, index in (("schedule", 0), ("batch", 1), ("update", 3)):
            times[name].append(marks[index + 1] - marks[index])
    figures = {name: statistics.median(values) / 1e3 for name, values in times.items()}
    return {**figures, "sum": sum(figures.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = {"64 running": (64, 0), "256 running, 1,000 waiting": (256, 1000)}
    figures = {name: measure(*case, options.steps) for name, case in cases.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for name, parts in figures.items():
        print(f"{name}: " + ", ".join(f"{part} {value:.1f}" for part, value in parts.items()) + " µs/step")


if __name__ == "__main__":
    main()
