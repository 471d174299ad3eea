"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill.core.request import Usage
from gristmill.server.body import read_body
from gristmill.server.gateway import Gateway
from gristmill.server.openai.answer import Choice, new_id, request_id, respond, tenant, usage_object
from gristmill.server.openai.fields import refuse_unsupported
from gristmill.server.openai.logprobs import chat_logprobs
from gristmill.server.openai.requests import ChatBody, chat_params
from gristmill.server.reply import to_json
from gristmill.server.sse import event
from gristmill.service.calls import GenerateCall
from gristmill.service.generation import Generation
from gristmill.service.stream import Delta


def chat_routes(gateway: Gateway) -> list[Route]:
    """Return the chat route."""

    async def create(request: Request) -> Response:
        body = await read_body(request, ChatBody, gateway.settings.body_limit_bytes)
        refuse_unsupported(body.unknown_fields())
        call = _call(gateway, request, body)
        includes_usage = body.includes_usage
        return await respond(gateway, request, body, [call], lambda made: _ChatWriter(made, body, includes_usage))

    return [Route("/chat/completions", create, methods=["POST"])]


def _call(gateway: Gateway, request: Request, body: ChatBody) -> GenerateCall:
    deployment = gateway.service.deployment(body.model)
    continues = bool(body.continue_final_message)
    adds_prompt = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    return GenerateCall(
        params=chat_params(body, deployment.defaults),
        request_id=request_id(request),
        messages=body.messages,
        model=body.model,
        tenant=tenant(request),
        cache_salt=body.cache_salt or "",
        add_special_tokens=bool(body.add_special_tokens),
        add_generation_prompt=adds_prompt,
        continue_final_message=continues,
        template_kwargs=body.chat_template_kwargs or {},
    )


class _ChatWriter:
    """Chunks from a template that is serialized once: a delta adds its escaped text and nothing else."""

    def __init__(self, generation: Generation, body: ChatBody, includes_usage: bool) -> None:
        self._generation = generation
        self._tokenizer = generation.deployment.tokenizer
        self._has_logprobs = bool(body.logprobs)
        self._has_ids = bool(body.return_token_ids)
        self._includes_usage = includes_usage
        self._answer = {
            "id": new_id("chatcmpl"),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": generation.deployment.name,
            "system_fingerprint": generation.deployment.fingerprint,
        }
        head = b"data: " + to_json(self._answer)[:-1]
        self._heads = [head + b',"choices":[{"index":%d,"delta":{"content":' % index for index in range(generation.num_choices)]
        self._tail = b'},"logprobs":null,"finish_reason":null}]' + (b',"usage":null}\n\n' if includes_usage else b"}\n\n")

    def opening(self) -> bytes:
        return b"".join(self._event(self._choice(i, {"role": "assistant", "content": ""})) for i in range(len(self._heads)))

    def chunk(self, delta: Delta) -> bytes:
        if self._has_logprobs or self._has_ids:
            data = self._event(self._detailed(delta))
        elif delta.text:
            data = self._heads[delta.choice] + encode_basestring(delta.text).encode() + self._tail
        else:
            data = b""
        if delta.finish_reason is None:
            return data
        last = {**self._choice(delta.choice, {}), "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return data + self._event(last)

    def closing(self, generation: Generation) -> bytes:
        return event({**self._answer, "choices": [], "usage": usage_object(generation.usage)}) if self._includes_usage else b""

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        answer = {**self._answer, "object": "chat.completion", "choices": [self._whole(i, c) for i, c in enumerate(choices)]}
        ids = {"prompt_token_ids": self._generation.prompt_token_ids} if self._has_ids else {}
        return {**answer, "usage": usage_object(usage), **ids}

    def _event(self, choice: dict[str, Any]) -> bytes:
        usage = {"usage": None} if self._includes_usage else {}
        return event({**self._answer, "choices": [choice], **usage})

    def _choice(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _detailed(self, delta: Delta) -> dict[str, Any]:
        choice = self._choice(delta.choice, {"content": delta.text})
        if self._has_logprobs:
            choice["logprobs"] = chat_logprobs(delta.logprobs, self._tokenizer)
        return {**choice, "token_ids": delta.token_ids} if self._has_ids else choice

    def _whole(self, index: int, choice: Choice) -> dict[str, Any]:
        whole = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs, self._tokenizer) if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        return {**whole, "token_ids": choice.token_ids} if self._has_ids else whole
