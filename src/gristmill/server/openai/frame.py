"""What all chunks of one streamed answer have in common, serialized once."""

from __future__ import annotations

import time
import uuid
from json.encoder import encode_basestring
from typing import Any

from gristmill.core.request import Usage
from gristmill.server.reply import to_json
from gristmill.server.sse import event
from gristmill.service.generation import Generation


class AnswerFrame:
    """The fields around every chunk. `text_open` and `text_close` are the JSON around a choice's text."""

    def __init__(
        self, generation: Generation, id_prefix: str, object_name: str, text_open: str, text_close: str, includes_usage: bool
    ) -> None:
        self.fields = {
            "id": f"{id_prefix}-{uuid.uuid4().hex}",
            "object": object_name,
            "created": int(time.time()),
            "model": generation.deployment.name,
            "system_fingerprint": generation.deployment.fingerprint,
        }
        self._includes_usage = includes_usage
        head = b"data: " + to_json(self.fields)[:-1]
        self._heads = [
            head + b',"choices":[{"index":%d,%s' % (index, text_open.encode()) for index in range(generation.num_choices)
        ]
        usage = ',"usage":null' if includes_usage else ""
        self._tail = f'{text_close},"logprobs":null,"finish_reason":null}}]{usage}}}\n\n'.encode()

    def text(self, index: int, text: str) -> bytes:
        """Return the event that adds `text` to a choice: the one that is written for every token."""
        return self._heads[index] + encode_basestring(text).encode() + self._tail

    def choice(self, choice: dict[str, Any]) -> bytes:
        """Return the event of a choice that has more than text."""
        usage = {"usage": None} if self._includes_usage else {}
        return event({**self.fields, "choices": [choice], **usage})

    def closing(self, usage: Usage) -> bytes:
        """Return the one chunk without choices, if usage was asked for."""
        if not self._includes_usage:
            return b""
        return event({**self.fields, "choices": [], "usage": usage_object(usage)})


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage object; cached_tokens is always there."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
