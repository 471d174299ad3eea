"""How large the activation arena is, and where in it each buffer lies."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill import _native
from gristmill.backends.base import Limits
from gristmill.backends.cpu.lowering import Lowered
from gristmill.backends.cpu.plan_ops import Attend, Buffer
from gristmill.backends.cpu.schedule import Barriers, lifetimes, padded, place
from gristmill.graph.ir import Graph

LOGITS_TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class ActivationPlan:
    """Places of the buffers, and the rows of logits that are computed at once."""

    offsets: tuple[int, ...]
    private_strides: tuple[int, ...]  # 0 = one copy for all threads
    arena_bytes: int
    tile_rows: int


def plan_activations(lowered: Lowered, waits: Barriers, limits: Limits, tier: str) -> ActivationPlan:
    """Place every buffer for the largest step that `limits` allow."""
    tile_rows = min(LOGITS_TILE_ROWS, limits.max_step_tokens)
    strides = [padded(_bytes(buffer, 1, tier)) if buffer.is_private else 0 for buffer in lowered.buffers]
    sizes = []
    for buffer, stride in zip(lowered.buffers, strides, strict=True):
        rows = limits.max_step_tokens if buffer.rows == "T" else tile_rows
        sizes.append(padded(max(_bytes(buffer, rows, tier), stride * limits.num_threads)))
    offsets, total = place(sizes, lifetimes(lowered, waits))
    return ActivationPlan(tuple(offsets), tuple(strides), total, tile_rows)


def scratch_bytes(lowered: Lowered, graph: Graph, limits: Limits, tier: str) -> int:
    """Bytes beside the arena: sampling on every thread, and the pieces of attention that are cut in positions."""
    (group,) = graph.kv_groups
    partials = [
        _native.attention_partial_bytes(
            num_heads=op.num_heads,
            head_dim=group.head_dim,
            window=op.window,
            max_num_seqs=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            num_threads=limits.num_threads,
        )
        for op in lowered.ops
        if isinstance(op, Attend)
    ]
    return max(partials) + limits.num_threads * _native.sample_scratch_bytes(tier, graph.vocab_size)


def _bytes(buffer: Buffer, rows: int, tier: str) -> int:
    if not buffer.is_quantized:
        return rows * buffer.width * 4
    # The layout may depend on the row count, so the largest need not be that of the most rows.
    return max(_native.quantized_bytes(tier, count, buffer.width) for count in {1, rows})
