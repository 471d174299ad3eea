"""The CPU backend: graphs to native plans, on a thread pool of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gristmill import _native
from gristmill.backends.base import BLOCK_SIZE_TOKENS, Limits
from gristmill.backends.cpu.executable import CpuExecutable, load_plan
from gristmill.backends.cpu.lowering import lower
from gristmill.backends.cpu.memory import plan_activations, scratch_bytes
from gristmill.backends.cpu.schedule import barriers
from gristmill.core.errors import NotEnoughMemory, UnsupportedHardware
from gristmill.core.units import format_bytes
from gristmill.graph.ir import Graph
from gristmill.quant.formats import PackedTensor

KV_ELEMENT_BYTES = 2  # bf16
HEAD_DIM_MULTIPLE = 16
HEAD_DIM_MAX = 256
# The KV pool stops growing while the machine has less than this besides it.
RESERVE_BYTES = 256 << 20


class CpuBackend:
    """Compiles for this machine's CPU; everything compiled by one backend shares its threads.

    `isa` is the kernel tier: auto (the best that this CPU runs), portable, avx2 or avx512.
    Raises: UnsupportedHardware naming what the CPU lacks for a tier that was asked for.
    """

    def __init__(self, num_threads: int, isa: str = "auto") -> None:
        self.tier = choose_tier(isa)
        self._pool = _native.ThreadPool(num_threads)

    @property
    def num_threads(self) -> int:
        """How many threads a step runs on, the caller's among them."""
        return self._pool.size

    def compile(self, graph: Graph, weights: Mapping[str, PackedTensor], limits: Limits) -> CpuExecutable:
        """Make `graph` ready to run; the first KV blocks are committed.

        Weights that lie on 64-byte boundaries are read in place, others are copied.
        Raises: NotEnoughMemory if there is no memory for the first KV blocks.
        """
        assert limits.num_threads == self.num_threads, f"limits say {limits.num_threads} threads, the pool has {self.num_threads}"
        assert limits.block_size_tokens == BLOCK_SIZE_TOKENS
        check_shapes(graph, weights)
        kv = self._make_kv(graph, limits)
        lowered = lower(graph, {name: tensor.format for name, tensor in weights.items()})
        waits = barriers(lowered)
        activations = plan_activations(lowered, waits, limits, self.tier)
        plan = load_plan(graph, lowered, waits, activations, weights, limits, pool=self._pool, kv=kv, tier=self.tier)
        return CpuExecutable(plan, kv, self.tier)

    def kv_block_bytes(self, graph: Graph) -> int:
        """Bytes of one KV block over all layers: keys and values in bf16."""
        per_token = sum(2 * group.num_layers * group.num_kv_heads * group.head_dim for group in graph.kv_groups)
        return per_token * BLOCK_SIZE_TOKENS * KV_ELEMENT_BYTES

    def activation_bytes(self, graph: Graph, limits: Limits) -> int:
        """Bytes of activations, logits and scratch that a step needs at most, whatever the weights' formats."""
        lowered = lower(graph, None)
        limits = replace(limits, num_threads=self.num_threads)
        activations = plan_activations(lowered, barriers(lowered), limits, self.tier)
        return activations.arena_bytes + scratch_bytes(lowered, graph, limits, self.tier)

    def _make_kv(self, graph: Graph, limits: Limits) -> _native.KvArena:
        (group,) = graph.kv_groups
        kv = _native.KvArena(
            num_layers=group.num_layers,
            num_kv_heads=group.num_kv_heads,
            head_dim=group.head_dim,
            num_blocks=limits.num_blocks,
            reserve_bytes=RESERVE_BYTES,
        )
        if not kv.commit_now(1):
            need = kv.blocks_per_slab * self.kv_block_bytes(graph) + RESERVE_BYTES
            raise NotEnoughMemory(
                f"the first {kv.blocks_per_slab} KV blocks need {format_bytes(need)} of free memory; "
                f"{format_bytes(_native.available_memory_bytes())} are free.",
                "stop other programs, or choose a smaller model.",
            )
        return kv


def choose_tier(isa: str) -> str:
    """Name the kernel tier to use. Raises: UnsupportedHardware."""
    compiled = _native.compiled_tiers()
    usable = [tier for tier in compiled if not _native.missing_features(tier)]
    if isa == "auto":
        return usable[-1]
    if isa in usable:
        return isa
    mend = f"use --cpu-isa auto, or one of {', '.join(usable)}."
    if isa not in compiled:
        raise UnsupportedHardware(f"this build has no kernel tier {isa!r}; it has {', '.join(compiled)}.", mend)
    missing = ", ".join(_native.missing_features(isa))
    raise UnsupportedHardware(f"kernel tier {isa} needs {missing}, which this CPU ({_native.cpu_model()}) lacks.", mend)


def check_shapes(graph: Graph, weights: Mapping[str, PackedTensor]) -> None:
    """See that every weight is there in the shape that the graph reads, and that the kernels can run the shapes."""
    for name, weight in graph.weights.items():
        tensor = weights[name]
        assert tensor.shape == weight.shape, f"{name} has shape {tensor.shape}, the graph reads {weight.shape}"
    (group,) = graph.kv_groups
    head_dim = group.head_dim
    fits = head_dim % HEAD_DIM_MULTIPLE == 0 and head_dim <= HEAD_DIM_MAX
    assert fits, f"no attention kernel for head width {head_dim}"
