"""What a server or the Python class asks of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One prompt, or one conversation, and how to answer it. Exactly one of `prompt` and `messages` is given."""

    params: SamplingParams
    request_id: str
    prompt: str | Sequence[int] | None = None
    messages: Sequence[Any] | None = None  # as the client sent them; the template checks them
    model: str | None = None  # None = the one that is served
    tenant: str = ""
    cache_salt: str = ""
    add_special_tokens: bool | None = None  # None = for a prompt, not for messages: their template writes them
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
