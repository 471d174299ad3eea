"""From a call to what the engine takes: template, token ids, limits. Pure, so that a worker thread can do it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import InvalidRequest, PromptTooLong, TemplateError
from gristmill.core.sampling_params import SEED_MAX, SamplingParams
from gristmill.service.calls import GenerateCall
from gristmill.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gristmill.repository.deployment import Deployment

SEED_BITS = 53  # what every JSON parser holds exactly


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that is ready for the engine: `params.seed` and `params.max_tokens` are resolved."""

    call: GenerateCall
    prompt_token_ids: list[int]
    params: SamplingParams


def draw_seed() -> int:
    """Return a fresh seed for a request that has none."""
    return secrets.randbits(SEED_BITS)


def text_length(call: GenerateCall) -> int:
    """Return how many characters have to be rendered and encoded for this call."""
    if call.messages is not None:
        return sum(map(_message_length, call.messages))
    return len(call.prompt) if isinstance(call.prompt, str) else 0


def admit(call: GenerateCall, deployment: Deployment, seed: int) -> Admitted:
    """Render, encode and check a call; `seed` is used if it has none.

    Raises: InvalidRequest, PromptTooLong or TemplateError.
    """
    params = call.params
    _check_params(params, deployment.tokenizer)
    ids = _truncate(_encode(call, deployment), params, deployment.max_model_len)
    room = deployment.max_model_len - len(ids)
    if not ids:
        raise InvalidRequest("the prompt has no tokens.", "send at least one character, or one token id.", param="prompt")
    if room < 1:
        raise too_long(f"{len(ids):,} tokens", call, deployment)
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    drawn = seed if params.seed is None else params.seed
    resolved = replace(params, seed=drawn & SEED_MAX, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))
    return Admitted(call, ids, resolved)


def render(call: GenerateCall, deployment: Deployment) -> str:
    """Return the text of a call's prompt or messages. Raises: TemplateError, InvalidRequest."""
    if call.messages is None:
        assert isinstance(call.prompt, str)
        return call.prompt
    if deployment.template is None:
        raise TemplateError(
            f"the model {deployment.name} has no chat template.",
            "restart with --chat-template FILE, or send a prompt to /v1/completions.",
            param="messages",
        )
    return deployment.template.render(
        call.messages,
        add_generation_prompt=call.add_generation_prompt,
        continue_final_message=call.continue_final_message,
        template_kwargs=call.template_kwargs,
    )


def encode_text(text: str, call: GenerateCall, deployment: Deployment) -> list[int]:
    """Return the ids of a rendered text, with the special tokens that this kind of call gets."""
    special = call.messages is None if call.add_special_tokens is None else call.add_special_tokens
    return deployment.tokenizer.encode(text, add_special_tokens=special)


def check_token_ids(ids: Sequence[int], tokenizer: Tokenizer, name: str) -> None:
    """Raise InvalidRequest if an id is outside the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= tokenizer.vocab_size):
        wrong = next(i for i in ids if not 0 <= i < tokenizer.vocab_size)
        raise InvalidRequest(
            f"{name} has the token id {_shown(wrong)}; this model's ids are 0 .. {tokenizer.vocab_size - 1:,}.",
            "use ids of this model's own tokenizer (POST /tokenize).",
            param=name,
        )


def too_long(has: str, call: GenerateCall, deployment: Deployment) -> PromptTooLong:
    """Return the error for a prompt that leaves no room for one token."""
    return PromptTooLong(
        f"the prompt has {has}; this deployment accepts {deployment.max_model_len - 1:,} and one for the answer "
        f"({deployment.max_model_len:,} in all).",
        "shorten it, send truncate_prompt_tokens, or restart with a larger --max-model-len, if the model was made for more.",
        param="prompt" if call.messages is None else "messages",
    )


def _message_length(message: Any) -> int:
    """Count the characters of a message that nobody has checked yet; one without text costs time too."""
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return 16 + sum(len(text) for text in texts if isinstance(text, str))


def _encode(call: GenerateCall, deployment: Deployment) -> list[int]:
    if (call.prompt is None) == (call.messages is None):
        raise InvalidRequest("a call needs either a prompt or messages.", "give one of the two.", param="prompt")
    if call.messages is None and not isinstance(call.prompt, str):
        ids = list(call.prompt or ())
        check_token_ids(ids, deployment.tokenizer, "prompt")
        return ids
    may_be_cut = call.params.truncate_prompt_tokens is not None
    if call.messages is not None and len(call.messages) > deployment.max_model_len and not may_be_cut:
        raise too_long(f"{len(call.messages):,} messages, at least one token each", call, deployment)
    text = render(call, deployment)
    longest = deployment.tokenizer.longest_token_chars
    if not may_be_cut and len(text) > deployment.max_model_len * longest:
        raise too_long(f"{len(text):,} characters, at least {-(-len(text) // longest):,} tokens", call, deployment)
    return encode_text(text, call, deployment)


def _truncate(ids: list[int], params: SamplingParams, max_model_len: int) -> list[int]:
    keep = params.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep < 0:
        keep = max(1, max_model_len - max(1, params.max_tokens or 1))
    return ids[len(ids) - keep :] if 0 <= keep < len(ids) else ids


def _check_params(params: SamplingParams, tokenizer: Tokenizer) -> None:
    check_token_ids(params.stop_token_ids, tokenizer, "stop_token_ids")
    check_token_ids(tuple(params.logit_bias), tokenizer, "logit_bias")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {params.min_tokens} and max_tokens {params.max_tokens}.",
            "make min_tokens the smaller one.",
            param="min_tokens",
        )


def _shown(token_id: int) -> str:
    return str(token_id) if -(2**63) < token_id < 2**64 else "(huge)"
