"""The service: from calls to running generations, and from the engine's events to their streams."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from gristmill.core.clock import Clock, MonotonicClock
from gristmill.core.errors import GristmillError, ModelNotFound, QueueFull, RequestFailed
from gristmill.core.request import FinishReason, Request, TokenEvent
from gristmill.service.admission import Admitted, admit, draw_seed, text_length
from gristmill.service.calls import GenerateCall
from gristmill.service.generation import Generation
from gristmill.service.stream import ChoiceStream

if TYPE_CHECKING:
    from gristmill.repository.deployment import Deployment

WORKER_CHARS = 4096  # a longer text is rendered and encoded in a worker, not on the event loop
NUM_WORKERS = 2

T = TypeVar("T")
log = logging.getLogger("gristmill.service")


class Service:
    """Answers calls with the deployments that it was given. Belongs to the event loop of its first call."""

    def __init__(
        self, deployments: Mapping[str, Deployment], clock: Clock | None = None, max_preparing: int | None = None
    ) -> None:
        """Listen to the deployments. `max_preparing` calls with long texts may wait for a worker; None = any number."""
        self.deployments = dict(deployments)
        self._channels = {name: _Channel(deployment) for name, deployment in self.deployments.items()}
        self._clock = clock or MonotonicClock()
        self._workers = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="gristmill-text")
        self._max_preparing = max_preparing
        self._num_preparing = 0

    def deployment(self, model: str | None) -> Deployment:
        """Return the deployment of this name; None means the first. Raises: ModelNotFound."""
        if model is None:
            return next(iter(self.deployments.values()))
        found = self.deployments.get(model)
        if found is None:
            shown = model if len(model) <= 100 else f"{model[:100]}..."
            raise ModelNotFound(
                f"the model {shown!r} is not served here.", f"use one of: {', '.join(self.deployments)}.", param="model"
            )
        return found

    async def prepare(self, call: GenerateCall) -> Generation:
        """Check, encode and start one call.

        Raises: RequestError (wrong, too long, queue full) or ServerUnavailable; nothing runs then.
        """
        return await self.prepare_all([call])

    async def prepare_all(self, calls: Sequence[GenerateCall]) -> Generation:
        """Start several calls to one model as one generation. Raises: as `prepare`; nothing runs then."""
        deployment = self.deployment(calls[0].model)
        params = calls[0].params
        seed = draw_seed() if params.seed is None else params.seed
        num_chars = sum(map(text_length, calls))
        admitted = await self.off_loop(num_chars, lambda: [admit(call, deployment, seed) for call in calls])
        return self._start(deployment, admitted, seed)

    async def off_loop(self, num_chars: int, work: Callable[[], T]) -> T:
        """Do `work` here, or in a worker if it is about a long text. Raises: QueueFull, and what `work` raises."""
        if num_chars <= WORKER_CHARS:
            return work()
        if self._max_preparing is not None and self._num_preparing >= self._max_preparing:
            raise QueueFull(f"{self._num_preparing:,} long requests are being prepared.", "try again in a moment.")
        self._num_preparing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, work)
        finally:
            self._num_preparing -= 1

    def fail_all(self, error: GristmillError) -> None:
        """End everything that runs with `error`."""
        for channel in self._channels.values():
            for generation in channel.generations():
                generation.fail(error)

    @property
    def num_running(self) -> int:
        """Return how many generations are not over."""
        return sum(len(channel.generations()) for channel in self._channels.values())

    def close(self) -> None:
        """Stop the workers; deployments are their owner's."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _start(self, deployment: Deployment, admitted: list[Admitted], seed: int) -> Generation:
        channel = self._channels[next(name for name, d in self.deployments.items() if d is deployment)]
        generation = Generation(deployment, admitted, seed, channel.forget)
        now_ns = self._clock.now_ns()
        index = 0
        try:
            for one in admitted:
                for choice in range(one.params.n):
                    channel.submit(generation, one, choice, index, now_ns)
                    index += 1
        except GristmillError:
            generation.cancel()
            raise
        return generation


class _Channel:
    """Between one engine and the loop. Events arrive on the engine's thread, once per step."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._live: dict[str, tuple[ChoiceStream, Generation]] = {}
        self._ids = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: deque[list[TokenEvent]] = deque()
        self._is_woken = False
        deployment.listen(self._on_events)

    def submit(self, generation: Generation, admitted: Admitted, choice: int, index: int, now_ns: int) -> None:
        """Give one choice to the engine. Raises: PromptTooLong, QueueFull, ServerUnavailable."""
        request = self._request(admitted, choice, now_ns)
        stream = ChoiceStream(request, index, self._deployment.tokenizer)
        self._bind_loop()
        # Before the engine knows of it: its first event may come at once.
        self._live[request.id] = (stream, generation)
        generation.open(stream)
        try:
            self._deployment.engine.submit(request)
        except GristmillError:
            del self._live[request.id]
            raise

    def forget(self, request_id: str, reason: FinishReason) -> None:
        """Take no more events of a request, and end it in the engine."""
        if self._live.pop(request_id, None) is not None:
            self._deployment.engine.abort(request_id, reason)

    def generations(self) -> list[Generation]:
        """Return what runs."""
        return list({id(generation): generation for _, generation in self._live.values()}.values())

    def _request(self, admitted: Admitted, choice: int, now_ns: int) -> Request:
        call, params = admitted.call, admitted.params
        serial = next(self._ids)
        return Request(
            id=f"{serial}:{call.request_id}",
            prompt_token_ids=admitted.prompt_token_ids,
            params=params,
            end_token_ids=frozenset() if params.ignore_eos else self._deployment.end_token_ids,
            choice=choice,
            group_id=str(serial - choice),
            tenant=call.tenant,
            cache_salt=call.cache_salt,
            arrival_ns=now_ns,
        )

    def _bind_loop(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._loop in (None, loop) or not self._live, "a service belongs to one event loop"
        self._loop = loop

    def _on_events(self, events: list[TokenEvent]) -> None:
        """Hand a step's events to the loop (engine thread). A loop that lags finds several steps at once."""
        self._inbox.append(events)
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._inbox.clear()

    def _deliver(self) -> None:
        self._is_woken = False  # before the inbox is read: what comes later wakes again
        while self._inbox:
            for event in self._inbox.popleft():
                live = self._live.get(event.request_id)
                if live is not None:
                    self._accept(event, *live)

    def _accept(self, event: TokenEvent, stream: ChoiceStream, generation: Generation) -> None:
        if event.finish_reason is not None:
            del self._live[event.request_id]
        try:
            generation.accept(stream, event)
        except Exception:  # a fault of ours in one request must not harm the others
            log.exception("the text of request %s could not be made", event.request_id)
            generation.fail(RequestFailed("the text of this answer could not be made.", "report it with the server's log."))
