"""Random traces of submit, abort and steps, on small pools: nothing leaks, all end, and nobody's tokens change."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.driver import Driver, make_limits, make_request
from tests.engine.fake_executable import POISON_TOKEN, FakeExecutable, alone

from gristmill.backends.base import BLOCK_SIZE_TOKENS
from gristmill.core.clock import FakeClock
from gristmill.core.request import FinishReason, Request

MAX_LEN = 5 * BLOCK_SIZE_TOKENS

# Prompts are beginnings of a few texts, so that they share prefixes, and then a tail of their own.
TEXTS = [[(7 * i * (text + 1)) % 90 + 1 for i in range(MAX_LEN)] for text in range(3)]


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    length = draw(st.one_of(st.integers(0, 100), st.sampled_from([31, 32, 33, 63, 64, 65, 96, 97])))
    tail = draw(st.lists(st.integers(1, 90), min_size=0 if length else 1, max_size=3))
    poison = [POISON_TOKEN] if draw(st.integers(0, 30)) == 30 else []
    return draw(st.sampled_from(TEXTS))[:length] + poison + tail


@st.composite
def requests(draw: st.DrawFn, number: int) -> list[Request]:
    """One request, or the choices of one."""
    params: dict[str, Any] = {
        "max_tokens": draw(st.integers(0, 70)),
        "min_tokens": draw(st.sampled_from([0, 0, 5, 40])),
        "temperature": draw(st.sampled_from([0.0, 1.0])),
        "seed": draw(st.integers(0, 3)),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.2])),
        "end_token_ids": draw(st.sampled_from([frozenset(), frozenset({0, 1}), frozenset(range(20))])),
        "tenant": draw(st.sampled_from(["", "", "x"])),
        "priority": draw(st.sampled_from([0, 0, 1])),
    }
    prompt = draw(prompts())
    n = draw(st.sampled_from([1, 1, 1, 3]))
    return [make_request(f"{number}.{choice}", prompt, choice=choice, n=n, group_id=str(number), **params) for choice in range(n)]


@st.composite
def drivers(draw: st.DrawFn) -> Driver:
    num_blocks = draw(st.integers(5, 24))
    limits = make_limits(
        num_blocks=num_blocks,
        max_model_len=MAX_LEN,
        max_num_seqs=draw(st.integers(1, 6)),
        max_step_tokens=draw(st.sampled_from([1, 7, 16, 33, 64, 200])),
        target_step_ns=draw(st.sampled_from([0, 20_000])),
        prefix_cache=draw(st.booleans()),
    )
    grows_slowly = draw(st.booleans())
    executable = FakeExecutable(
        num_blocks,
        limits.max_step_tokens,
        limits.max_running,
        commits_when_asked=not grows_slowly,
        clock=FakeClock(1),
        step_ns=lambda batch: 1_000 * len(batch.token_ids),
    )
    return Driver(limits, executable)


def _run_to_the_end(driver: Driver) -> None:
    for _ in range(20_000):
        if not driver.loop.scheduler.has_work:
            driver.check_idle()
            return
        driver.executable.grow(max(driver.executable.num_committed_blocks(), driver.executable.asked))
        driver.step()
    raise AssertionError("a sequence does not end")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_random_traces_end_with_the_tokens_of_each_request_alone(data: st.DataObject) -> None:
    driver = data.draw(drivers())
    submitted: dict[str, Request] = {}
    for number in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["submit", "submit", "step", "step", "steps", "abort", "grow", "wait"]))
        if action == "submit":
            for request in data.draw(requests(number)):
                driver.submit(request)
                submitted[request.id] = request
        elif action == "abort" and submitted:
            driver.abort(data.draw(st.sampled_from(sorted(submitted))))
        elif action == "grow":
            most = driver.executable.asked
            driver.executable.grow(data.draw(st.integers(min(driver.executable.num_committed_blocks(), most), most)))
        elif action == "wait":
            driver.clock.advance(data.draw(st.sampled_from([1_000, 2_000_000_000])))
        else:
            for _ in range(1 if action == "step" else 12):
                driver.step()
    _run_to_the_end(driver)
    for request in submitted.values():
        expected = alone(request, driver.limits.max_sequence_len)
        got, reason = driver.tokens[request.id], driver.reason(request.id)
        if reason is FinishReason.ABORT:
            assert got == expected[: len(got)]
        elif POISON_TOKEN in request.prompt_token_ids and request.params.max_tokens > 0:
            assert (got, reason) == ([], FinishReason.ERROR)
        else:
            assert got == expected
            stopped = bool(got) and got[-1] in request.end_token_ids and len(got) > request.params.min_tokens
            assert reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.sampled_from([16, 64]))
def test_an_abort_after_any_number_of_steps_changes_nobody_else(num_steps: int, chunk: int) -> None:
    driver = Driver(make_limits(num_blocks=9, max_step_tokens=chunk, max_model_len=MAX_LEN))
    trace = [make_request(str(i), [*TEXTS[0][: 20 + 9 * i], i + 1], max_tokens=50) for i in range(5)]
    for request in trace:
        driver.submit(request)
    for _ in range(num_steps):
        driver.step()
    driver.abort("2")
    driver.run()
    for request in trace:
        if driver.reason(request.id) is not FinishReason.ABORT:
            assert driver.tokens[request.id] == alone(request, MAX_LEN)
