"""Log probabilities in the two shapes that OpenAI's API has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.core.request import TokenLogprobs
from gristmill.text.tokenizer import Tokenizer


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """Return a token's text; bytes that are no text by themselves as `bytes:` and hexadecimal, so that none are confused."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the `logprobs` object of a chat's choice."""
    content = [
        {**_entry(entry.token_id, entry.logprob, tokenizer), "top_logprobs": [_entry(i, p, tokenizer) for i, p in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
    """Return the `logprobs` object of a completion's choice; `offset` is where the first token's text begins."""
    tokens = [token_text(tokenizer, entry.token_id) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_top(entry, tokenizer) for entry in entries],
        "text_offset": offsets,
    }


def _top(entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, float]:
    """Map the most likely tokens to their logprobs; the chosen one is always among them."""
    top = {token_text(tokenizer, token_id): logprob for token_id, logprob in entry.top}
    return top | {token_text(tokenizer, entry.token_id): entry.logprob}


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {"token": token_text(tokenizer, token_id), "logprob": logprob, "bytes": list(tokenizer.token_bytes(token_id))}
