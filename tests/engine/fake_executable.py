"""An executable without weights whose tokens depend on every KV slot that it reads.

Each slot holds a rolling hash of the tokens up to its position, made from the hash in the slot before, as found
through the block table: a wrong slot, position, block table, stale copy or wrongly shared block changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, Batch, StepOutput
from gristmill.core.clock import FakeClock
from gristmill.core.request import Request
from gristmill.core.sampling_params import SamplingParams

MODULUS = 2**61 - 1
MULTIPLIER = 1_000_003
VOCAB_SIZE = 97
END_TOKEN = 0
POISON_TOKEN = 96  # a context that has it gives NaN


@dataclass
class FakeExecutable:
    """Checks every batch against the contract, and computes deterministic tokens from its KV."""

    num_blocks: int
    max_step_tokens: int = 64
    max_num_seqs: int = 16
    committed: int | None = None  # None: as many as asked, at once
    commits_when_asked: bool = True
    clock: FakeClock | None = None
    step_ns: Callable[[Batch], int] = lambda batch: 1_000
    fails_after: int | None = None
    before_step: Callable[[Batch], None] = lambda batch: None
    asked: int = 0
    steps: list[list[int]] = field(default_factory=list)  # tokens per sequence, of each step
    num_copies: int = 0
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._hashes = [-1] * (self.num_blocks * BLOCK_SIZE_TOKENS)
        self._poisoned = [False] * (self.num_blocks * BLOCK_SIZE_TOKENS)
        self._committed = self.committed or 0

    def submit(self, batch: Batch) -> StepOutput:
        self.before_step(batch)
        if self.fails_after is not None and len(self.steps) >= self.fails_after:
            raise RuntimeError("the device is gone")
        self._check(batch)
        self._write(batch)
        device_ns = self.step_ns(batch)
        if self.clock is not None:
            self.clock.advance(device_ns)
        self.steps.append(np.diff(batch.query_start).tolist())
        return self._sample(batch, device_ns)

    def collect(self, ticket: StepOutput) -> StepOutput:
        return ticket

    def num_committed_blocks(self) -> int:
        return self._committed

    def request_blocks(self, count: int) -> None:
        assert count <= self.num_blocks
        self.asked = count
        if self.commits_when_asked and self.committed is None:
            self._committed = max(self._committed, count)

    def grow(self, count: int) -> None:
        """Commit more, as a background thread would."""
        self._committed = count

    def copy_blocks(self, source_ids: np.ndarray, target_ids: np.ndarray) -> None:
        for source, target in zip(source_ids.tolist(), target_ids.tolist(), strict=True):
            self.num_copies += 1
            for offset in range(BLOCK_SIZE_TOKENS):
                self._hashes[target * BLOCK_SIZE_TOKENS + offset] = self._hashes[source * BLOCK_SIZE_TOKENS + offset]
                self._poisoned[target * BLOCK_SIZE_TOKENS + offset] = self._poisoned[source * BLOCK_SIZE_TOKENS + offset]

    def fingerprint(self) -> str:
        return "fake"

    def close(self) -> None:
        self.is_closed = True

    def _check(self, batch: Batch) -> None:
        num_tokens, num_seqs = len(batch.token_ids), len(batch.context_len)
        assert 0 < num_tokens <= self.max_step_tokens
        assert num_seqs <= self.max_num_seqs
        assert batch.positions.shape == (1, num_tokens)
        assert batch.query_start.shape == (num_seqs + 1,)
        assert batch.query_start[0] == 0
        assert batch.query_start[-1] == num_tokens
        assert (np.diff(batch.query_start) > 0).all()
        (slots,), (tables,) = batch.slot_mapping, batch.block_tables
        assert slots.shape == (num_tokens,)
        assert len(set(slots.tolist())) == num_tokens, "two tokens write one slot"
        assert tables.shape[0] == num_seqs
        for array in (batch.token_ids, batch.positions, batch.query_start, batch.context_len, slots, tables, batch.logits_rows):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
        self._check_blocks(batch)
        self._check_sampling(batch)

    def _check_blocks(self, batch: Batch) -> None:
        (slots,), (tables,) = batch.slot_mapping, batch.block_tables
        readers: dict[int, int] = {}
        used = [
            set(table[: -(-length // BLOCK_SIZE_TOKENS)].tolist())
            for table, length in zip(tables, batch.context_len, strict=True)
        ]
        for table, blocks, length in zip(tables, used, batch.context_len, strict=True):
            assert len(blocks) == -(-length // BLOCK_SIZE_TOKENS), "a block is twice in a table"
            assert max(blocks) < self._committed, "a block has no memory behind it"
            assert len(set(table[table > 0].tolist())) == (table > 0).sum()
            for block in blocks:
                readers[block] = readers.get(block, 0) + 1
        for slot in slots.tolist():
            assert readers[slot // BLOCK_SIZE_TOKENS] == 1, "a shared block is written"

    def _check_sampling(self, batch: Batch) -> None:
        columns, count = batch.sampling, len(batch.logits_rows)
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "choice",
            "position",
            "num_logprobs",
            "history_prompt_len",
        ):
            assert getattr(columns, name).shape == (count,), name
        for start, values in (
            (columns.bias_start, columns.bias_ids),
            (columns.bias_start, columns.bias_values),
            (columns.banned_start, columns.banned_ids),
            (columns.history_start, columns.history_ids),
        ):
            assert start.shape == (count + 1,)
            assert start[-1] == len(values)

    def _write(self, batch: Batch) -> None:
        for sequence, length in enumerate(batch.context_len.tolist()):
            begin, end = batch.query_start[sequence : sequence + 2].tolist()
            for token in range(begin, end):
                position = int(batch.positions[0, token])
                assert position == length - (end - token), "a position is wrong"
                slot = self._slot(batch, sequence, position)
                assert slot == batch.slot_mapping[0][token], "a slot is not where the block table says"
                before = self._slot(batch, sequence, position - 1) if position else None
                past = self._hashes[before] if before is not None else 1
                assert past >= 0, "a slot is read that was never written"
                self._hashes[slot] = extend_hash(past, int(batch.token_ids[token]))
                poisoned = self._poisoned[before] if before is not None else False
                self._poisoned[slot] = poisoned or int(batch.token_ids[token]) == POISON_TOKEN

    def _slot(self, batch: Batch, sequence: int, position: int) -> int:
        block = int(batch.block_tables[0][sequence, position // BLOCK_SIZE_TOKENS])
        return block * BLOCK_SIZE_TOKENS + position % BLOCK_SIZE_TOKENS

    def _sample(self, batch: Batch, device_ns: int) -> StepOutput:
        count, columns = len(batch.logits_rows), batch.sampling
        slots = [int(batch.slot_mapping[0][row]) for row in batch.logits_rows]
        tokens = []
        for row, slot in enumerate(slots):
            banned = columns.banned_ids[columns.banned_start[row] : columns.banned_start[row + 1]].tolist()
            bias = columns.bias_ids[columns.bias_start[row] : columns.bias_start[row + 1]].tolist()
            history = columns.history_ids[columns.history_start[row] : columns.history_start[row + 1]].tolist()
            draw = (int(columns.seed[row]), int(columns.choice[row]), int(columns.position[row]))
            tokens.append(choose_token(self._hashes[slot], float(columns.temperature[row]), draw, banned, bias, history))
        num_top = max(0, int(columns.num_logprobs.max(initial=-1)))
        return StepOutput(
            np.array(tokens, np.int32),
            np.array([not self._poisoned[slot] for slot in slots], np.bool_),
            np.array([-(self._hashes[slot] % 1000) / 8 for slot in slots], np.float32),
            np.tile(np.arange(num_top, dtype=np.int32), (count, 1)),
            np.zeros((count, num_top), np.float32),
            device_ns,
        )


def extend_hash(past: int, token: int) -> int:
    return (past * MULTIPLIER + token + 1) % MODULUS


def choose_token(
    context: int, temperature: float, draw: tuple[int, int, int], banned: list[int], bias: list[int], history: list[int]
) -> int:
    """A biased id if there is one; else a token from the context, the history, and the draw if not greedy."""
    if bias:
        return bias[0]
    mixed = hash((context, draw if temperature > 0 else (), tuple(history)))
    token = mixed % (VOCAB_SIZE - 1)
    while token in banned:
        token = (token + 1) % (VOCAB_SIZE - 1)
    return token


def alone(request: Request, max_len: int) -> list[int]:
    """The tokens that a request must get, computed with no engine at all."""
    params: SamplingParams = request.params
    tokens, context = list(request.prompt_token_ids), 1
    for token in tokens:
        context = extend_hash(context, token)
    output: list[int] = []
    stop = request.end_token_ids | set(params.stop_token_ids)
    has_penalties = params.repetition_penalty != 1.0 or params.presence_penalty != 0.0
    for position in range(min(params.max_tokens, max_len - len(tokens))):
        banned = sorted(stop) if position < params.min_tokens else []
        history = tokens + output if has_penalties else []
        draw = ((params.seed or 0) % 2**64, request.choice, position)
        token = choose_token(context, params.temperature, draw, banned, list(params.logit_bias), history)
        output.append(token)
        context = extend_hash(context, token)
        if token in stop:
            break
    return output
