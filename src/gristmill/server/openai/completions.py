"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill.core.errors import InvalidRequest
from gristmill.core.request import Usage
from gristmill.server.body import read_body
from gristmill.server.gateway import Gateway
from gristmill.server.openai.answer import Choice, request_id, respond, tenant
from gristmill.server.openai.fields import refuse_unsupported
from gristmill.server.openai.frame import AnswerFrame, usage_object
from gristmill.server.openai.logprobs import completion_logprobs, token_text
from gristmill.server.openai.requests import CompletionBody, completion_params
from gristmill.service.admission import draw_seed
from gristmill.service.calls import GenerateCall
from gristmill.service.generation import Generation
from gristmill.service.stream import Delta

MAX_PROMPTS = 2048

Prompt = str | list[int]


def completion_routes(gateway: Gateway) -> list[Route]:
    """Return the completions route."""

    async def create(request: Request) -> Response:
        body = await read_body(request, CompletionBody, gateway.settings.body_limit_bytes)
        refuse_unsupported(body.unknown_fields())
        prompts = read_prompts(body.prompt)
        calls = _calls(gateway, request, body, prompts)
        includes_usage = body.includes_usage
        return await respond(gateway, request, body, calls, lambda made: _CompletionWriter(made, body, prompts, includes_usage))

    return [Route("/completions", create, methods=["POST"])]


def read_prompts(prompt: Any) -> list[Prompt]:
    """Return the prompts of a text, a list of texts, a list of ids or a list of lists of ids. Raises: InvalidRequest."""
    if isinstance(prompt, str) or _is_ids(prompt):
        return [prompt]
    is_list = isinstance(prompt, list) and 0 < len(prompt) <= MAX_PROMPTS
    if is_list and (all(isinstance(one, str) for one in prompt) or all(_is_ids(one) for one in prompt)):
        return list(prompt)
    raise InvalidRequest(
        "prompt is not a text, a list of texts, a list of token ids or a list of such lists.",
        f"send one of the four, with at least one and at most {MAX_PROMPTS:,} prompts, none of them an empty list.",
        param="prompt",
    )


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _calls(gateway: Gateway, request: Request, body: CompletionBody, prompts: Sequence[Prompt]) -> list[GenerateCall]:
    deployment = gateway.service.deployment(body.model)
    params = completion_params(body, deployment.defaults)
    # All prompts of a request share its one seed, which the header tells.
    params = params if params.seed is not None else replace(params, seed=draw_seed())
    return [
        GenerateCall(
            params=params,
            request_id=request_id(request),
            prompt=prompt,
            model=body.model,
            tenant=tenant(request),
            cache_salt=body.cache_salt or "",
            add_special_tokens=body.add_special_tokens,
        )
        for prompt in prompts
    ]


class _CompletionWriter:
    """A completion's answer, as chunks or whole."""

    def __init__(self, generation: Generation, body: CompletionBody, prompts: Sequence[Prompt], includes_usage: bool) -> None:
        self._generation = generation
        self._tokenizer = generation.deployment.tokenizer
        self._has_logprobs = body.logprobs is not None
        self._has_ids = bool(body.return_token_ids)
        self._num_each = generation.num_choices // len(prompts)
        is_cut = body.truncate_prompt_tokens is not None
        self._echoes = [self._echo(i, prompt, is_cut) for i, prompt in enumerate(prompts)] if body.echo else []
        self._offsets = [0] * generation.num_choices
        self._frame = AnswerFrame(generation, "cmpl", "text_completion", '"text":', "", includes_usage)

    def opening(self) -> bytes:
        echoed = range(self._generation.num_choices) if self._echoes else ()
        return b"".join(self._frame.text(i, self._echoes[i // self._num_each]) for i in echoed)

    def chunk(self, delta: Delta) -> bytes:
        if self._has_logprobs or self._has_ids:
            data = self._frame.choice(self._detailed(delta))
        else:
            data = self._frame.text(delta.choice, delta.text) if delta.text else b""
        if delta.finish_reason is None:
            return data
        last = {**_choice(delta.choice, ""), "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return data + self._frame.choice(last)

    def closing(self, generation: Generation) -> bytes:
        return self._frame.closing(generation.usage)

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        wholes = [self._whole(i, choice) for i, choice in enumerate(choices)]
        return {**self._frame.fields, "choices": wholes, "usage": usage_object(usage)}

    def _detailed(self, delta: Delta) -> dict[str, Any]:
        choice = _choice(delta.choice, delta.text)
        if self._has_logprobs:
            offset = self._offsets[delta.choice]
            choice["logprobs"] = completion_logprobs(delta.logprobs, self._tokenizer, offset)
            self._offsets[delta.choice] += sum(len(token_text(self._tokenizer, one.token_id)) for one in delta.logprobs)
        return {**choice, "token_ids": delta.token_ids} if self._has_ids else choice

    def _whole(self, index: int, choice: Choice) -> dict[str, Any]:
        prompt_idx = index // self._num_each
        whole = _choice(index, (self._echoes[prompt_idx] if self._echoes else "") + choice.text)
        if self._has_logprobs:
            whole["logprobs"] = completion_logprobs(choice.logprobs, self._tokenizer, 0)
        whole |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        ids = {"token_ids": choice.token_ids, "prompt_token_ids": self._generation.prompts[prompt_idx]}
        return {**whole, **ids} if self._has_ids else whole

    def _echo(self, index: int, prompt: Prompt, is_cut: bool) -> str:
        """Return the prompt's text: the client's own, unless it sent ids or had it cut."""
        if isinstance(prompt, str) and not is_cut:
            return prompt
        return self._tokenizer.decode(self._generation.prompts[index], skip_special_tokens=True)


def _choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
