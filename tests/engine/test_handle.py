"""The engine's thread behind its handle: events, refusals, aborts, liveness, death and closing."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.engine.driver import make_limits, make_request
from tests.engine.fake_executable import FakeExecutable, alone

from gristmill.backends.base import Batch
from gristmill.core.clock import FakeClock
from gristmill.core.errors import InvalidRequest, PromptTooLong, QueueFull, ServerUnavailable
from gristmill.core.request import FinishReason, Request, TokenEvent
from gristmill.engine.handle import Engine
from gristmill.engine.limits import EngineLimits
from gristmill.metrics.engine_metrics import EngineMetrics

TIMEOUT_S = 30.0


class Listener:
    """Collects events, and lets a test wait for the end of a request, or stop the engine within a step."""

    def __init__(self) -> None:
        self.events: dict[str, list[TokenEvent]] = defaultdict(list)
        self.thread_names: set[str] = set()
        self._changed = threading.Condition()
        self._in_step = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self.is_stopping = False

    def on_events(self, events: list[TokenEvent]) -> None:
        with self._changed:
            self.thread_names.add(threading.current_thread().name)
            for event in events:
                self.events[event.request_id].append(event)
            self._changed.notify_all()

    def before_step(self, batch: Batch) -> None:
        if self.is_stopping:
            self._in_step.release()
            assert self._go_on.acquire(timeout=TIMEOUT_S)

    def wait_for_step(self) -> None:
        """Wait until the engine is inside a step; it stays there."""
        assert self._in_step.acquire(timeout=TIMEOUT_S)

    def release(self, and_stop_again: bool = False) -> None:
        self.is_stopping = and_stop_again
        self._go_on.release()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT_S)

    def wait_for_end(self, request_id: str) -> TokenEvent:
        self.wait_until(lambda: any(event.finish_reason is not None for event in self.events[request_id]))
        return self.events[request_id][-1]

    def tokens(self, request_id: str) -> list[int]:
        return [token for event in self.events[request_id] for token in event.token_ids]


class Fixture:
    def __init__(self, limits: EngineLimits, **executable: Any) -> None:
        self.listener = Listener()
        self.clock = FakeClock(1_000)
        self.metrics = EngineMetrics()
        self.executable = FakeExecutable(
            limits.num_blocks,
            limits.max_step_tokens,
            limits.max_running,
            clock=self.clock,
            before_step=self.listener.before_step,
            **executable,
        )
        self.limits = limits
        self.engine = Engine(self.executable, limits, self.clock, self.listener.on_events, self.metrics)


Maker = Callable[..., Fixture]


@pytest.fixture
def make() -> Iterator[Maker]:
    made: list[Fixture] = []

    def make_one(limits: EngineLimits | None = None, is_started: bool = True, **executable: Any) -> Fixture:
        made.append(Fixture(limits or make_limits(), **executable))
        if is_started:
            made[-1].engine.start()
        return made[-1]

    yield make_one
    for fixture in made:
        fixture.listener.is_stopping = False
        fixture.listener.release()
        fixture.engine.close(TIMEOUT_S)
        assert not fixture.engine.is_alive


def _requests(count: int, **fields: Any) -> list[Request]:
    return [make_request(str(i), [i + 1] * (10 + i), **fields) for i in range(count)]


def test_many_threads_submit_and_each_request_gets_its_tokens(make: Maker) -> None:
    fixture = make()
    requests = _requests(24, max_tokens=20)
    threads = [threading.Thread(target=fixture.engine.submit, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for request in requests:
        event = fixture.listener.wait_for_end(request.id)
        assert event.finish_reason is FinishReason.LENGTH
        assert fixture.listener.tokens(request.id) == alone(request, 512)
    assert fixture.listener.thread_names == {"gristmill-engine"}
    assert fixture.metrics.requests["length"] == 24


def test_events_come_once_per_step(make: Maker) -> None:
    fixture = make(is_started=False)
    calls: list[list[TokenEvent]] = []
    fixture.engine._on_events = lambda events: (calls.append(events), fixture.listener.on_events(events))[0]
    for request in _requests(3, max_tokens=4):
        fixture.engine.submit(request)
    fixture.engine.start()
    fixture.listener.wait_for_end("2")
    assert [len(events) for events in calls] == [3, 3, 3, 3]


def test_what_can_never_fit_is_refused_before_it_waits(make: Maker) -> None:
    fixture = make()
    with pytest.raises(PromptTooLong, match="has 512 tokens"):
        fixture.engine.submit(make_request("a", [1] * 512))
    with pytest.raises(InvalidRequest):
        fixture.engine.submit(make_request("b", []))
    assert fixture.metrics.requests["refused"] == 2
    assert fixture.engine.stats().num_waiting == 0


def test_an_id_that_is_running_is_refused(make: Maker) -> None:
    fixture = make(is_started=False)
    fixture.engine.submit(make_request("a", [1]))
    with pytest.raises(InvalidRequest, match="'a' is running"):
        fixture.engine.submit(make_request("a", [1]))
    fixture.engine.start()
    fixture.listener.wait_for_end("a")
    fixture.engine.submit(make_request("a", [1]))


def test_the_queue_is_bounded_by_requests_and_those_accepted_finish(make: Maker) -> None:
    fixture = make(make_limits(max_num_seqs=2, max_waiting_requests=3), is_started=False)
    requests = _requests(6)
    for request in requests[:5]:
        fixture.engine.submit(request)
    with pytest.raises(QueueFull, match="3 requests are waiting; the limit is 3") as caught:
        fixture.engine.submit(requests[5])
    assert (caught.value.http_status, caught.value.retry_after_s) == (429, 1)
    fixture.engine.start()
    for request in requests[:5]:
        fixture.listener.wait_for_end(request.id)
    fixture.engine.submit(requests[5])


def test_the_queue_is_bounded_by_prompt_tokens(make: Maker) -> None:
    fixture = make(make_limits(max_waiting_tokens=100), is_started=False)
    fixture.engine.submit(make_request("long", [1] * 300))
    with pytest.raises(QueueFull, match="300 prompt tokens are waiting and this prompt has 1; the limit is 100"):
        fixture.engine.submit(make_request("short", [1]))
    fixture.engine.start()
    fixture.listener.wait_for_end("long")
    fixture.engine.submit(make_request("short", [1]))


def test_an_abort_takes_effect_at_the_next_step(make: Maker) -> None:
    fixture = make()
    fixture.listener.is_stopping = True
    fixture.engine.submit(make_request("gone", [1] * 40, max_tokens=400))
    fixture.listener.wait_for_step()
    fixture.engine.abort("gone")
    fixture.engine.abort("gone")
    fixture.engine.abort("never was")
    fixture.listener.release()
    event = fixture.listener.wait_for_end("gone")
    assert event.finish_reason is FinishReason.ABORT
    assert event.usage is not None
    assert event.usage.completion_tokens == len(fixture.listener.tokens("gone")) == 1
    assert len(fixture.executable.steps) == 1
    assert fixture.engine.stats().num_referenced_blocks == 0


def test_what_is_aborted_before_it_was_seen_never_runs(make: Maker) -> None:
    fixture = make(is_started=False)
    fixture.engine.submit(make_request("gone", [1]))
    fixture.engine.abort("gone")
    fixture.engine.start()
    assert fixture.listener.wait_for_end("gone").finish_reason is FinishReason.ABORT
    assert fixture.executable.steps == []


def test_a_late_abort_does_not_touch_a_later_request_of_the_same_id(make: Maker) -> None:
    fixture = make()
    fixture.listener.is_stopping = True
    fixture.engine.submit(make_request("a", [1], max_tokens=1))
    fixture.listener.wait_for_step()
    fixture.engine.abort("a")
    fixture.listener.release()
    assert fixture.listener.wait_for_end("a").finish_reason is FinishReason.LENGTH
    fixture.listener.events.clear()
    fixture.engine.submit(make_request("a", [1], max_tokens=2))
    assert fixture.listener.wait_for_end("a").finish_reason is FinishReason.LENGTH


def test_a_heartbeat_ages_in_a_step_and_not_when_idle(make: Maker) -> None:
    fixture = make()
    fixture.clock.advance(10**12)
    assert fixture.engine.heartbeat_age_ns() == 0
    fixture.listener.is_stopping = True
    fixture.engine.submit(make_request("a", [1], max_tokens=2))
    fixture.listener.wait_for_step()
    fixture.clock.advance(5_000)
    assert fixture.engine.heartbeat_age_ns() == 5_000
    fixture.listener.release()
    fixture.listener.wait_for_end("a")


def test_a_dead_engine_says_so_to_everybody(make: Maker, caplog: pytest.LogCaptureFixture) -> None:
    fixture = make(fails_after=3)
    assert fixture.engine.is_alive
    for request in _requests(12, max_tokens=50):
        fixture.engine.submit(request)
    for i in range(12):
        event = fixture.listener.wait_for_end(str(i))
        assert event.finish_reason is FinishReason.ERROR
        assert isinstance(event.error, ServerUnavailable)
    fixture.engine._thread.join(TIMEOUT_S)
    assert not fixture.engine.is_alive
    assert "the device is gone" in str(fixture.engine.error)
    assert "the engine died" in caplog.text
    with pytest.raises(ServerUnavailable, match="the device is gone"):
        fixture.engine.submit(make_request("late", [1]))
    assert fixture.metrics.requests["error"] == 12


def test_closing_ends_what_runs_with_abort_and_refuses_what_comes(make: Maker) -> None:
    fixture = make()
    fixture.listener.is_stopping = True
    for request in _requests(12, max_tokens=400):
        fixture.engine.submit(request)
    fixture.listener.wait_for_step()
    fixture.engine.close(0.0)
    with pytest.raises(ServerUnavailable, match="stopping"):
        fixture.engine.submit(make_request("late", [1]))
    fixture.listener.release()
    fixture.engine.close(TIMEOUT_S)
    assert not fixture.engine.is_alive
    assert fixture.engine.error is None
    assert {fixture.listener.wait_for_end(str(i)).finish_reason for i in range(12)} == {FinishReason.ABORT}
    assert fixture.engine.stats().num_referenced_blocks == 0


def test_an_idle_engine_sleeps_without_a_timeout(make: Maker) -> None:
    """No wake-up, so no CPU: the thread waits on its condition until it is notified."""
    fixture = make(is_started=False)
    waits: list[tuple[Any, ...]] = []
    is_asleep = threading.Event()
    condition = fixture.engine._changed
    original = condition.wait

    def wait(*arguments: Any) -> bool:
        waits.append(arguments)
        is_asleep.set()
        return original(*arguments)

    condition.wait = wait  # type: ignore[method-assign]
    fixture.engine.start()
    assert is_asleep.wait(TIMEOUT_S)
    assert waits == [()]


def test_requests_that_wait_for_memory_start_when_it_is_there(make: Maker) -> None:
    fixture = make(commits_when_asked=False)
    request = make_request("a", [1] * 40)
    fixture.engine.submit(request)
    fixture.executable.grow(32)
    fixture.listener.wait_for_end("a")
    assert fixture.listener.tokens("a") == alone(request, 512)
