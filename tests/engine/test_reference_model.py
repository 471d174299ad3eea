"""The engine on a real, tiny model: the reference backend's numbers do not depend on how it is scheduled."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tests.engine.driver import Driver, make_limits, make_request
from tests.models.goldens import ROOT, packed_weights, read_golden

from gristmill.backends.base import Limits
from gristmill.backends.reference.backend import ReferenceBackend, ReferenceExecutable
from gristmill.core.clock import FakeClock
from gristmill.core.request import Request, TokenLogprobs
from gristmill.engine.limits import EngineLimits
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture

MAX_LEN = 128
TEXT = np.random.default_rng(0).integers(3, 128, MAX_LEN).tolist()
REQUESTS = [
    *(make_request(f"g{i}", TEXT[i : 30 + i], max_tokens=90, temperature=1.0, seed=i, logprobs=1) for i in range(3)),
    make_request("one", TEXT[:1], max_tokens=12, logprobs=2),
    make_request("block", TEXT[:32], max_tokens=40, logprobs=2, temperature=0.8, seed=1),
    make_request("more", TEXT[:33], max_tokens=40, logprobs=2, min_tokens=5, end_token_ids=frozenset(range(40))),
    make_request("long", TEXT[:70], max_tokens=40, logprobs=2, repetition_penalty=1.2, temperature=0.5, seed=2),
    *(make_request(f"n{i}", TEXT[:50], n=2, choice=i, group_id="n", temperature=1.0, seed=3, logprobs=0) for i in range(2)),
]


@functools.cache
def _executable(num_blocks: int) -> ReferenceExecutable:
    golden = read_golden(ROOT / "llama")
    architecture = load_architecture(golden.config)
    config = architecture.parse(golden.config, MAX_LEN)
    graph = record(architecture.build, config)
    weights = packed_weights(golden, graph.weights, architecture.weight_rules(config))
    return ReferenceBackend("bf16").compile(graph, weights, Limits(512, 8, MAX_LEN, num_blocks, 1))


class Recorder(Driver):
    """Keeps the logprobs too."""

    def __init__(self, limits: EngineLimits) -> None:
        executable = _executable(limits.num_blocks)
        executable.clock = FakeClock(1)  # type: ignore[attr-defined]
        super().__init__(limits, executable)  # type: ignore[arg-type]
        self.logprobs: dict[str, list[TokenLogprobs]] = {}

    def _take(self, events: list) -> None:
        super()._take(events)
        for event in events:
            self.logprobs.setdefault(event.request_id, []).extend(event.logprobs)


def _run(limits: EngineLimits, requests: list[Request]) -> Recorder:
    recorder = Recorder(limits)
    for request in requests:
        recorder.submit(request)
    recorder.run()
    return recorder


@pytest.fixture(scope="module")
def alone() -> dict[str, Recorder]:
    limits = make_limits(max_step_tokens=512, max_model_len=MAX_LEN, num_blocks=4, prefix_cache=False)
    return {request.id: _run(limits, [request]) for request in REQUESTS}


@pytest.mark.parametrize(
    ("chunk", "num_blocks", "cache"), [(512, 32, True), (512, 32, False), (16, 32, True), (33, 7, True), (64, 6, False)]
)
def test_schedule_and_company_change_no_token(chunk: int, num_blocks: int, cache: bool, alone: dict[str, Recorder]) -> None:
    limits = make_limits(max_step_tokens=chunk, max_model_len=MAX_LEN, num_blocks=num_blocks, prefix_cache=cache)
    together = _run(limits, REQUESTS)
    assert (together.metrics.preemptions > 0) == (num_blocks < 10)
    for request in REQUESTS:
        assert together.tokens[request.id] == alone[request.id].tokens[request.id], request.id
        got, expected = (
            [(entry.logprob, *(value for _, value in entry.top)) for entry in one.logprobs[request.id]]
            for one in (together, alone[request.id])
        )
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
