"""Drives the engine's loop step by step, with no thread, and checks its invariants after every step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from tests.engine.fake_executable import FakeExecutable, alone

from gristmill.backends.base import BLOCK_SIZE_TOKENS
from gristmill.core.clock import FakeClock
from gristmill.core.request import FinishReason, Request, TokenEvent
from gristmill.core.sampling_params import SamplingParams
from gristmill.engine.admission import make_sequence
from gristmill.engine.limits import EngineLimits
from gristmill.engine.loop import Loop
from gristmill.engine.schedule import Schedule
from gristmill.engine.sequence import Sequence, Status
from gristmill.metrics.engine_metrics import EngineMetrics


def make_limits(**changes: Any) -> EngineLimits:
    fields: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_step_tokens": 64,
        "target_step_ns": 0,
        "max_model_len": 512,
        "num_blocks": 32,
        **changes,
    }
    return EngineLimits(**fields)


def make_request(request_id: str, prompt: list[int], **fields: Any) -> Request:
    """A greedy request; fields of Request by name, all others are sampling parameters."""
    own = {name: fields.pop(name) for name in list(fields) if name in Request.__dataclass_fields__}
    params = SamplingParams(**{"temperature": 0.0, "seed": 0, "max_tokens": 8, **fields})
    return Request(request_id, prompt, params, **own)


def random_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 90, length).tolist()


class Driver:
    def __init__(self, limits: EngineLimits | None = None, executable: FakeExecutable | None = None) -> None:
        self.limits = limits or make_limits()
        self.executable = executable or FakeExecutable(
            self.limits.num_blocks, self.limits.max_step_tokens, self.limits.max_running
        )
        self.clock = self.executable.clock = self.executable.clock or FakeClock(1_000)
        self.metrics = EngineMetrics()
        self.loop = Loop(self.executable, self.limits, self.clock, self.metrics)
        self.sequences: dict[str, Sequence] = {}
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, TokenEvent] = {}
        self.schedules: list[Schedule] = []

    def submit(self, request: Request) -> Sequence:
        sequence = make_sequence(request, self.limits, self.loop.index, self.clock.now_ns())
        sequence.set_number(len(self.sequences))
        self.sequences[request.id] = sequence
        self.tokens[request.id] = []
        self._take([event] if (event := self.loop.scheduler.add(sequence)) else [])
        return sequence

    def abort(self, request_id: str) -> None:
        event = self.loop.scheduler.abort(request_id)
        self._take([event] if event else [])
        self.check()

    def step(self) -> Schedule:
        schedule, events = self.loop.step()
        self.schedules.append(schedule)
        self._take(events)
        self.check()
        return schedule

    def run(self, max_steps: int = 5_000) -> None:
        """Step until every sequence has ended."""
        for _ in range(max_steps):
            if not self.loop.scheduler.has_work:
                self.check_idle()
                return
            assert not self.step().is_empty or self._has_grown(), "sequences wait for nothing"
        raise AssertionError("a sequence does not end")

    def _has_grown(self) -> bool:
        return self.executable.num_committed_blocks() > self.loop.pool.num_committed

    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences.values() if sequence.status is Status.RUNNING]

    def reason(self, request_id: str) -> FinishReason | None:
        return self.last[request_id].finish_reason if request_id in self.last else None

    def _take(self, events: list[TokenEvent]) -> None:
        for event in events:
            assert event.request_id not in self.last or self.reason(event.request_id) is None, "an event after the last"
            self.tokens[event.request_id].extend(event.token_ids)
            if event.usage is not None:
                assert event.usage.completion_tokens == len(self.tokens[event.request_id])
            assert event.usage is not None or event.finish_reason is None
            self.last[event.request_id] = event

    def check(self) -> None:
        pool, index = self.loop.pool, self.loop.index
        held = Counter(block for sequence in self.running() for block in sequence.blocks)
        assert pool.num_referenced == len(held)
        assert pool.num_available + len(held) == pool.num_committed
        for block, count in held.items():
            assert pool.references(block) == count
        for sequence in self.sequences.values():
            if sequence.status is not Status.RUNNING:
                assert sequence.blocks == []
                assert sequence.row == -1
            else:
                assert sequence.num_computed < sequence.num_tokens
                assert len(sequence.blocks) * BLOCK_SIZE_TOKENS >= sequence.num_computed
        assert index.num_claims() == 0 or self.running()

    def check_idle(self) -> None:
        assert self.loop.pool.num_referenced == 0
        assert self.loop.index.num_claims() == 0
        assert self.loop.scheduler.num_running == 0
        assert len(self.loop.scheduler.waiting) == 0
        assert self.loop.scheduler.waiting.num_new_tokens == 0
        assert all(event.finish_reason is not None for event in self.last.values())
        assert self.last.keys() == self.sequences.keys()


def assert_alone(driver: Driver, *requests: Request) -> None:
    """Every request got the tokens that it gets when nothing runs beside it."""
    for request in requests:
        assert driver.tokens[request.id] == alone(request, driver.limits.max_sequence_len), request.id
