"""Blocks that several sequences share: prefixes in the index, and the choices of one prompt."""

from __future__ import annotations

import pytest
from tests.engine.driver import Driver, assert_alone, make_limits, make_request, random_prompt
from tests.engine.fake_executable import POISON_TOKEN

from gristmill.engine.sequence import Status


def test_a_prefix_hit_counts_whole_blocks_and_never_the_last_token() -> None:
    for length, cached in ((31, 0), (32, 0), (33, 32), (64, 32), (65, 64), (100, 96)):
        driver = Driver()
        prompt = random_prompt(length)
        driver.submit(make_request("cold", prompt))
        driver.run()
        warm = make_request("warm", prompt, max_tokens=20)
        driver.submit(warm)
        driver.run()
        assert driver.last["cold"].usage.cached_tokens == 0
        assert driver.last["warm"].usage.cached_tokens == cached
        assert driver.last["warm"].usage.prompt_tokens == length
        assert_alone(driver, warm)
    assert driver.metrics.prefix_hit_tokens == 96
    assert driver.metrics.prefix_queried_tokens == 200


def test_tenants_and_salts_share_nothing() -> None:
    driver = Driver()
    prompt = random_prompt(100)
    fields = [{"tenant": "a"}, {"tenant": "b"}, {"cache_salt": "a"}, {"tenant": "a"}]
    for i, field in enumerate(fields):
        driver.submit(make_request(str(i), prompt, **field))
        driver.run()
    assert [driver.last[str(i)].usage.cached_tokens for i in range(4)] == [0, 0, 0, 96]


def test_generated_blocks_are_shared_too() -> None:
    driver = Driver()
    first = make_request("a", random_prompt(30), max_tokens=70)
    driver.submit(first)
    driver.run()
    second = make_request("b", [*first.prompt_token_ids, *driver.tokens["a"], 5], max_tokens=5)
    driver.submit(second)
    driver.run()
    assert driver.last["b"].usage.cached_tokens == 96
    assert_alone(driver, second)


def test_a_prefix_that_many_share_is_computed_once() -> None:
    driver = Driver(make_limits(max_num_seqs=32, max_step_tokens=256, num_blocks=256, max_model_len=2048))
    prefix = random_prompt(1024)
    requests = [make_request(str(i), prefix + random_prompt(10, i + 1), max_tokens=4) for i in range(32)]
    for request in requests:
        driver.submit(request)
    driver.run()
    assert_alone(driver, *requests)
    prompt_tokens = sum(schedule.num_chunk_tokens for schedule in driver.schedules)
    assert prompt_tokens == 1024 + 32 * 10


def test_a_stranger_passes_those_that_wait_for_a_prefix() -> None:
    driver = Driver(make_limits(max_step_tokens=40))
    prefix = random_prompt(64)
    first, second = (driver.submit(make_request(name, [*prefix, i + 1, 2])) for i, name in enumerate("ab"))
    stranger = driver.submit(make_request("c", random_prompt(5, 9)))
    driver.step()
    driver.step()
    assert (first.status, second.status, stranger.status) == (Status.RUNNING, Status.WAITING, Status.RUNNING)
    driver.run()


@pytest.mark.parametrize("how", ["abort", "preempt", "nan"])
def test_who_waits_for_a_prefix_goes_on_when_its_claimant_is_gone(how: str) -> None:
    driver = Driver(make_limits(max_step_tokens=32))
    prefix = random_prompt(96)
    if how == "nan":
        prefix[0] = POISON_TOKEN
    driver.submit(make_request("a", [*prefix, 1]))
    waiting = make_request("b", [*prefix, 2, 3])
    driver.submit(waiting)
    driver.step()
    if how == "abort":
        driver.abort("a")
    elif how == "preempt":
        schedule = driver.schedules[-1]
        driver.loop.scheduler._preempt(driver.sequences["a"], schedule)
    driver.run()
    if how != "nan":
        assert_alone(driver, waiting)


# ---- choices ----


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", [1, 20, 32, 33, 64, 70])
def test_the_choices_of_a_prompt_compute_it_once(length: int, prefix_cache: bool) -> None:
    driver = Driver(make_limits(prefix_cache=prefix_cache, max_step_tokens=16))
    prompt = random_prompt(length)
    requests = [
        make_request(str(i), prompt, choice=i, group_id="g", n=4, temperature=1.0, seed=7, max_tokens=50) for i in range(4)
    ]
    for request in requests:
        driver.submit(request)
    driver.run()
    assert_alone(driver, *requests)
    assert len({tuple(tokens) for tokens in driver.tokens.values()}) == 4
    assert sum(schedule.num_chunk_tokens for schedule in driver.schedules) + driver.executable.num_copies >= length
    computed = length + sum(len(tokens) - 1 for tokens in driver.tokens.values()) + 3
    assert sum(map(sum, driver.executable.steps)) == computed


def test_prompts_of_other_groups_are_not_shared_when_the_cache_is_off() -> None:
    driver = Driver(make_limits(prefix_cache=False))
    for i in range(2):
        driver.submit(make_request(str(i), random_prompt(70), group_id=str(i), n=4))
        driver.step()
    driver.run()
    assert [driver.last[str(i)].usage.cached_tokens for i in range(2)] == [0, 0]
    assert driver.loop.pool.num_cached == 0


def test_a_choice_goes_on_when_the_one_it_would_copy_is_gone() -> None:
    driver = Driver(make_limits(max_step_tokens=16, prefix_cache=False))
    requests = [make_request(str(i), random_prompt(40), choice=i, group_id="g", n=3) for i in range(3)]
    for request in requests:
        driver.submit(request)
    driver.step()
    driver.abort("0")
    driver.run()
    assert_alone(driver, *requests[1:])
