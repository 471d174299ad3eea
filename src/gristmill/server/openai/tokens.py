"""POST /tokenize, POST /detokenize and GET /tokenizer_info, in vLLM's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill.core.errors import InvalidRequest
from gristmill.core.sampling_params import SamplingParams
from gristmill.server.body import Body, read_body
from gristmill.server.gateway import Gateway
from gristmill.server.openai.answer import request_id
from gristmill.server.openai.fields import refuse_unsupported
from gristmill.server.openai.requests import Int
from gristmill.server.reply import json_reply
from gristmill.service.admission import check_token_ids, encode_text, render, text_length
from gristmill.service.calls import GenerateCall

if TYPE_CHECKING:
    from gristmill.repository.deployment import Deployment

_PARAMS = SamplingParams()


class TokenizeBody(Body):
    """POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[Int], Field(fail_fast=True)]


def token_routes(gateway: Gateway) -> list[Route]:
    """Return the tokenizer's routes."""

    async def tokenize(request: Request) -> Response:
        body = await read_body(request, TokenizeBody, gateway.settings.body_limit_bytes)
        refuse_unsupported(body.unknown_fields())
        deployment = gateway.service.deployment(body.model)
        call = _call(request, body)
        ids = await gateway.service.off_loop(text_length(call), lambda: encode_text(render(call, deployment), call, deployment))
        strings = [deployment.tokenizer.id_to_token(token_id) for token_id in ids] if body.return_token_strs else None
        answer = {"count": len(ids), "max_model_len": deployment.max_model_len, "tokens": ids, "token_strs": strings}
        return json_reply(answer)

    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeBody, gateway.settings.body_limit_bytes)
        tokenizer = gateway.service.deployment(body.model).tokenizer
        check_token_ids(body.tokens, tokenizer, "tokens")
        text = await gateway.service.off_loop(len(body.tokens), lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
        return json_reply({"prompt": text})

    async def tokenizer_info(_: Request) -> Response:
        return json_reply(_info(gateway.service.deployment(None)))

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokenizer_info, methods=["GET"]),
    ]


def _call(request: Request, body: TokenizeBody) -> GenerateCall:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("send either prompt or messages.", "leave one of the two out.", param="prompt")
    continues = bool(body.continue_final_message)
    return GenerateCall(
        params=_PARAMS,
        request_id=request_id(request),
        prompt=body.prompt,
        messages=body.messages,
        add_special_tokens=body.add_special_tokens,
        add_generation_prompt=not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continues,
        template_kwargs=body.chat_template_kwargs or {},
    )


def _info(deployment: Deployment) -> dict[str, Any]:
    tokenizer = deployment.tokenizer
    return {
        "model": deployment.name,
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_id,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "adds_bos": tokenizer.adds_bos,
        "end_token_ids": sorted(deployment.end_token_ids),
        "end_tokens": [tokenizer.id_to_token(token_id) for token_id in sorted(deployment.end_token_ids)],
        "special_token_ids": sorted(tokenizer.special_ids),
        "chat_template": deployment.template.source if deployment.template is not None else None,
        "max_model_len": deployment.max_model_len,
    }
