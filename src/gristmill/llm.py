"""The Python class: the same service that the server uses, in this process, on an event loop of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from numbers import Integral
from queue import SimpleQueue
from typing import Any, TypeVar

from gristmill.core.errors import InvalidRequest, ModelReferenceError
from gristmill.core.request import TokenLogprobs, Usage
from gristmill.core.sampling_params import SamplingParams
from gristmill.core.settings import EngineSettings, resolve_settings
from gristmill.repository.deployment import Deployment, load_deployment
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

    def __init__(self, model: str | os.PathLike[str], **settings: Any) -> None:
        resolved = resolve_settings(EngineSettings, settings, {})
        model = _as_reference(model)
        self._deployment = load_deployment(model, resolved)
        # Twice what runs at once keeps the engine busy; more would only wait in its queue, which has a limit.
        self._room = asyncio.Semaphore(max(1, min(2 * resolved.max_num_seqs, resolved.max_waiting_requests)))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gristmill-llm", daemon=True)
        self._thread.start()
        self._service = Service({model: self._deployment})
        self._ids = itertools.count()
        # Also when nothing refers to it any more, and at the program's end: not everyone closes it.
        self._closer = weakref.finalize(self, _close, self._deployment, self._service, self._loop, self._thread)

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
        if not isinstance(cache_salt, str):
            raise InvalidRequest(f"cache_salt is of type {type(cache_salt).__name__}.", "give a text.", param="cache_salt")
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
        several = isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[0], list | tuple)
        conversations: Sequence[Any] = messages if several else [messages]
        params = params or SamplingParams(max_tokens=None)
        calls = [self._call(params, messages=_as_messages(c), template_kwargs=template_kwargs) for c in conversations]
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
        self._closer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, params: SamplingParams, **fields: Any) -> GenerateCall:
        if not isinstance(params, SamplingParams):
            kind = type(params).__name__
            raise InvalidRequest(f"params is of type {kind}.", "give SamplingParams(...), or leave it out.", param="params")
        return GenerateCall(params=params, request_id=f"llm-{next(self._ids)}", **fields)

    def _stream_call(
        self, prompt: Prompt | None, params: SamplingParams | None, messages: Sequence[Message] | None
    ) -> GenerateCall:
        if params is not None and params.n > 1:
            raise InvalidRequest("a stream has one choice, and n is over 1.", "call generate() for several.", param="n")
        if messages is not None:
            return self._call(params or SamplingParams(max_tokens=None), messages=_as_messages(messages))
        if prompt is None:
            raise InvalidRequest("stream() got neither a prompt nor messages.", "give one of the two.", param="prompt")
        return self._call(params or SamplingParams(), prompt=_as_prompt(prompt))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._closer.alive:
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


def _close(deployment: Deployment, service: Service, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    deployment.close()
    loop.call_soon_threadsafe(service.close)
    loop.call_soon_threadsafe(loop.stop)
    if threading.current_thread() is not thread:  # its last request may have held the last reference
        thread.join()
        loop.close()


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


def _as_reference(model: str | os.PathLike[str]) -> str:
    try:
        return os.fspath(model)
    except TypeError as error:
        kind = type(model).__name__
        raise ModelReferenceError(
            f"the model is of type {kind}, not a text or a path.", "name a file, a folder or an alias."
        ) from error


def _as_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        mend = "give a list like [{'role': 'user', 'content': 'Hello'}], or a list of such lists."
        raise InvalidRequest("messages is not a list of messages.", mend, param="messages")
    return [dict(message) for message in messages]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        return [prompts]  # `_as_prompt` refuses what is none
    listed: list[Any] = list(prompts)
    return [listed] if listed and isinstance(listed[0], Integral) else listed


def _as_prompt(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    is_list = isinstance(prompt, Iterable) and not isinstance(prompt, bytes | Mapping)
    ids: list[Any] = list(prompt) if is_list else [prompt]
    if not is_list or not all(isinstance(one, Integral) and not isinstance(one, bool) for one in ids):
        raise InvalidRequest(
            f"a prompt of type {type(prompt).__name__} is neither a text nor token ids.",
            "give texts, or lists of integers.",
            param="prompt",
        )
    return [int(one) for one in ids]


def _with_progress(futures: list[Future[RequestOutput]], wanted: bool | None) -> Iterator[Future[RequestOutput]]:
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield from futures
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(futures, description="requests", console=Console(stderr=True))
