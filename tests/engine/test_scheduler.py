"""The scheduler on chosen cases, with an injected clock and an executable whose tokens betray wrong KV."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.driver import Driver, assert_alone, make_limits, make_request, random_prompt
from tests.engine.fake_executable import POISON_TOKEN, FakeExecutable, alone

from gristmill.backends.base import Batch
from gristmill.core.clock import FakeClock
from gristmill.core.errors import InvalidRequest, PromptTooLong, RequestFailed
from gristmill.core.request import FinishReason
from gristmill.engine.sequence import Status


def test_a_lone_request_gets_its_tokens() -> None:
    driver = Driver()
    request = make_request("a", random_prompt(40), max_tokens=40)
    driver.submit(request)
    driver.run()
    assert_alone(driver, request)
    assert driver.reason("a") is FinishReason.LENGTH
    assert driver.executable.steps == [[40]] + [[1]] * 39


def test_decodes_and_a_chunk_share_a_step() -> None:
    driver = Driver(make_limits(max_step_tokens=16))
    requests = [make_request("a", random_prompt(10)), make_request("b", random_prompt(40, 1))]
    driver.submit(requests[0])
    driver.step()
    driver.submit(requests[1])
    for _ in range(3):
        driver.step()
    assert driver.executable.steps == [[10], [1, 15], [1, 15], [1, 10]]
    driver.run()
    assert_alone(driver, *requests)


def test_a_chunk_that_ends_within_the_prompt_samples_nothing() -> None:
    rows: list[int] = []
    executable = FakeExecutable(32, 16, 8, before_step=lambda batch: rows.append(len(batch.logits_rows)))
    driver = Driver(make_limits(max_step_tokens=16), executable)
    driver.submit(make_request("a", random_prompt(40), max_tokens=2))
    driver.run()
    assert rows == [0, 0, 1, 1]


@pytest.mark.parametrize("chunk", [16, 17, 64, 512])
def test_chunk_size_changes_no_token(chunk: int) -> None:
    driver = Driver(make_limits(max_step_tokens=chunk))
    requests = [
        make_request(str(i), random_prompt(length, i), max_tokens=20) for i, length in enumerate((1, 31, 32, 33, 257, 63))
    ]
    for request in requests:
        driver.submit(request)
    driver.run()
    assert_alone(driver, *requests)


def test_never_more_run_than_a_step_has_tokens() -> None:
    driver = Driver(make_limits(max_step_tokens=16, max_num_seqs=64, num_blocks=128))
    requests = [make_request(str(i), random_prompt(5, i), max_tokens=20) for i in range(40)]
    for request in requests:
        driver.submit(request)
    driver.run()
    assert max(map(len, driver.executable.steps)) == 16
    assert_alone(driver, *requests)


# ---- time ----


def _linear_step(batch: Batch) -> int:
    """2 ms a step, 0.1 ms a decoding sequence, 0.05 ms a prompt token."""
    counts = np.diff(batch.query_start)
    return int(2e6 + 1e5 * (counts == 1).sum() + 5e4 * counts[counts > 1].sum())


def test_a_long_prompt_beside_a_stream_is_cut_by_time() -> None:
    target_ns = 10_000_000
    executable = FakeExecutable(512, 2048, 8, clock=FakeClock(1), step_ns=_linear_step)
    driver = Driver(make_limits(max_step_tokens=2048, target_step_ns=target_ns, max_model_len=8192, num_blocks=512), executable)
    stream = make_request("stream", random_prompt(30), max_tokens=200, ignore_eos=True)
    driver.submit(stream)
    for _ in range(5):
        driver.step()
    long = make_request("long", random_prompt(3000, 1), max_tokens=2)
    driver.submit(long)
    durations, chunks = [], []
    while driver.reason("long") is None:
        before_ns = driver.clock.now_ns()
        schedule = driver.step()
        durations.append(driver.clock.now_ns() - before_ns)
        chunks.append(schedule.num_chunk_tokens)
        assert len(schedule.decodes) >= 1, "the stream missed a step"
    assert max(durations) <= 1.05 * target_ns
    assert max(chunks) > 100, "the target is used"
    driver.run()
    assert_alone(driver, stream, long)


def test_a_prompt_that_nobody_waits_for_is_not_cut_by_time() -> None:
    executable = FakeExecutable(512, 2048, 8, clock=FakeClock(1), step_ns=_linear_step)
    driver = Driver(make_limits(max_step_tokens=2048, target_step_ns=1, max_model_len=8192, num_blocks=512), executable)
    driver.submit(make_request("a", random_prompt(2000), max_tokens=1))
    driver.run()
    assert driver.executable.steps == [[2000]]


# ---- memory ----


def test_preempted_sequences_resume_with_identical_tokens() -> None:
    driver = Driver(make_limits(num_blocks=9, prefix_cache=False))
    requests = [make_request(str(i), random_prompt(30, i), max_tokens=100) for i in range(6)]
    for request in requests:
        driver.submit(request)
    driver.run()
    assert_alone(driver, *requests)
    usages = [driver.last[request.id].usage for request in requests]
    assert driver.metrics.preemptions == sum(usage.preemptions for usage in usages) > 0
    assert driver.metrics.recomputed_tokens == sum(usage.recomputed_tokens for usage in usages) > 0
    assert usages[0].preemptions == 0, "the first to come has computed most"


def test_a_preempted_sequence_finds_its_blocks_in_the_prefix_index() -> None:
    recomputed = []
    for prefix_cache in (True, False):
        driver = Driver(make_limits(num_blocks=9, prefix_cache=prefix_cache))
        for i in range(6):
            driver.submit(make_request(str(i), random_prompt(30, i), max_tokens=100))
        driver.run()
        recomputed.append(driver.metrics.recomputed_tokens)
    assert recomputed[0] < recomputed[1]


def test_the_lowest_priority_is_preempted_first() -> None:
    driver = Driver(make_limits(num_blocks=5))
    low = driver.submit(make_request("low", random_prompt(31), max_tokens=60, priority=1))
    driver.step()
    high = driver.submit(make_request("high", random_prompt(31, 1), max_tokens=60, priority=0))
    driver.run()
    assert (low.preemptions > 0, high.preemptions) == (True, 0)


def test_shortage_waits_and_nobody_is_refused() -> None:
    driver = Driver(make_limits(num_blocks=4, max_model_len=128))
    requests = [make_request(str(i), random_prompt(60, i), max_tokens=60) for i in range(8)]
    for request in requests:
        driver.submit(request)
    driver.run()
    assert_alone(driver, *requests)


def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers() -> None:
    driver = Driver(make_limits(num_blocks=2, max_model_len=512))
    with pytest.raises(PromptTooLong, match=r"has 64 tokens; .* accepts 63 .*\(64 in all\)"):
        driver.submit(make_request("a", random_prompt(64)))
    driver.submit(make_request("b", random_prompt(63)))
    driver.run()
    assert driver.reason("b") is FinishReason.LENGTH
    with pytest.raises(InvalidRequest, match="no tokens"):
        driver.submit(make_request("c", []))


def test_max_tokens_beyond_the_room_is_clamped() -> None:
    driver = Driver(make_limits(max_model_len=50))
    driver.submit(make_request("a", random_prompt(40), max_tokens=1000))
    driver.submit(make_request("b", random_prompt(40, 1), max_tokens=None))
    driver.run()
    assert [len(driver.tokens[name]) for name in "ab"] == [10, 10]
    assert driver.reason("a") is driver.reason("b") is FinishReason.LENGTH


def test_only_committed_blocks_are_used_and_more_are_asked_for_ahead() -> None:
    executable = FakeExecutable(256, 64, 8, commits_when_asked=False)
    driver = Driver(make_limits(num_blocks=256), executable)
    request = make_request("a", random_prompt(100), max_tokens=100)
    driver.submit(request)
    assert driver.step().is_empty
    assert executable.asked == 16
    executable.grow(16)
    driver.step()
    assert not driver.schedules[-1].is_empty
    assert executable.asked > 16, "asked before they are needed"
    driver.run()
    assert_alone(driver, request)


def test_a_sequence_waits_for_a_block_that_is_being_committed() -> None:
    executable = FakeExecutable(64, 64, 8, commits_when_asked=False)
    driver = Driver(make_limits(num_blocks=64), executable)
    executable.grow(3)
    a, b = (driver.submit(make_request(name, random_prompt(31, i), max_tokens=60)) for i, name in enumerate("ab"))
    driver.step()
    driver.step()
    assert driver.step().decodes == [a], "only one has a block for its next token"
    assert b.status is Status.RUNNING, "and the other is not preempted"
    executable.grow(64)
    driver.run()


def test_where_memory_has_become_short_requests_wait_and_it_is_said() -> None:
    executable = FakeExecutable(64, 64, 8, committed=3)
    driver = Driver(make_limits(num_blocks=64), executable)
    requests = [make_request(str(i), random_prompt(31, i), max_tokens=60) for i in range(3)]
    for request in requests:
        driver.submit(request)
    driver.step()
    driver.clock.advance(2_000_000_000)
    for _ in range(300):
        driver.step()
    assert driver.metrics.is_kv_growth_stalled
    assert [driver.reason(str(i)) for i in range(3)] == [FinishReason.LENGTH] * 3
    executable.grow(64)
    driver.run()
    assert_alone(driver, *requests)


def test_a_lone_sequence_that_memory_cannot_carry_waits_until_it_can() -> None:
    executable = FakeExecutable(64, 64, 8, committed=1)
    driver = Driver(make_limits(num_blocks=64), executable)
    request = make_request("a", random_prompt(20), max_tokens=60)
    driver.submit(request)
    driver.step()
    driver.clock.advance(2_000_000_000)
    for _ in range(30):
        driver.step()
    assert driver.schedules[-1].is_empty
    assert driver.running()
    executable.grow(64)
    driver.run()
    assert_alone(driver, request)


# ---- ends ----


def test_an_end_token_stops_and_is_named() -> None:
    driver = Driver()
    free = make_request("free", random_prompt(9), max_tokens=30)
    third = alone(free, 512)[2]
    ended = make_request("end", random_prompt(9), max_tokens=30, end_token_ids=frozenset({third}))
    stopped = make_request("stop", random_prompt(9), max_tokens=30, stop_token_ids=(third,))
    for request in (free, ended, stopped):
        driver.submit(request)
    driver.run()
    assert_alone(driver, free, ended, stopped)
    for name in ("end", "stop"):
        assert driver.last[name].finish_reason is FinishReason.STOP
        assert driver.last[name].stop_token_id == driver.last[name].token_ids[-1] == third


def test_min_tokens_bans_every_end_until_then() -> None:
    driver = Driver()
    request = make_request("a", random_prompt(9), max_tokens=60, min_tokens=20, end_token_ids=frozenset(range(60)))
    driver.submit(request)
    driver.run()
    assert_alone(driver, request)
    assert 20 < len(driver.tokens["a"]) <= 60
    assert all(token >= 60 for token in driver.tokens["a"][:20])


def test_biases_penalties_and_seeds_reach_the_rows_they_belong_to() -> None:
    driver = Driver(make_limits(num_blocks=12))
    requests = [
        make_request("bias", random_prompt(9), logit_bias={42: 100.0}, max_tokens=40),
        make_request("plain", random_prompt(40, 1), max_tokens=40),
        make_request("penalty", random_prompt(50, 2), repetition_penalty=1.3, max_tokens=40),
        make_request("seeded", random_prompt(30, 3), temperature=0.7, seed=-5, choice=3, max_tokens=40),
        make_request("presence", random_prompt(33, 4), presence_penalty=0.5, temperature=1.0, seed=2**64 - 1, max_tokens=40),
    ]
    for request in requests:
        driver.submit(request)
    driver.run()
    assert_alone(driver, *requests)
    assert driver.metrics.preemptions > 0


def test_logprobs_come_only_to_who_asked() -> None:
    driver = Driver()
    driver.submit(make_request("none", random_prompt(9)))
    driver.submit(make_request("zero", random_prompt(9, 1), logprobs=0))
    driver.submit(make_request("two", random_prompt(9, 2), logprobs=2))
    driver.run()
    assert [len(driver.last[name].logprobs) for name in ("none", "zero", "two")] == [0, 1, 1]
    assert driver.last["zero"].logprobs[0].top == ()
    entry = driver.last["two"].logprobs[0]
    assert (entry.token_id, len(entry.top)) == (driver.last["two"].token_ids[-1], 2)
    assert isinstance(entry.logprob, float)


def test_a_row_of_nan_ends_that_request_only() -> None:
    driver = Driver()
    good = make_request("good", random_prompt(20), max_tokens=20)
    driver.submit(good)
    driver.submit(make_request("bad", [1, POISON_TOKEN, 2]))
    driver.run()
    assert driver.reason("bad") is FinishReason.ERROR
    assert driver.tokens["bad"] == []
    assert isinstance(driver.last["bad"].error, RequestFailed)
    assert_alone(driver, good)


def test_no_token_asked_is_answered_at_once() -> None:
    driver = Driver()
    driver.submit(make_request("a", random_prompt(20), max_tokens=0))
    assert driver.reason("a") is FinishReason.LENGTH
    driver.run()
    assert driver.executable.steps == []


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_an_abort_frees_the_blocks_in_every_phase_and_touches_nobody_else(num_steps: int) -> None:
    """Queued (0 steps), in prefill (1, 2), in decode (5)."""
    driver = Driver(make_limits(max_step_tokens=20))
    other = make_request("other", random_prompt(10), max_tokens=30)
    driver.submit(other)
    driver.submit(make_request("gone", random_prompt(50, 1), max_tokens=30))
    for _ in range(num_steps):
        driver.step()
    driver.abort("gone")
    assert driver.reason("gone") is FinishReason.ABORT
    assert driver.sequences["gone"].status is Status.ABORTED
    driver.abort("gone")
    driver.run()
    assert_alone(driver, other)


def test_priority_comes_before_arrival() -> None:
    driver = Driver(make_limits(max_num_seqs=1))
    for name, priority in (("a", 1), ("b", 1), ("c", 0)):
        driver.submit(make_request(name, random_prompt(5), priority=priority, max_tokens=1))
    driver.run()
    assert list(driver.last) == ["c", "a", "b"]


def test_usage_has_the_times_of_each_phase() -> None:
    driver = Driver(make_limits(max_num_seqs=1, max_step_tokens=16))
    driver.executable.step_ns = lambda batch: 10
    driver.submit(make_request("first", random_prompt(16), max_tokens=3))
    driver.submit(make_request("second", random_prompt(32, 1), max_tokens=4))
    driver.run()
    usage = driver.last["second"].usage
    assert (usage.queue_ns, usage.prefill_ns, usage.decode_ns) == (30, 20, 30)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.preemptions) == (32, 4, 0)


def test_the_very_first_token_is_timed_from_its_arrival_and_is_no_gap_between_tokens() -> None:
    driver = Driver()
    driver.executable.step_ns = lambda batch: 10_000_000
    driver.submit(make_request("a", random_prompt(5), max_tokens=3))
    driver.run()
    sample = driver.metrics.registry.get_sample_value
    assert sample("gristmill_time_to_first_token_seconds_count") == 1
    assert sample("gristmill_inter_token_seconds_count") == 2
    assert sample("gristmill_inter_token_seconds_sum") == pytest.approx(0.02)
