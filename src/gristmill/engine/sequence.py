"""One sequence: what the engine runs. A request with n = 4 is four of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, F32, I32, StepOutput
from gristmill.core.request import FinishReason, Request, TokenLogprobs, Usage


class Status(Enum):
    """The four states; only the engine's thread changes them."""

    WAITING = "waiting"  # new, or preempted
    RUNNING = "running"  # holds a row and blocks
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class PrefixHashes:
    """What says with whom a sequence may share blocks."""

    root: bytes = b""
    hashes: list[bytes] | None = None  # the chain of the whole blocks known so far; None = shares with nobody
    group_key: bytes = b""  # equal for the choices of one prompt; empty = the only one


class Sequence:
    """Tokens known and computed, the blocks that hold the computed ones, and what its events need.

    Made on the thread that submits, then owned by the engine's thread.
    """

    __slots__ = (
        "arrival_ns",
        "banned_ids",
        "bias_ids",
        "bias_values",
        "blocks",
        "cached_tokens",
        "first_token_ns",
        "group_key",
        "has_penalties",
        "hashes",
        "last_token_ns",
        "max_tokens",
        "num_computed",
        "num_computed_before",
        "num_indexed",
        "num_tokens",
        "number",
        "order",
        "preemptions",
        "prompt_len",
        "recomputed_tokens",
        "request",
        "root",
        "row",
        "started_ns",
        "status",
        "stop_ids",
        "tokens",
    )

    def __init__(self, request: Request, prompt: I32, max_tokens: int, arrival_ns: int, prefix: PrefixHashes) -> None:
        self.request = request
        self.set_number(0)
        self.status = Status.WAITING
        self.row = -1
        self.tokens = prompt  # grown to its full capacity when it first runs
        self.prompt_len = self.num_tokens = len(prompt)
        self.max_tokens = max_tokens
        self.root = prefix.root
        self.hashes = prefix.hashes
        self.group_key = prefix.group_key
        self.blocks: list[int] = []
        self.num_computed = 0
        self.num_computed_before = 0  # before the last preemption
        self.num_indexed = 0  # blocks that are in the prefix index, or equal to one that is
        self.cached_tokens = self.recomputed_tokens = self.preemptions = 0
        self.arrival_ns = arrival_ns
        self.started_ns = self.first_token_ns = self.last_token_ns = 0
        self._set_sampling(request)

    def _set_sampling(self, request: Request) -> None:
        params = request.params
        self.stop_ids = request.end_token_ids.union(params.stop_token_ids)
        self.banned_ids: I32 = np.array(sorted(self.stop_ids) if params.min_tokens > 0 else [], np.int32)
        self.bias_ids: I32 = np.array(list(params.logit_bias.keys()), np.int32)
        self.bias_values: F32 = np.array(list(params.logit_bias.values()), np.float32)
        penalties = (params.repetition_penalty - 1.0, params.presence_penalty, params.frequency_penalty)
        self.has_penalties = any(penalty != 0.0 for penalty in penalties)

    def set_number(self, number: int) -> None:
        """Say how many were accepted before: who came first runs first, within a priority."""
        self.number = number
        self.order = (self.request.priority, number)  # lower runs first

    @property
    def needs_lists(self) -> bool:
        """Tell whether its row of a batch has lists: a bias, banned ids or a history."""
        return self.has_penalties or self.bias_ids.size > 0 or self.banned_ids.size > 0

    @property
    def num_output(self) -> int:
        """How many tokens were generated."""
        return self.num_tokens - self.prompt_len

    @property
    def num_needed_blocks(self) -> int:
        """How many blocks hold all known tokens."""
        return -(-self.num_tokens // BLOCK_SIZE_TOKENS)

    def sharable_hashes(self) -> list[bytes]:
        """Return the hashes of the blocks that it may adopt: never the last known token, whose logits are the answer."""
        return self.hashes[: (self.num_tokens - 1) // BLOCK_SIZE_TOKENS] if self.hashes is not None else []

    def make_room(self) -> None:
        """Give `tokens` its full capacity, once."""
        if len(self.tokens) < self.prompt_len + self.max_tokens:
            tokens = np.empty(self.prompt_len + self.max_tokens, np.int32)
            tokens[: self.num_tokens] = self.tokens[: self.num_tokens]
            self.tokens = tokens

    def append(self, token: int, now_ns: int) -> None:
        """Take a generated token."""
        self.tokens[self.num_tokens] = token
        self.num_tokens += 1
        self.last_token_ns = now_ns
        if self.first_token_ns == 0:
            self.first_token_ns = now_ns

    def finish_reason_after(self, token: int) -> FinishReason | None:
        """Say whether `token`, the last one appended, ends the sequence."""
        if token in self.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_tokens - self.prompt_len >= self.max_tokens else None

    def usage(self, now_ns: int) -> Usage:
        """Return what was used so far."""
        started_ns = self.started_ns or now_ns
        first_ns = self.first_token_ns or now_ns
        return Usage(
            self.prompt_len,
            self.cached_tokens,
            self.num_tokens - self.prompt_len,
            self.recomputed_tokens,
            started_ns - self.arrival_ns,
            first_ns - started_ns,
            self.last_token_ns - first_ns if self.first_token_ns else 0,
            self.preemptions,
        )


def logprobs_of(sequence: Sequence, output: StepOutput, row: int) -> tuple[TokenLogprobs, ...]:
    """Read the log probabilities of row `row`, of a request that asked for them."""
    count = sequence.request.params.logprobs
    top = zip(output.top_ids[row, :count].tolist(), output.top_logprobs[row, :count].tolist(), strict=True)
    return (TokenLogprobs(int(output.token_ids[row]), float(output.logprobs[row]), tuple(top)),)
