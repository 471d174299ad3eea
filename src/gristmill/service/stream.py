"""From the engine's token events to text: detokenized, cut at stop strings, in the order in which it was made."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.core.request import FinishReason, Request, TokenEvent, TokenLogprobs, Usage
from gristmill.text.detokenizer import IncrementalDetokenizer
from gristmill.text.stop import StopMatcher
from gristmill.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Delta:
    """What one choice gained: the text may be empty while a character or a stop string is incomplete.

    On the last delta of a choice `finish_reason` is "stop" or "length", `stop_reason` the stop string or the
    stop token id that ended it (None for an end token of the model), and `usage` what the choice used.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None


class ChoiceStream:
    """The text side of one engine request."""

    __slots__ = ("_detokenizer", "_is_stop_shown", "_matcher", "index", "num_tokens", "request")

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer) -> None:
        params = request.params
        self.request = request
        self.index = index
        self.num_tokens = 0
        self._is_stop_shown = params.include_stop_str_in_output
        self._detokenizer = IncrementalDetokenizer(tokenizer, request.prompt_token_ids, params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop, params.include_stop_str_in_output) if params.stop else None

    def advance(self, event: TokenEvent) -> Delta:
        """Turn an event (not an abort, not an error) into a delta.

        If the delta finishes and the event did not, a stop string was found: the caller aborts the engine's request.
        """
        ids = event.token_ids
        hides_last = event.stop_token_id is not None and not self._is_stop_shown
        visible = ids[:-1] if hides_last else ids
        if self._matcher is not None:
            return self._match(event, visible)
        self.num_tokens += len(ids)
        text = self._detokenizer.push(visible)
        if event.finish_reason is None:
            return Delta(self.index, text, ids, event.logprobs)
        return self._last(text + self._detokenizer.flush(), ids, event)

    def _match(self, event: TokenEvent, visible: tuple[int, ...]) -> Delta:
        """Push token by token, so that the answer ends with the token that completes a stop string."""
        assert self._matcher is not None
        text = ""
        for i, token_id in enumerate(visible):
            piece, matched = self._push(self._detokenizer.push((token_id,)), self.num_tokens + i + 1)
            text += piece
            if matched is not None:
                return self._stopped(text, event, i + 1, matched)
        self.num_tokens += len(event.token_ids)
        if event.finish_reason is None:
            return Delta(self.index, text, event.token_ids, event.logprobs)
        piece, matched = self._push(self._detokenizer.flush(), self.num_tokens)
        if matched is not None:
            self.num_tokens -= len(event.token_ids)
            return self._stopped(text + piece, event, len(event.token_ids), matched)
        return self._last(text + piece + self._matcher.flush(), event.token_ids, event)

    def _push(self, piece: str, num_tokens: int) -> tuple[str, str | None]:
        """Below min_tokens, text passes without being matched, as vLLM has it."""
        assert self._matcher is not None
        if num_tokens <= self.request.params.min_tokens:
            return piece, None
        result = self._matcher.push(piece)
        return result.text, result.matched

    def _stopped(self, text: str, event: TokenEvent, count: int, matched: str) -> Delta:
        assert event.usage is not None
        self.num_tokens += count
        usage = replace(event.usage, completion_tokens=self.num_tokens)
        return Delta(self.index, text, event.token_ids[:count], event.logprobs[:count], "stop", matched, usage)

    def _last(self, text: str, ids: tuple[int, ...], event: TokenEvent) -> Delta:
        assert event.usage is not None
        stop_id = event.stop_token_id
        reason = stop_id if stop_id is not None and stop_id not in self.request.end_token_ids else None
        finish = "length" if event.finish_reason is FinishReason.LENGTH else "stop"
        usage = replace(event.usage, completion_tokens=self.num_tokens)
        return Delta(self.index, text, ids, event.logprobs, finish, reason, usage)


def sum_usages(usages: list[Usage], sizes: list[int]) -> Usage:
    """Add up the choices' usages; `sizes` says how many choices each prompt has, in order.

    Times, tokens and preemptions add up over choices. A prompt counts once, and as cached counts what even
    its first choice found in the cache.
    """

    def total(name: str) -> int:
        return sum(getattr(usage, name) for usage in usages)

    prompt_tokens = cached_tokens = start = 0
    for size in sizes:
        group = usages[start : start + size]
        prompt_tokens += max((usage.prompt_tokens for usage in group), default=0)
        cached_tokens += min((usage.cached_tokens for usage in group), default=0)
        start += size
    names = ("completion_tokens", "recomputed_tokens", "queue_ns", "prefill_ns", "decode_ns", "preemptions")
    return Usage(prompt_tokens, cached_tokens, **{name: total(name) for name in names})
