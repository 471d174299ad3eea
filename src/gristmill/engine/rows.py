"""The running sequences, and the arrays that a batch is made of, kept from step to step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gristmill.backends.base import I32
from gristmill.engine.schedule import Schedule
from gristmill.engine.sequence import Sequence

U64_MASK = 2**64 - 1


class Rows:
    """One row per running sequence, always dense: rows 0 .. len(sequences) - 1.

    The arrays are written when a sequence starts, gets a block, or moves on by a token; never rebuilt.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int) -> None:
        self.sequences: list[Sequence] = []
        self.num_with_lists = 0  # sequences whose sampling has lists
        self.block_tables: I32 = np.zeros((max_num_seqs, max_blocks), np.int32)
        self.last_token: I32 = np.zeros(max_num_seqs, np.int32)
        self.num_computed: I32 = np.zeros(max_num_seqs, np.int32)
        self.temperature = np.zeros(max_num_seqs, np.float32)
        self.top_k: I32 = np.zeros(max_num_seqs, np.int32)
        self.top_p = np.zeros(max_num_seqs, np.float32)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.repetition_penalty = np.zeros(max_num_seqs, np.float32)
        self.presence_penalty = np.zeros(max_num_seqs, np.float32)
        self.frequency_penalty = np.zeros(max_num_seqs, np.float32)
        self.seed: NDArray[np.uint64] = np.zeros(max_num_seqs, np.uint64)
        self.choice: NDArray[np.uint32] = np.zeros(max_num_seqs, np.uint32)
        self.position: NDArray[np.uint32] = np.zeros(max_num_seqs, np.uint32)  # index of the output token that comes next
        self.num_logprobs: I32 = np.zeros(max_num_seqs, np.int32)

    def add(self, sequence: Sequence) -> None:
        """Give a sequence the next row, with its blocks and where it stands."""
        row = sequence.row = len(self.sequences)
        self.sequences.append(sequence)
        self.num_with_lists += sequence.needs_lists
        self.block_tables[row, : len(sequence.blocks)] = sequence.blocks
        self.last_token[row] = sequence.tokens[sequence.num_tokens - 1]
        self.num_computed[row] = sequence.num_computed
        self.position[row] = sequence.num_output
        self._write_sampling(row, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence's row away; the last row moves into its place."""
        row, last = sequence.row, self.sequences.pop()
        end = last.row
        if last is not sequence:
            self.sequences[row] = last
            self._move(end, row, max(len(last.blocks), len(sequence.blocks)))
            last.row = row
        self.block_tables[end, : len(last.blocks)] = 0
        self.num_with_lists -= sequence.needs_lists
        sequence.row = -1

    def add_block(self, sequence: Sequence, block: int) -> None:
        """Append a block to a running sequence."""
        self.block_tables[sequence.row, len(sequence.blocks)] = block
        sequence.blocks.append(block)

    def advance(self, schedule: Schedule, token_ids: I32) -> None:
        """Move on by a step that sampled token_ids[R]."""
        if schedule.is_dense:
            count = len(token_ids)
            self.num_computed[:count] += 1
            self.last_token[:count] = token_ids
            self.position[:count] += 1
            return
        index = [sequence.row for sequence in schedule.decodes]
        self.num_computed[index] += 1
        for chunk in schedule.chunks:
            self.num_computed[chunk.sequence.row] += chunk.num_tokens
        sampled = [sequence.row for sequence in schedule.sampled()]
        self.last_token[sampled] = token_ids
        self.position[sampled] += 1

    def _write_sampling(self, row: int, sequence: Sequence) -> None:
        params = sequence.request.params
        self.temperature[row] = params.temperature
        self.top_k[row] = params.top_k
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.repetition_penalty[row] = params.repetition_penalty
        self.presence_penalty[row] = params.presence_penalty
        self.frequency_penalty[row] = params.frequency_penalty
        self.seed[row] = (params.seed or 0) & U64_MASK
        self.choice[row] = sequence.request.choice
        self.num_logprobs[row] = -1 if params.logprobs is None else params.logprobs

    def _move(self, source: int, target: int, num_blocks: int) -> None:
        self.block_tables[target, :num_blocks] = self.block_tables[source, :num_blocks]
        for column in (
            self.last_token,
            self.num_computed,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.seed,
            self.choice,
            self.position,
            self.num_logprobs,
        ):
            column[target] = column[source]
