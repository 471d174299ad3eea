"""The engine as its callers see it: a thread behind plain data."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.backends.base import Executable
from gristmill.core.clock import Clock
from gristmill.core.errors import GristmillError, InvalidRequest, QueueFull, ServerUnavailable
from gristmill.core.request import FinishReason, Request, TokenEvent
from gristmill.engine.admission import make_sequence
from gristmill.engine.limits import EngineLimits
from gristmill.engine.loop import Loop
from gristmill.engine.sequence import Sequence
from gristmill.metrics.engine_metrics import REFUSED, EngineMetrics

MEMORY_POLL_S = 0.001  # while all wait for KV memory that a background thread commits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A glance at a running engine."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_committed_blocks: int
    num_referenced_blocks: int
    num_cached_blocks: int


class Engine:
    """Runs requests on an executable, in one thread of its own.

    `on_events` is called on that thread, once per step, with what the step made; it must be quick and must
    not raise. Every accepted request gets exactly one event with a finish_reason, whatever happens.
    """

    def __init__(
        self,
        executable: Executable,
        limits: EngineLimits,
        clock: Clock,
        on_events: Callable[[list[TokenEvent]], None],
        metrics: EngineMetrics,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._on_events = on_events
        self._metrics = metrics
        self._loop = Loop(executable, limits, clock, metrics)
        self._thread = threading.Thread(target=self._run, name="gristmill-engine", daemon=True)
        # All below is guarded by this condition, which the engine's thread waits on when idle.
        self._changed = threading.Condition()
        self._live: set[str] = set()  # accepted, and no last event yet; bounds the two inboxes
        self._arrivals: list[Sequence] = []
        self._aborts: dict[str, FinishReason] = {}
        self._arrived_tokens = 0
        self._num_accepted = 0
        self._is_closing = False
        self._error: GristmillError | None = None
        self._beat_ns = clock.now_ns()
        self._is_idle = True

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Accept a request; its events follow. Any thread may call this; it never blocks for long.

        Raises: PromptTooLong, QueueFull, InvalidRequest (no tokens, or an id that is running), ServerUnavailable.
        """
        try:
            sequence = make_sequence(request, self._limits, self._loop.index, self._clock.now_ns())
            with self._changed:
                self._check_accepts(sequence)
                self._accept(sequence)
        except GristmillError:
            with self._changed:
                self._metrics.requests[REFUSED] += 1
            raise

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request at the next step, whatever it is doing; unknown and ended ones are ignored.

        `reason` is what it counts as: STOP where the caller has found a stop string in its text.
        """
        with self._changed:
            if request_id in self._live:
                self._aborts.setdefault(request_id, reason)
                self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Refuse new requests, end the unfinished ones with `abort`, stop the thread; idempotent.

        Waits at most `timeout_s` for the step that is running. Letting requests finish first is the
        caller's choice: it waits for their events.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def stats(self) -> EngineStats:
        """Return counts as of the last step."""
        loop = self._loop
        return EngineStats(
            num_running=loop.scheduler.num_running,
            num_waiting=len(loop.scheduler.waiting) + len(self._arrivals),
            num_blocks=loop.pool.num_blocks,
            num_committed_blocks=loop.pool.num_committed,
            num_referenced_blocks=loop.pool.num_referenced,
            num_cached_blocks=loop.pool.num_cached,
        )

    def heartbeat_age_ns(self) -> int:
        """Return how long the thread has been busy without finishing a step; 0 while it has nothing to do."""
        with self._changed:
            return 0 if self._is_idle and not self._has_mail() else self._clock.now_ns() - self._beat_ns

    @property
    def is_alive(self) -> bool:
        """Tell whether requests are, or could be, answered."""
        return self._thread.is_alive() and self._error is None

    @property
    def error(self) -> GristmillError | None:
        """What the engine died of, if it died."""
        return self._error

    # ---- on the submitting thread, under the lock ----

    def _check_accepts(self, sequence: Sequence) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closing:
            raise ServerUnavailable("the server is stopping.", "send the request to another server, or later.")
        if sequence.request.id in self._live:
            raise InvalidRequest(f"a request with the id {sequence.request.id!r} is running.", "give each request its own id.")
        self._check_room(sequence)

    def _check_room(self, sequence: Sequence) -> None:
        num_waiting = len(self._live) - self._limits.max_running
        if num_waiting >= self._limits.max_waiting_requests:
            raise QueueFull(
                f"{num_waiting:,} requests are waiting; the limit is {self._limits.max_waiting_requests:,}.",
                "try again in a moment, or restart with a larger --max-waiting-requests.",
            )
        num_tokens = self._arrived_tokens + self._loop.scheduler.waiting.num_new_tokens
        if num_tokens > 0 and num_tokens + sequence.prompt_len > self._limits.max_waiting_tokens:
            raise QueueFull(
                f"{num_tokens:,} prompt tokens are waiting and this prompt has {sequence.prompt_len:,}; "
                f"the limit is {self._limits.max_waiting_tokens:,}.",
                "try again in a moment, or restart with a larger --max-waiting-tokens.",
            )

    def _accept(self, sequence: Sequence) -> None:
        sequence.set_number(self._num_accepted)
        self._num_accepted += 1
        self._live.add(sequence.request.id)
        self._arrived_tokens += sequence.prompt_len
        if self._is_idle and not self._has_mail():
            self._beat_ns = self._clock.now_ns()
        self._arrivals.append(sequence)
        self._changed.notify()

    def _has_mail(self) -> bool:
        return bool(self._arrivals or self._aborts)

    # ---- on the engine's thread ----

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._deliver(self._drain_inbox())
                schedule, events = self._loop.step()
                self._deliver(events)
                if schedule.is_empty:
                    self._pause_for_memory()
            self._abort_all()
        except BaseException as cause:
            logger.exception("the engine died")
            self._die(cause)

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False if the engine is closing."""
        with self._changed:
            self._is_idle = True
            while not (self._has_mail() or self._loop.scheduler.has_work or self._is_closing):
                self._changed.wait()
            self._is_idle = False
            self._beat_ns = self._clock.now_ns()
            return not self._is_closing

    def _pause_for_memory(self) -> None:
        with self._changed:
            if self._loop.scheduler.has_work and not self._has_mail() and not self._is_closing:
                self._changed.wait(MEMORY_POLL_S)

    def _drain_inbox(self) -> list[TokenEvent]:
        """Hand what has come to the scheduler; return the last events of what was aborted."""
        scheduler = self._loop.scheduler
        with self._changed:
            ended = [scheduler.add(sequence) for sequence in self._arrivals]
            ended += [scheduler.abort(request_id, reason) for request_id, reason in self._aborts.items()]
            self._arrivals.clear()
            self._aborts.clear()
            self._arrived_tokens = 0
        return [event for event in ended if event is not None]

    def _deliver(self, events: list[TokenEvent]) -> None:
        if not events:
            return
        ended = [event.request_id for event in events if event.finish_reason is not None]
        if ended:
            with self._changed:
                self._live.difference_update(ended)
                for request_id in ended:  # a later request may have the same id
                    self._aborts.pop(request_id, None)
        self._on_events(events)

    def _abort_all(self) -> None:
        self._deliver(self._drain_inbox())
        ended = [self._loop.scheduler.abort(request_id) for request_id in self._loop.scheduler.unfinished_ids()]
        self._deliver([event for event in ended if event is not None])
        self._loop.publish()

    def _die(self, cause: BaseException) -> None:
        """Tell every request that is not over; the scheduler's state may be broken, so it is not asked."""
        error = ServerUnavailable(f"the engine died: {cause!r}.", "read the log, and restart the server.")
        with self._changed:
            self._error = error
            request_ids = sorted(self._live)
            self._live.clear()
        self._metrics.requests[FinishReason.ERROR.value] += len(request_ids)
        events = [TokenEvent(request_id, (), finish_reason=FinishReason.ERROR, error=error) for request_id in request_ids]
        if events:
            self._on_events(events)
