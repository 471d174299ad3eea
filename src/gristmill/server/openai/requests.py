"""The bodies of the OpenAI routes, with vLLM's extra fields, and the sampling options in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gristmill.core.errors import InvalidRequest, UnsupportedField
from gristmill.core.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS, SamplingParams
from gristmill.server.body import Body

MAX_STOP_TOKEN_IDS = 1024
COMPLETION_TOKENS = 16  # OpenAI's default for completions; a chat goes on until the context ends

Int = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
Float = Annotated[float, Field(ge=-1e9, le=1e9)]
StopStrings = Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)]
TokenIds = Annotated[list[Int], Field(fail_fast=True, max_length=MAX_STOP_TOKEN_IDS)]

# Fields that become a SamplingParams field of the same name.
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "stop",
    "include_stop_str_in_output",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "truncate_prompt_tokens",
)


class StreamOptions(Body):
    """What a stream shows beside the answer."""

    include_usage: bool | None = None


class GenerateBody(Body):
    """What both routes take. A null counts as not sent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Int | None = None
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    min_p: Float | None = None
    seed: Int | None = None
    min_tokens: Int | None = None
    stop: str | StopStrings | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    repetition_penalty: Float | None = None
    presence_penalty: Float | None = None
    frequency_penalty: Float | None = None
    logit_bias: dict[str, Any] | None = None
    n: Int | None = None
    truncate_prompt_tokens: Int | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None

    @property
    def includes_usage(self) -> bool:
        """Return whether the stream ends with a usage chunk. Raises: InvalidRequest if there is no stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidRequest("stream_options is given without stream.", "set stream to true.", param="stream_options")
        return bool(self.stream_options.include_usage)


class ChatBody(GenerateBody):
    """POST /v1/chat/completions."""

    messages: list[Any]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    echo: bool | None = None


class CompletionBody(GenerateBody):
    """POST /v1/completions."""

    prompt: Any = None
    logprobs: Int | None = None
    echo: bool | None = None


def chat_params(body: ChatBody, defaults: Mapping[str, Any]) -> SamplingParams:
    """Return a chat's sampling options: the request's, else the model's, else OpenAI's. Raises: InvalidRequest."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs is given without logprobs.", "set logprobs to true.", param="top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {body.top_logprobs}.", f"send a number from 0 to {MAX_TOP_LOGPROBS}.", param="top_logprobs"
        )
    if body.echo:
        raise UnsupportedField("echo is not supported for chats.", "send the request without it.", param="echo")
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(body, name)
    if max_tokens is not None and max_tokens < 1:
        raise InvalidRequest(f"{name} is {max_tokens}.", "send at least 1, or leave it out.", param=name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _params(body, defaults, {"max_tokens": max_tokens, "logprobs": logprobs})


def completion_params(body: CompletionBody, defaults: Mapping[str, Any]) -> SamplingParams:
    """Return a completion's sampling options, found as for a chat. Raises: InvalidRequest."""
    if body.echo and body.logprobs is not None:
        raise UnsupportedField("logprobs of an echoed prompt are not supported yet.", "send one of the two.", param="echo")
    max_tokens = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _params(body, defaults, {"max_tokens": max_tokens, "logprobs": body.logprobs})


def _params(body: GenerateBody, defaults: Mapping[str, Any], own: Mapping[str, Any]) -> SamplingParams:
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if body.logit_bias:
        given["logit_bias"] = _logit_bias(body.logit_bias)
    return SamplingParams(**{**defaults, **own, **given})


def _logit_bias(biases: Mapping[str, Any]) -> dict[int, float]:
    if len(biases) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias has {len(biases):,} entries.", f"send at most {MAX_LOGIT_BIAS:,}.", param="logit_bias")
    read: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidRequest(f"logit_bias has the key {key[:40]!r}.", "use token ids as keys.", param="logit_bias")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise InvalidRequest(f"logit_bias[{key}] is not a number from -100 to 100.", "send one.", param="logit_bias")
        read[int(key)] = float(bias)
    return read
