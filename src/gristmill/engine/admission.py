"""From a request to a sequence, on the thread that submits: what can never fit is refused here."""

from __future__ import annotations

import numpy as np

from gristmill.backends.base import I32
from gristmill.core.errors import InvalidRequest, PromptTooLong
from gristmill.core.request import Request
from gristmill.engine.limits import EngineLimits
from gristmill.engine.sequence import PrefixHashes, Sequence
from gristmill.kv.prefix_index import PrefixIndex


def make_sequence(request: Request, limits: EngineLimits, index: PrefixIndex, now_ns: int) -> Sequence:
    """Check a request and make its sequence.

    `max_tokens` beyond the room is clamped: it ends with `length`.
    Raises: InvalidRequest if the prompt is empty, PromptTooLong if it leaves no room for one token.
    """
    prompt = np.array(request.prompt_token_ids, np.int32)
    room = limits.max_sequence_len - len(prompt)
    if len(prompt) == 0:
        raise InvalidRequest("the prompt has no tokens.", "send at least one token.", param="prompt")
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {len(prompt):,} tokens; this deployment accepts {limits.max_sequence_len - 1:,} and one for the "
            f"answer ({limits.max_sequence_len:,} in all).",
            "shorten it, send truncate_prompt_tokens, or restart with a larger --max-model-len or --kv-memory, "
            "if the model was made for more.",
            param="prompt",
        )
    max_tokens = room if request.params.max_tokens is None else min(request.params.max_tokens, room)
    prefix = _prefix_hashes(request, prompt, limits, index)
    return Sequence(request, prompt, max_tokens, request.arrival_ns or now_ns, prefix)


def _prefix_hashes(request: Request, prompt: I32, limits: EngineLimits, index: PrefixIndex) -> PrefixHashes:
    root = index.root((request.tenant, request.cache_salt))
    group_key = b""
    if request.group_id and request.params.n > 1:
        group_key = index.extend(index.root((request.tenant, request.cache_salt, request.group_id)), prompt)
    return PrefixHashes(root, index.chain(root, prompt) if limits.prefix_cache else None, group_key)
