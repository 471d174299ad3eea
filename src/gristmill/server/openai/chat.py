"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill.core.request import Usage
from gristmill.server.body import read_body
from gristmill.server.gateway import Gateway
from gristmill.server.openai.answer import Choice, request_id, respond, tenant
from gristmill.server.openai.fields import refuse_unsupported
from gristmill.server.openai.frame import AnswerFrame, usage_object
from gristmill.server.openai.logprobs import chat_logprobs
from gristmill.server.openai.requests import ChatBody, chat_params
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
    """A chat's answer, as chunks or whole."""

    def __init__(self, generation: Generation, body: ChatBody, includes_usage: bool) -> None:
        self._generation = generation
        self._tokenizer = generation.deployment.tokenizer
        self._has_logprobs = bool(body.logprobs)
        self._has_ids = bool(body.return_token_ids)
        self._frame = AnswerFrame(generation, "chatcmpl", "chat.completion.chunk", '"delta":{"content":', "}", includes_usage)

    def opening(self) -> bytes:
        begun = [_choice(i, {"role": "assistant", "content": ""}) for i in range(self._generation.num_choices)]
        return b"".join(map(self._frame.choice, begun))

    def chunk(self, delta: Delta) -> bytes:
        if self._has_logprobs or self._has_ids:
            data = self._frame.choice(self._detailed(delta))
        else:
            data = self._frame.text(delta.choice, delta.text) if delta.text else b""
        if delta.finish_reason is None:
            return data
        last = {**_choice(delta.choice, {}), "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return data + self._frame.choice(last)

    def closing(self, generation: Generation) -> bytes:
        return self._frame.closing(generation.usage)

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        wholes = [self._whole(i, choice) for i, choice in enumerate(choices)]
        answer = {**self._frame.fields, "object": "chat.completion", "choices": wholes, "usage": usage_object(usage)}
        return {**answer, "prompt_token_ids": self._generation.prompt_token_ids} if self._has_ids else answer

    def _detailed(self, delta: Delta) -> dict[str, Any]:
        choice = _choice(delta.choice, {"content": delta.text})
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


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
