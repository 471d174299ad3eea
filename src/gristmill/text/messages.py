"""Chat messages as a client sends them, made into what a model's template expects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.core.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool")
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template was found to understand."""

    takes_text: bool = True  # content as a string
    takes_parts: bool = False  # content as a list of parts
    takes_null: bool = False  # an assistant's content as none
    knows_developer: bool = False


def normalize(messages: Sequence[Any], traits: TemplateTraits) -> list[Message]:
    """Check `messages` and return copies that a template with these traits can render.

    Raises: InvalidRequest naming the message and the part.
    """
    if not messages:
        raise InvalidRequest("messages is empty.", "send at least one message.", param="messages")
    return [_message(message, f"messages[{i}]", traits) for i, message in enumerate(messages)]


def _message(message: Any, where: str, traits: TemplateTraits) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} is not an object.", 'send {"role": …, "content": …}.', param=where)
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role is {role!r}.", f"use one of: {', '.join(ROLES)}.", param=f"{where}.role")
    # Templates ask `'tool_calls' in message`: a key that holds nothing must not be there.
    kept = {key: value for key, value in message.items() if value is not None}
    if role == "developer" and not traits.knows_developer:
        kept["role"] = "system"
    kept["content"] = _content(message.get("content"), f"{where}.content", role, traits)
    if "tool_calls" in kept:
        kept["tool_calls"] = _tool_calls(kept["tool_calls"], f"{where}.tool_calls")
    return kept


def _content(content: Any, where: str, role: str, traits: TemplateTraits) -> Any:
    if content is None:
        if role != "assistant":
            raise InvalidRequest(f"{where} is missing.", "only an assistant's message may have none.", param=where)
        return None if traits.takes_null else _shaped([""], traits)
    if isinstance(content, str):
        return content if traits.takes_text else _shaped([content], traits)
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} is neither a text nor a list of parts.", "send a string.", param=where)
    return _shaped([_part_text(part, f"{where}[{i}]") for i, part in enumerate(content)], traits)


def _shaped(texts: list[str], traits: TemplateTraits) -> Any:
    if traits.takes_parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise InvalidRequest(f"{where} is of type {kind!r}, which is not supported.", "send parts of type 'text'.", param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text is not a string.", "send a string.", param=f"{where}.text")
    return text


def _tool_calls(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where} is not a list.", "send a list of calls, or leave it out.", param=where)
    return [_tool_call(call) for call in calls]


def _tool_call(call: Any) -> Any:
    """Return the call with its arguments as an object: OpenAI sends them as JSON in a string, templates print objects."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):  # not JSON, or nested deeper than any call is
        return call
    return {**call, "function": {**function, "arguments": arguments}}
