"""The Python class: the same service that the server uses, in this process, on an event loop of its own."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from gristmill.core.errors import InvalidRequest
from gristmill.core.request import TokenLogprobs, Usage
from gristmill.core.sampling_params import SamplingParams
from gristmill.core.settings import EngineSettings, resolve_settings
from gristmill.repository.deployment import load_deployment
from gristmill.service.calls import GenerateCall
from gristmill.service.generate import Service
from gristmill.service.generation import Generation
from gristmill.service.stream import Delta

T = TypeVar("T")
Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(slots=True)
class CompletionOutput:
    """One choice of an answer."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Where the time of a request went, in seconds, summed over its choices."""

    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(slots=True)
class RequestOutput:
    """What one prompt gave."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    seed: int
    usage: Usage = field(default_factory=Usage)

    @property
    def metrics(self) -> RequestMetrics:
        """Return the times of `usage` in seconds."""
        return RequestMetrics(self.usage.queue_ns / 1e9, self.usage.prefill_ns / 1e9, self.usage.decode_ns / 1e9)


class LLM:
    """A model in this process: `LLM("smollm2-135m").generate(["Hello"])`.

    `model` is a path, `hf:org/name`, `pypi:package` or an alias; `settings` are those of `gristmill serve`.
    Raises: the operator errors of `core.errors`. Closing it frees everything; it is a context manager.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        resolved = resolve_settings(EngineSettings, settings, {})
        self._deployment = load_deployment(model, resolved)
        # Twice what runs at once keeps the engine busy; more would only wait in its queue, which has a limit.
        self._room = asyncio.Semaphore(max(1, min(2 * resolved.max_num_seqs, resolved.max_waiting_requests)))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gristmill-llm", daemon=True)
        self._thread.start()
        self._service = Service({model: self._deployment})
        self._ids = itertools.count()
        self._is_closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        progress: bool | None = None,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Answer every prompt, batched continuously, in the order given; a progress bar on a terminal.

        Prompts share prefix-cache blocks only with those of the same `cache_salt`.
        """
        fields = [{"prompt": _as_prompt(prompt), "cache_salt": cache_salt} for prompt in _as_list(prompts)]
        calls = [self._call(params or SamplingParams(), **field) for field in fields]
        return self._answer_all(calls, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | None = None,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several."""
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations = messages if several else [messages]
        params = params or SamplingParams(max_tokens=None)
        calls = [self._call(params, messages=[dict(m) for m in c], template_kwargs=template_kwargs) for c in conversations]  # type: ignore[arg-type]
        return self._answer_all(calls, None)

    def stream(
        self, prompt: Prompt | None = None, params: SamplingParams | None = None, *, messages: Sequence[Message] | None = None
    ) -> TextStream:
        """Stream the text of one answer as it is made; `stream.result` has the whole when it ends."""
        return TextStream(self, self._stream_call(prompt, params, messages))

    async def agenerate(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """Answer one prompt from any event loop; cancelling it cancels the request."""
        call = self._call(params or SamplingParams(), prompt=_as_prompt(prompt))
        return await asyncio.wrap_future(self._submit(self._answer(call)))

    @property
    def has_chat_template(self) -> bool:
        """Tell whether `chat` can work."""
        return self._deployment.template is not None

    @property
    def max_model_len(self) -> int:
        """Most tokens of one request."""
        return self._deployment.max_model_len

    @property
    def vocab_size(self) -> int:
        """How many token ids the model has."""
        return self._deployment.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        """What equal bytes are promised for."""
        return self._deployment.fingerprint

    @property
    def num_threads(self) -> int:
        """Compute threads in use."""
        return self._deployment.resolved.num_threads

    def default_params(self, **given: Any) -> SamplingParams:
        """Return the model's own sampling defaults (its generation_config), overridden by `given`."""
        return SamplingParams(**{**self._deployment.defaults, **given})

    def close(self) -> None:
        """Stop the engine and free the model; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._deployment.close()
        self._loop.call_soon_threadsafe(self._service.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, params: SamplingParams, **fields: Any) -> GenerateCall:
        return GenerateCall(params=params, request_id=f"llm-{next(self._ids)}", **fields)

    def _stream_call(
        self, prompt: Prompt | None, params: SamplingParams | None, messages: Sequence[Message] | None
    ) -> GenerateCall:
        if params is not None and params.n > 1:
            raise InvalidRequest("a stream has one choice, and n is over 1.", "call generate() for several.", param="n")
        if messages is not None:
            return self._call(params or SamplingParams(max_tokens=None), messages=[dict(m) for m in messages])
        if prompt is None:
            raise InvalidRequest("stream() got neither a prompt nor messages.", "give one of the two.", param="prompt")
        return self._call(params or SamplingParams(), prompt=_as_prompt(prompt))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._is_closed:
            work.close()
            raise InvalidRequest("this LLM is closed.", "make a new one.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _answer_all(self, calls: list[GenerateCall], progress: bool | None) -> list[RequestOutput]:
        futures = [self._submit(self._answer(call)) for call in calls]
        try:
            return [future.result() for future in _with_progress(futures, progress)]
        finally:
            for future in futures:
                future.cancel()

    async def _answer(self, call: GenerateCall, on_text: Callable[[str], None] = lambda text: None) -> RequestOutput:
        async with self._room:
            generation = await self._service.prepare(call)
            return await _collect(generation, call, on_text)


class TextStream(Iterator[str]):
    """The text of one answer, piece by piece; `close()` (or leaving a `with`) cancels the request."""

    def __init__(self, llm: LLM, call: GenerateCall) -> None:
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._future = llm._submit(llm._answer(call, self._queue.put))
        self._future.add_done_callback(lambda _: self._queue.put(None))
        self._is_over = False

    def __next__(self) -> str:
        """Wait for the next piece. Raises: what ended the request, if it failed."""
        while not self._is_over:
            piece = self._queue.get()
            if piece:
                return piece
            self._is_over = piece is None
        if not self._future.cancelled():
            self._future.result()
        raise StopIteration

    @property
    def result(self) -> RequestOutput:
        """Return the whole answer, waiting for its end."""
        return self._future.result()

    def close(self) -> None:
        """Cancel the request, if it still runs."""
        self._future.cancel()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _collect(generation: Generation, call: GenerateCall, on_text: Callable[[str], None]) -> RequestOutput:
    outputs = [CompletionOutput(i, logprobs=[] if call.params.logprobs is not None else None) for i in range(call.params.n)]
    text = call.prompt if isinstance(call.prompt, str) else None
    answer = RequestOutput(generation.id, text, list(generation.prompt_token_ids), outputs, generation.seed)
    try:
        async for delta in generation:
            _add_delta(answer, delta)
            on_text(delta.text)
    finally:
        generation.cancel()
    answer.usage = generation.usage
    return answer


def _add_delta(answer: RequestOutput, delta: Delta) -> None:
    output = answer.outputs[delta.choice]
    output.text += delta.text
    output.token_ids.extend(delta.token_ids)
    if output.logprobs is not None:
        output.logprobs.extend(delta.logprobs)
    if delta.finish_reason is not None:
        output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _as_prompt(prompt: Prompt) -> str | list[int]:
    return prompt if isinstance(prompt, str) else list(prompt)


def _with_progress(futures: list[Future[RequestOutput]], wanted: bool | None) -> Iterator[Future[RequestOutput]]:
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield from futures
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(futures, description="requests", console=Console(stderr=True))
