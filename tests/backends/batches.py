"""Builds batches by hand: chunks of sequences with the blocks they were given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, Batch, Executable, SamplingColumns
from gristmill.sampling.sampler import RowSampling


@dataclass(frozen=True)
class Chunk:
    """The part of a sequence that a step computes: its new tokens after `start` tokens that are in the cache."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    wants_rows: int = 1  # how many of the last tokens need logits
    sampling: RowSampling = field(default_factory=RowSampling)


def make_batch(*chunks: Chunk) -> Batch:
    positions = [np.arange(chunk.start, chunk.start + len(chunk.tokens), dtype=np.int32) for chunk in chunks]
    ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
    slots = [
        np.array(chunk.blocks, np.int32)[p // BLOCK_SIZE_TOKENS] * BLOCK_SIZE_TOKENS + p % BLOCK_SIZE_TOKENS
        for chunk, p in zip(chunks, positions, strict=True)
    ]
    tables = np.zeros((len(chunks), max(len(chunk.blocks) for chunk in chunks)), np.int32)
    for row, chunk in enumerate(chunks):
        tables[row, : len(chunk.blocks)] = chunk.blocks
    rows = [np.arange(end - chunk.wants_rows, end) for chunk, end in zip(chunks, ends, strict=True)]
    return Batch(
        token_ids=np.concatenate([np.array(chunk.tokens, np.int32) for chunk in chunks]),
        positions=np.concatenate(positions)[None],
        query_start=np.concatenate([[0], ends]).astype(np.int32),
        context_len=np.array([chunk.start + len(chunk.tokens) for chunk in chunks], np.int32),
        slot_mapping=(np.concatenate(slots).astype(np.int32),),
        block_tables=(tables,),
        logits_rows=np.concatenate(rows).astype(np.int32),
        sampling=columns([chunk.sampling for chunk in chunks for _ in range(chunk.wants_rows)]),
    )


def columns(rows: Sequence[RowSampling]) -> SamplingColumns:
    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], dtype)

    def flat(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([getattr(row, name) for row in rows]).astype(dtype)

    def starts(name: str) -> np.ndarray:
        return np.concatenate([[0], np.cumsum([getattr(row, name).size for row in rows])]).astype(np.int32)

    return SamplingColumns(
        temperature=column("temperature", np.float32),
        top_k=column("top_k", np.int32),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        repetition_penalty=column("repetition_penalty", np.float32),
        presence_penalty=column("presence_penalty", np.float32),
        frequency_penalty=column("frequency_penalty", np.float32),
        seed=column("seed", np.uint64),
        choice=column("choice", np.uint32),
        position=column("position", np.uint32),
        bias_start=starts("bias_ids"),
        bias_ids=flat("bias_ids", np.int32),
        bias_values=flat("bias_values", np.float32),
        banned_start=starts("banned_ids"),
        banned_ids=flat("banned_ids", np.int32),
        history_start=starts("history_ids"),
        history_prompt_len=column("history_prompt_len", np.int32),
        history_ids=flat("history_ids", np.int32),
        num_logprobs=column("num_logprobs", np.int32),
    )


def generate(executable: Executable, prompt: Sequence[int], count: int, blocks: Sequence[int], *, chunk: int = 512) -> list[int]:
    """Greedy tokens of one sequence that runs alone, its prompt in chunks."""
    for start in range(0, len(prompt), chunk):
        batch = make_batch(Chunk(prompt[start : start + chunk], start, blocks))
        output = executable.collect(executable.submit(batch))
    ids = [int(output.token_ids[0])]
    while len(ids) < count:
        batch = make_batch(Chunk(ids[-1:], len(prompt) + len(ids) - 1, blocks))
        ids.append(int(executable.collect(executable.submit(batch)).token_ids[0]))
    return ids
