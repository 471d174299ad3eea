"""What chat and completions share: starting the calls, streaming or collecting them, and the headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from gristmill.core.request import TokenLogprobs, Usage
from gristmill.server.front import RECORD
from gristmill.server.gateway import Gateway
from gristmill.server.log import RequestRecord
from gristmill.server.openai.fields import ignored_names
from gristmill.server.openai.requests import GenerateBody
from gristmill.server.reply import json_reply
from gristmill.server.sse import ChunkWriter, Departure, EventStream
from gristmill.service.calls import GenerateCall
from gristmill.service.generation import Generation

CLIENT_LEFT = 499  # nobody reads it; the log line shows it


@dataclass(slots=True)
class Choice:
    """A whole choice of an answer that is not streamed."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class AnswerWriter(ChunkWriter, Protocol):
    """Writes one kind of answer, as events or as a whole."""

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """Return the JSON body of a whole answer."""
        ...


async def respond(
    gateway: Gateway,
    request: Request,
    body: GenerateBody,
    calls: Sequence[GenerateCall],
    make_writer: Callable[[Generation], AnswerWriter],
) -> Response:
    """Run the calls and answer. Raises: what `Service.prepare` and the generation raise."""
    departure = Departure(request.receive)
    try:
        generation = await gateway.service.prepare_all(calls)
        departure.attach(generation)
        record: RequestRecord = request.scope[RECORD]
        record.generation = generation
        writer = make_writer(generation)
        headers = _headers(generation, body.unknown_fields())
        if body.stream:
            return EventStream(generation, writer, departure, gateway.settings.sse_comment_s, headers)
        return await _whole(generation, writer, departure, headers)
    except BaseException:
        departure.close()
        raise


def request_id(request: Request) -> str:
    """Return the client's x-request-id, or the one that was made for it."""
    record: RequestRecord = request.scope[RECORD]
    return record.id


def tenant(request: Request) -> str:
    """Return whose request this is: one tenant per key."""
    record: RequestRecord = request.scope[RECORD]
    return record.tenant


async def _whole(generation: Generation, writer: AnswerWriter, departure: Departure, headers: Mapping[str, str]) -> Response:
    choices = await _collect(generation)
    departure.close()
    if departure.has_left:
        return Response(status_code=CLIENT_LEFT)
    usage = generation.usage
    return json_reply(writer.body(choices, usage), 200, {**headers, **_time_headers(usage)})


async def _collect(generation: Generation) -> list[Choice]:
    choices = [Choice() for _ in range(generation.num_choices)]
    texts: list[list[str]] = [[] for _ in choices]
    while deltas := await generation.deltas():
        for delta in deltas:
            choice = choices[delta.choice]
            texts[delta.choice].append(delta.text)
            choice.token_ids += delta.token_ids
            choice.logprobs += delta.logprobs
            choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
    for choice, parts in zip(choices, texts, strict=True):
        choice.text = "".join(parts)
    return choices


def _headers(generation: Generation, unknown: Mapping[str, Any]) -> dict[str, str]:
    headers = {"x-gristmill-seed": str(generation.seed)}
    ignored = ignored_names(unknown)
    return {**headers, "x-gristmill-ignored": ignored} if ignored else headers


def _time_headers(usage: Usage) -> dict[str, str]:
    times = {"queue": usage.queue_ns, "prefill": usage.prefill_ns, "decode": usage.decode_ns}
    return {f"x-gristmill-{name}-ms": f"{ns / 1e6:.3f}" for name, ns in times.items()}
