"""Builds the arrays of a step from the schedule and the persistent rows."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, F32, I32, Batch, SamplingColumns
from gristmill.engine.rows import Rows
from gristmill.engine.schedule import Schedule
from gristmill.engine.sequence import Sequence

NO_IDS: I32 = np.zeros(0, np.int32)
NO_VALUES: F32 = np.zeros(0, np.float32)


class BatchBuilder:
    """Two ways to the same arrays: views of the rows where every running sequence decodes, else a gather.

    A batch is valid until the next one is built.
    """

    def __init__(self, rows: Rows, max_num_seqs: int) -> None:
        self._rows = rows
        self._numbers: I32 = np.arange(max_num_seqs + 1, dtype=np.int32)
        self._no_lists: I32 = np.zeros(max_num_seqs + 1, np.int32)
        self._context_len: I32 = np.zeros(max_num_seqs, np.int32)
        self._slots: I32 = np.zeros(max_num_seqs, np.int32)
        self._dense: Batch | None = None  # of the last dense step; its arrays are views and stay true

    def build(self, schedule: Schedule) -> Batch:
        """Return the batch of `schedule`; its sequences are the decodes, then the chunks."""
        if schedule.is_dense:
            return self._build_dense(len(schedule.decodes))
        return self._build_gathered(schedule)

    def _build_dense(self, count: int) -> Batch:
        rows = self._rows
        computed = rows.num_computed[:count]
        np.add(computed, 1, out=self._context_len[:count])
        blocks = rows.block_tables[self._numbers[:count], computed // BLOCK_SIZE_TOKENS]
        np.add(blocks * BLOCK_SIZE_TOKENS, computed % BLOCK_SIZE_TOKENS, out=self._slots[:count])
        if self._dense is None or len(self._dense.context_len) != count:
            self._dense = self._dense_views(count)
        if rows.num_with_lists == 0:
            return self._dense
        return replace(self._dense, sampling=_with_lists(self._dense.sampling, rows.sequences))

    def _dense_views(self, count: int) -> Batch:
        rows = self._rows
        return Batch(
            token_ids=rows.last_token[:count],
            positions=rows.num_computed[:count].reshape(1, count),
            query_start=self._numbers[: count + 1],
            context_len=self._context_len[:count],
            slot_mapping=(self._slots[:count],),
            block_tables=(rows.block_tables[:count],),
            logits_rows=self._numbers[:count],
            sampling=self._columns(slice(0, count), count),
        )

    def _build_gathered(self, schedule: Schedule) -> Batch:
        rows = self._rows
        index, counts = _rows_and_counts(schedule)
        query_start = np.zeros(len(index) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        started = rows.num_computed[index]
        num_tokens = int(query_start[-1])
        positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(started - query_start[:-1], counts)
        blocks = rows.block_tables[np.repeat(index, counts), positions // BLOCK_SIZE_TOKENS]
        context_len = started + counts
        width = -(-int(context_len.max()) // BLOCK_SIZE_TOKENS)
        ends = np.array([True] * len(schedule.decodes) + [chunk.is_last for chunk in schedule.chunks])
        sampled = index[ends]
        sampling = self._columns(sampled, len(sampled))
        if rows.num_with_lists > 0:
            sampling = _with_lists(sampling, schedule.sampled())
        return Batch(
            token_ids=self._token_ids(schedule, index, query_start),
            positions=positions.reshape(1, num_tokens),
            query_start=query_start,
            context_len=context_len,
            slot_mapping=(blocks * BLOCK_SIZE_TOKENS + positions % BLOCK_SIZE_TOKENS,),
            block_tables=(rows.block_tables[index, :width],),
            logits_rows=query_start[1:][ends] - 1,
            sampling=sampling,
        )

    def _token_ids(self, schedule: Schedule, index: I32, query_start: I32) -> I32:
        token_ids = np.empty(int(query_start[-1]), np.int32)
        num_decodes = len(schedule.decodes)
        token_ids[:num_decodes] = self._rows.last_token[index[:num_decodes]]
        for chunk, end in zip(schedule.chunks, query_start[num_decodes + 1 :].tolist(), strict=True):
            first = chunk.sequence.num_computed
            token_ids[end - chunk.num_tokens : end] = chunk.sequence.tokens[first : first + chunk.num_tokens]
        return token_ids

    def _columns(self, index: I32 | slice, count: int) -> SamplingColumns:
        """Take the sampling columns of some rows; a slice gives views."""
        rows, none = self._rows, self._no_lists[: count + 1]
        return SamplingColumns(
            temperature=rows.temperature[index],
            top_k=rows.top_k[index],
            top_p=rows.top_p[index],
            min_p=rows.min_p[index],
            repetition_penalty=rows.repetition_penalty[index],
            presence_penalty=rows.presence_penalty[index],
            frequency_penalty=rows.frequency_penalty[index],
            seed=rows.seed[index],
            choice=rows.choice[index],
            position=rows.position[index],
            bias_start=none,
            bias_ids=NO_IDS,
            bias_values=NO_VALUES,
            banned_start=none,
            banned_ids=NO_IDS,
            history_start=none,
            history_prompt_len=none[:count],
            history_ids=NO_IDS,
            num_logprobs=rows.num_logprobs[index],
        )


def _rows_and_counts(schedule: Schedule) -> tuple[I32, I32]:
    decodes = [sequence.row for sequence in schedule.decodes]
    index = np.array(decodes + [chunk.sequence.row for chunk in schedule.chunks], np.int32)
    counts = np.array([1] * len(decodes) + [chunk.num_tokens for chunk in schedule.chunks], np.int32)
    return index, counts


def _with_lists(columns: SamplingColumns, sequences: List[Sequence]) -> SamplingColumns:
    """Add biases, banned ids and histories, which only some requests have."""
    banned = [s.banned_ids if s.num_output < s.request.params.min_tokens else NO_IDS for s in sequences]
    histories = [s.tokens[: s.num_tokens] if s.has_penalties else NO_IDS for s in sequences]
    prompt_lens = [s.prompt_len if s.has_penalties else 0 for s in sequences]
    return replace(
        columns,
        bias_start=_starts([s.bias_ids for s in sequences]),
        bias_ids=np.concatenate([NO_IDS, *(s.bias_ids for s in sequences)]),
        bias_values=np.concatenate([NO_VALUES, *(s.bias_values for s in sequences)]),
        banned_start=_starts(banned),
        banned_ids=np.concatenate([NO_IDS, *banned]),
        history_start=_starts(histories),
        history_prompt_len=np.array(prompt_lens, np.int32),
        history_ids=np.concatenate([NO_IDS, *histories]),
    )


def _starts(parts: List[I32]) -> I32:
    return np.cumsum([0, *(part.size for part in parts)], dtype=np.int32)
