"""Fields that clients send and this server does not act upon: refused where the answer would change, else accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from gristmill.core.errors import UnsupportedField

MAX_NAMES = 32
MAX_NAME_CHARS = 64

Neutral = Callable[[Any], bool]


def _is_never(_value: Any) -> bool:
    return False


def _is_empty(value: Any) -> bool:
    return not value


def _is(*neutral: Any) -> Neutral:
    return lambda value: any(value == one and type(value) is type(one) for one in neutral)


def _is_text(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


# Name -> whether a value leaves the answer as it would be without the field.
UNSUPPORTED: Mapping[str, Neutral] = {
    "tools": _is_empty,
    "tool_choice": _is("none"),
    "functions": _is_empty,
    "function_call": _is("none"),
    "response_format": _is_text,
    "structured_outputs": _is_empty,
    "guided_json": _is_never,
    "guided_regex": _is_never,
    "guided_choice": _is_never,
    "guided_grammar": _is_never,
    "guided_decoding_backend": _is_never,
    "grammar": _is_empty,
    "modalities": _is(["text"]),
    "audio": _is_never,
    "prediction": _is_never,
    "reasoning_effort": _is_never,
    "verbosity": _is("medium"),
    "web_search_options": _is_never,
    "suffix": _is_empty,
    "best_of": _is(1),
    "use_beam_search": _is(False),
    "length_penalty": _is(1, 1.0),
    "prompt_logprobs": _is_never,
    "prompt_embeds": _is_never,
    "logits_processors": _is_empty,
    "logits_processor_pattern": _is_never,
    "bad_words": _is_empty,
    "allowed_token_ids": _is_empty,
    "spaces_between_special_tokens": _is(True),
    "chat_template": _is_never,
    "documents": _is_empty,
    "logprob_token_ids": _is_empty,
    "thinking_token_budget": _is_never,
    "mirostat": _is(0),
    "typical_p": _is(1, 1.0),
    "xtc_probability": _is(0, 0.0),
    "dry_multiplier": _is(0, 0.0),
}
# Known, and the answer is the same with and without them.
WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "request_id",
        "priority",
    }
)


def refuse_unsupported(unknown: Mapping[str, Any]) -> None:
    """Raise UnsupportedField for the first field that would change the answer."""
    for name, value in unknown.items():
        is_neutral = UNSUPPORTED.get(name)
        if is_neutral is not None and not is_neutral(value):
            raise UnsupportedField(f"the field {name} is not supported yet.", "send the request without it.", param=name)


def ignored_names(unknown: Mapping[str, Any]) -> str:
    """Return the fields that nobody knows, as a header's value; empty if there is none."""
    names = [name for name in unknown if name not in UNSUPPORTED and name not in WITHOUT_EFFECT]
    shown = [quote(name[:MAX_NAME_CHARS], safe="") for name in names[:MAX_NAMES]]
    return ", ".join(shown) + (", ..." if len(names) > MAX_NAMES else "")
