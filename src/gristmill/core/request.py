"""The plain data that crosses the engine's handle, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gristmill.core.errors import GristmillError
from gristmill.core.sampling_params import SamplingParams


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"  # an end token, a stop token id or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # the client left, or the server is stopping
    ERROR = "error"  # NaN or Inf logits; `TokenEvent.error` says what


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine is asked to run: plain data only, one per choice.

    A client's request with n = 4 becomes four of these that share `group_id`, differ in `choice` and share
    the blocks of their prompt. The service has resolved `params.seed` and `params.max_tokens`: if they are
    None all the same, the seed is 0 and the answer may fill the context.
    """

    id: str
    prompt_token_ids: Sequence[int]  # [prompt_len]; an empty one is refused
    params: SamplingParams
    end_token_ids: frozenset[int] = frozenset()  # empty under ignore_eos
    choice: int = 0
    group_id: str = ""
    tenant: str = ""
    cache_salt: str = ""
    priority: int = 0  # lower runs first
    arrival_ns: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities (natural) of one generated token, of the raw logits."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), most likely first, ties to the lower id


@dataclass(frozen=True, slots=True)
class Usage:
    """What one sequence has used so far. Token kinds are disjoint."""

    prompt_tokens: int = 0  # fresh + cached
    cached_tokens: int = 0
    completion_tokens: int = 0
    recomputed_tokens: int = 0  # after preemption: an overhead of ours, never charged
    queue_ns: int = 0  # arrival to first schedule
    prefill_ns: int = 0  # first schedule to first token
    decode_ns: int = 0  # first token to last token
    preemptions: int = 0


class TokenEvent(NamedTuple):
    """What one step produced for one sequence. A tuple, since there is one for every token."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # parallel to token_ids, if asked
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the end or stop token that ended it (it is the last of token_ids)
    usage: Usage | None = None  # at the end; with stop strings always, since the text may end at any token
    error: GristmillError | None = None
