"""The contract between the engine and whatever runs a model.

The engine builds a `Batch` of flat arrays, calls `submit`, then `collect`; nothing else crosses. On a CPU
`submit` runs the step and `collect` returns it; a GPU may overlap the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gristmill.graph.ir import Graph
from gristmill.quant.formats import PackedTensor

BLOCK_SIZE_TOKENS = 32

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """One entry for each of the R rows that need a token; CSR pairs hold lists (`x_start` is [R + 1]).

    Neutral values mean "off": temperature 0 = greedy, top_k 0, top_p 1, min_p 0, penalties 1 / 0 / 0.
    """

    temperature: F32  # [R]
    top_k: I32  # [R]
    top_p: F32  # [R]
    min_p: F32  # [R]
    repetition_penalty: F32  # [R]
    presence_penalty: F32  # [R]
    frequency_penalty: F32  # [R]
    seed: NDArray[np.uint64]  # [R] Philox key
    choice: NDArray[np.uint32]  # [R] counter word 0
    position: NDArray[np.uint32]  # [R] counter word 1: index of the token that is sampled
    bias_start: I32  # [R + 1]
    bias_ids: I32
    bias_values: F32
    banned_start: I32  # [R + 1] ids that may not be sampled (min_tokens)
    banned_ids: I32
    history_start: I32  # [R + 1] tokens so far, prompt first; empty for rows without penalties
    history_prompt_len: I32  # [R] how many of them are prompt
    history_ids: I32
    num_logprobs: I32  # [R] -1 = none, k = the chosen token and the k most likely


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. Sequence s owns tokens query_start[s] .. query_start[s + 1]."""

    token_ids: I32  # [T]
    positions: I32  # [P, T]; P = 1 for text
    query_start: I32  # [S + 1]
    context_len: I32  # [S] KV length after this step
    slot_mapping: tuple[I32, ...]  # per KV group: [T] block * BLOCK_SIZE_TOKENS + offset
    block_tables: tuple[I32, ...]  # per KV group: [S, B], row-major, unused entries 0
    logits_rows: I32  # [R] indices into T, ascending
    sampling: SamplingColumns


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step made; row r belongs to batch.logits_rows[r]."""

    token_ids: I32  # [R]
    is_finite: NDArray[np.bool_]  # [R] False: the row's logits had NaN or Inf, its token is meaningless
    logprobs: F32  # [R] of the chosen token, raw logits; 0 where not asked
    top_ids: I32  # [R, K] most likely first, ties to the lower id; K = max(num_logprobs), entries past a row's k: -1
    top_logprobs: F32  # [R, K]
    device_ns: int  # time inside the native call


@dataclass(frozen=True, slots=True)
class Limits:
    """What an executable is compiled for."""

    max_step_tokens: int  # T
    max_num_seqs: int  # S
    max_model_len: int
    num_blocks: int  # KV blocks of the address space, per group
    num_threads: int
    block_size_tokens: int = BLOCK_SIZE_TOKENS


# What `submit` returns and `collect` takes; only the executable that made it looks inside.
Ticket: TypeAlias = Any


class Executable(Protocol):
    """A model that is ready to run on a device."""

    def submit(self, batch: Batch) -> Ticket:
        """Start a step. The arrays must stay unchanged until `collect`."""
        ...

    def collect(self, ticket: Ticket) -> StepOutput:
        """Wait for the step and return what it made."""
        ...

    def num_committed_blocks(self) -> int:
        """How many KV blocks (ids 0 .. n-1) may be used now; grows, never shrinks. Any thread may ask."""
        ...

    def request_blocks(self, count: int) -> None:
        """Ask that `count` blocks in all be committed ahead of need, in the background. Never blocks."""
        ...

    def copy_blocks(self, source_ids: I32, target_ids: I32) -> None:
        """Copy whole KV blocks (copy-on-write), before the next step."""
        ...

    def fingerprint(self) -> str:
        """Kernel tier and KV type, e.g. `cpu-avx512-bf16`; part of `system_fingerprint`."""
        ...

    def close(self) -> None:
        """Free everything; idempotent."""
        ...


class Backend(Protocol):
    """Compiles graphs for one kind of device."""

    def compile(self, graph: Graph, weights: Mapping[str, PackedTensor], limits: Limits) -> Executable:
        """Make `graph` ready to run. Raises: NotEnoughMemory, UnsupportedHardware."""
        ...

    def kv_block_bytes(self, graph: Graph) -> int:
        """Bytes of one KV block over all layers."""
        ...

    def activation_bytes(self, graph: Graph, limits: Limits) -> int:
        """Bytes of the activations and logits that a step needs at most."""
        ...
