"""One running answer: what the loop thread knows of it, and how its consumer waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from gristmill.core.errors import GristmillError, RequestFailed, ServerUnavailable
from gristmill.core.request import FinishReason, TokenEvent, Usage
from gristmill.service.admission import Admitted
from gristmill.service.stream import ChoiceStream, Delta, sum_usages

if TYPE_CHECKING:
    from gristmill.repository.deployment import Deployment

# Ends an engine request that the loop thread is done with; the reason is what it counts as.
Forget = Callable[[str, FinishReason], None]


class Generation(AsyncIterator[Delta]):
    """An answer that is being made: iterate over its deltas, or take what has come with `deltas()`.

    It may span several prompts; then choice = prompt index * n + choice of that prompt. All methods belong to
    the loop that prepared it. Whoever stops reading before the end calls `cancel()`.
    """

    def __init__(self, deployment: Deployment, admitted: Sequence[Admitted], seed: int, forget: Forget) -> None:
        self.deployment = deployment
        self.id = admitted[0].call.request_id
        self.seed = seed
        self.prompts = [one.prompt_token_ids for one in admitted]
        self.is_cancelled = False
        self._sizes = [one.params.n for one in admitted]
        self.finish_reasons = ["unfinished"] * sum(self._sizes)
        self._usages = [Usage()] * sum(self._sizes)
        self._forget = forget
        self._open: dict[str, ChoiceStream] = {}
        self._pending: list[Delta] = []
        self._error: GristmillError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def prompt_token_ids(self) -> list[int]:
        """Return the ids of the first prompt."""
        return self.prompts[0]

    @property
    def num_choices(self) -> int:
        """Return how many choices there are, over all prompts."""
        return len(self._usages)

    @property
    def usage(self) -> Usage:
        """Return what the finished choices used; complete when the generation is over."""
        return sum_usages(self._usages, self._sizes)

    @property
    def is_over(self) -> bool:
        """Return whether nothing more will come, apart from what `deltas()` still holds."""
        return not self._open

    @property
    def error(self) -> GristmillError | None:
        """Return what ended the generation early, if it failed."""
        return self._error

    async def deltas(self) -> list[Delta]:
        """Wait for deltas and return all that have come; an empty list at the end, or after `wake()`.

        Raises: what made the request fail, once the deltas before it are read.
        """
        if not self._pending and self._open:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        pending, self._pending = self._pending, []
        if not pending and self._error is not None:
            raise self._error
        return pending

    async def __anext__(self) -> Delta:
        """Return the next delta."""
        while not self._pending:
            if not self._open:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._pending = await self.deltas()
        return self._pending.pop(0)

    def wake(self) -> None:
        """Make a waiting `deltas()` return now."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self) -> None:
        """Stop at the engine's next step, and forget what is unread; idempotent."""
        if self._open:
            self.is_cancelled = True
            self._end()
        self._pending = []

    def fail(self, error: GristmillError) -> None:
        """End with an error, after the deltas that have come; idempotent."""
        if self._open:
            self._error = error
            self._end()

    def open(self, stream: ChoiceStream) -> None:
        """Add a choice that the engine has accepted."""
        self._open[stream.request.id] = stream

    def accept(self, stream: ChoiceStream, event: TokenEvent) -> None:
        """Take what a step made for one choice."""
        reason = event.finish_reason
        if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
            self.fail(event.error or _unexplained(reason))
            return
        delta = stream.advance(event)
        self._pending.append(delta)
        if delta.finish_reason is not None:
            self._close(stream, delta, is_running=reason is None)
        self.wake()

    def _close(self, stream: ChoiceStream, delta: Delta, *, is_running: bool) -> None:
        assert delta.usage is not None
        assert delta.finish_reason is not None
        self._usages[stream.index] = delta.usage
        self.finish_reasons[stream.index] = delta.finish_reason
        del self._open[stream.request.id]
        if is_running:  # a stop string is found here, not in the engine, which would go on
            self._forget(stream.request.id, FinishReason.STOP)

    def _end(self) -> None:
        for request_id in self._open:
            self._forget(request_id, FinishReason.ABORT)
        self._open.clear()
        self.wake()


def _unexplained(reason: FinishReason) -> GristmillError:
    if reason is FinishReason.ABORT:
        return ServerUnavailable("the server stopped before this request was finished.", "send it again.")
    return RequestFailed("the request failed in the engine.", "send it again; if it repeats, report it.")
