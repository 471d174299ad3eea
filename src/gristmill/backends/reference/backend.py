"""The reference backend: a numpy interpreter of graphs, slow, and the definition of what every other one computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gristmill.backends.base import BLOCK_SIZE_TOKENS, I32, Batch, Limits, SamplingColumns, StepOutput, Ticket
from gristmill.backends.reference.eager import EagerStep
from gristmill.backends.reference.pages import KvType, Pages
from gristmill.core.clock import Clock, MonotonicClock
from gristmill.graph.ir import Graph
from gristmill.graph.liveness import last_readers, peak_bytes
from gristmill.graph.replay import replay_node
from gristmill.quant.formats import PackedTensor
from gristmill.quant.pack import unpack
from gristmill.sampling.sampler import RowSampling, SampledRow, sample

F32 = NDArray[np.float32]


class ReferenceBackend:
    """Compiles graphs for numpy. `kv_dtype` "f32" keeps the KV unrounded, for comparisons with float models."""

    def __init__(self, kv_dtype: KvType = "bf16", clock: Clock | None = None) -> None:
        self._kv_dtype = kv_dtype
        self._clock = clock or MonotonicClock()

    def compile(self, graph: Graph, weights: Mapping[str, PackedTensor], limits: Limits) -> ReferenceExecutable:
        """Dequantize every weight once and make the pages."""
        arrays = {name: unpack(weights[name]) for name in graph.weights}
        for name, weight in graph.weights.items():
            assert arrays[name].shape == weight.shape, f"{name} has shape {arrays[name].shape}, not {weight.shape}"
        return ReferenceExecutable(graph, arrays, limits, self._kv_dtype, self._clock)

    def kv_block_bytes(self, graph: Graph) -> int:
        """Bytes of one KV block over all layers: keys and values, held in f32 whatever the KV type."""
        return sum(2 * 4 * BLOCK_SIZE_TOKENS * g.num_layers * g.num_kv_heads * g.head_dim for g in graph.kv_groups)

    def activation_bytes(self, graph: Graph, limits: Limits) -> int:
        """Bytes of the values that are alive at once, at most."""
        return peak_bytes(graph, limits.max_step_tokens, limits.max_num_seqs)


@dataclass(frozen=True, slots=True)
class ReferenceTicket:
    """A step that has run, and what it made."""

    output: StepOutput


class ReferenceExecutable:
    """A model that runs in numpy: `submit` runs the step, `collect` returns it."""

    def __init__(self, graph: Graph, weights: Mapping[str, F32], limits: Limits, kv_dtype: KvType, clock: Clock) -> None:
        self._graph = graph
        self._weights = weights
        self._limits = limits
        self._kv_dtype = kv_dtype
        self._clock = clock
        self._last_readers = last_readers(graph)
        self._pages = Pages(graph.kv_groups[0], limits.num_blocks, limits.block_size_tokens, kv_dtype)

    def submit(self, batch: Batch) -> ReferenceTicket:
        """Run a step."""
        started_ns = self._clock.now_ns()
        logits = self.logits(batch)
        rows = [sample(logits[row], row_sampling(batch.sampling, row)) for row in range(logits.shape[0])]
        return ReferenceTicket(_step_output(rows, batch.sampling, self._clock.now_ns() - started_ns))

    def collect(self, ticket: Ticket) -> StepOutput:
        """Return what the step made."""
        assert isinstance(ticket, ReferenceTicket)
        return ticket.output

    def logits(self, batch: Batch) -> F32:
        """Run the graph, which stores the step's KV, and return raw logits [R, vocabulary]."""
        assert batch.token_ids.size <= self._limits.max_step_tokens
        assert batch.context_len.size <= self._limits.max_num_seqs
        step = EagerStep(batch, self._weights, self._pages)
        values: dict[int, F32] = {}
        for index, node in enumerate(self._graph.nodes):
            values[node.output.id] = replay_node(step, node, [values[value.id] for value in node.inputs])
            for value in node.inputs:
                if self._last_readers[value.id] == index:
                    values.pop(value.id, None)
        return values[self._graph.nodes[-1].output.id]

    def num_committed_blocks(self) -> int:
        """Return all of them: numpy's zeros are committed by the operating system as they are touched."""
        return self._limits.num_blocks

    def request_blocks(self, count: int) -> None:
        """Do nothing; all blocks may be used."""

    def copy_blocks(self, source_ids: I32, target_ids: I32) -> None:
        """Copy whole KV blocks."""
        self._pages.copy(source_ids, target_ids)

    def fingerprint(self) -> str:
        """Name this backend and its KV type."""
        return f"reference-{self._kv_dtype}"

    def close(self) -> None:
        """Free the weights and the pages."""
        self._weights = {}
        self._pages = Pages(self._graph.kv_groups[0], 0, self._limits.block_size_tokens, self._kv_dtype)


def row_sampling(columns: SamplingColumns, row: int) -> RowSampling:
    """Return one row of the batch's sampling columns."""

    def part(start: I32) -> slice:
        return slice(int(start[row]), int(start[row + 1]))

    return RowSampling(
        temperature=float(columns.temperature[row]),
        top_k=int(columns.top_k[row]),
        top_p=float(columns.top_p[row]),
        min_p=float(columns.min_p[row]),
        repetition_penalty=float(columns.repetition_penalty[row]),
        presence_penalty=float(columns.presence_penalty[row]),
        frequency_penalty=float(columns.frequency_penalty[row]),
        seed=int(columns.seed[row]),
        choice=int(columns.choice[row]),
        position=int(columns.position[row]),
        bias_ids=columns.bias_ids[part(columns.bias_start)],
        bias_values=columns.bias_values[part(columns.bias_start)],
        banned_ids=columns.banned_ids[part(columns.banned_start)],
        history_ids=columns.history_ids[part(columns.history_start)],
        history_prompt_len=int(columns.history_prompt_len[row]),
        num_logprobs=int(columns.num_logprobs[row]),
    )


def _step_output(rows: list[SampledRow], columns: SamplingColumns, device_ns: int) -> StepOutput:
    num_top = max(0, int(columns.num_logprobs.max(initial=-1)))
    top_ids = np.full((len(rows), num_top), -1, np.int32)
    top_logprobs = np.zeros((len(rows), num_top), np.float32)
    for index, row in enumerate(rows):
        top_ids[index, : row.top_ids.size] = row.top_ids
        top_logprobs[index, : row.top_ids.size] = row.top_logprobs
    return StepOutput(
        np.array([row.token_id for row in rows], np.int32),
        np.array([row.is_finite for row in rows], np.bool_),
        np.array([row.logprob for row in rows], np.float32),
        top_ids,
        top_logprobs,
        device_ns,
    )
