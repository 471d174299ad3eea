"""A compiled model on the CPU: the native plan with its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gristmill import _native
from gristmill.backends.base import I32, Batch, Limits, StepOutput
from gristmill.backends.cpu import plan_ops
from gristmill.backends.cpu.lowering import Lowered
from gristmill.backends.cpu.memory import ActivationPlan
from gristmill.backends.cpu.plan_ops import PlanOp, View
from gristmill.backends.cpu.schedule import Barriers
from gristmill.graph.ir import Graph
from gristmill.quant.formats import PackedTensor

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
Place = tuple[int, int]


class CpuExecutable:
    """An `Executable`: `submit` runs the step in one native call, `collect` returns its output."""

    def __init__(self, plan: _native.Plan, kv: _native.KvArena, tier: str) -> None:
        self._plan = plan
        self._kv = kv
        self._tier = tier

    def submit(self, batch: Batch) -> StepOutput:
        """Run a step. Raises: ValueError for a batch that does not fit the plan."""
        num_rows = len(batch.logits_rows)
        num_top = max([0, *batch.sampling.num_logprobs.tolist()])  # faster than numpy for a few rows
        token_ids = np.empty(num_rows, np.int32)
        is_finite = np.empty(num_rows, np.bool_)
        logprobs = np.empty(num_rows, np.float32)
        top_ids = np.empty((num_rows, num_top), np.int32)
        top_logprobs = np.empty((num_rows, num_top), np.float32)
        device_ns = self._plan.step(
            batch, token_ids=token_ids, is_finite=is_finite, logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs
        )
        return StepOutput(token_ids, is_finite, logprobs, top_ids, top_logprobs, device_ns)

    def collect(self, ticket: StepOutput) -> StepOutput:
        """Return what `submit` made."""
        return ticket

    def num_committed_blocks(self) -> int:
        """How many KV blocks may be used now."""
        return self._kv.num_committed_blocks

    def is_short_of_memory(self) -> bool:
        """True while the machine had no memory for the KV blocks that were asked for."""
        return self._kv.is_short_of_memory

    def request_blocks(self, count: int) -> None:
        """Ask for `count` KV blocks in all, in the background."""
        self._kv.request_blocks(count)

    def copy_blocks(self, source_ids: I32, target_ids: I32) -> None:
        """Copy whole KV blocks over all layers."""
        self._kv.copy_blocks(source_ids, target_ids)

    def fingerprint(self) -> str:
        """Kernel tier and KV type."""
        return f"cpu-{self._tier}-bf16"

    def close(self) -> None:
        """Free the plan's memory, the KV blocks and the hold on the weights; idempotent."""
        self._plan.release()
        self._kv.release()


def load_plan(
    graph: Graph,
    lowered: Lowered,
    waits: Barriers,
    activations: ActivationPlan,
    weights: Mapping[str, PackedTensor],
    limits: Limits,
    *,
    pool: _native.ThreadPool,
    kv: _native.KvArena,
    tier: str,
) -> _native.Plan:
    """Make the native plan from the list of ops."""
    plan = _native.Plan(
        pool=pool,
        kv=kv,
        tier=tier,
        max_step_tokens=limits.max_step_tokens,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        vocab_size=graph.vocab_size,
        tile_rows=activations.tile_rows,
        arena_bytes=activations.arena_bytes,
    )
    for buffer, offset, stride in zip(lowered.buffers, activations.offsets, activations.private_strides, strict=True):
        plan.add_buffer(offset=offset, width=buffer.width, private_stride=stride)
    loader = _Loader(plan, weights)
    for op, many, single in zip(lowered.ops, waits.many, waits.single, strict=True):
        loader.add(op, (many, single))
    return plan


class _Loader:
    """Hands each op to the native plan."""

    def __init__(self, plan: _native.Plan, weights: Mapping[str, PackedTensor]) -> None:
        self._plan = plan
        self._weights = weights
        self._aligned: dict[str, PackedTensor] = {}
        self._adders: dict[type, Callable[..., None]] = {
            plan_ops.Embed: self._embed,
            plan_ops.Norm: self._norm,
            plan_ops.Quantize: self._quantize,
            plan_ops.ActMul: self._act_mul,
            plan_ops.Linear: self._linear,
            plan_ops.RopeTable: self._rope_table,
            plan_ops.RopeStore: self._rope_store,
            plan_ops.Attend: self._attend,
            plan_ops.Add: self._add,
            plan_ops.Softcap: self._softcap,
            plan_ops.Gather: self._gather,
            plan_ops.Sample: self._sample,
        }

    def add(self, op: PlanOp, waits: tuple[bool, bool]) -> None:
        """Append one op."""
        self._adders[type(op)](op, waits)

    def _weight(self, name: str) -> PackedTensor:
        """The weight, copied to aligned huge-page memory unless it lies well already."""
        if name not in self._aligned:
            tensor = self._weights[name]
            if tensor.data.ctypes.data % 64:
                data = _native.aligned_empty(tensor.data.nbytes)
                np.copyto(data, tensor.data)
                tensor = PackedTensor(tensor.format, tensor.shape, data)
            self._aligned[name] = tensor
        return self._aligned[name]

    def _embed(self, op: plan_ops.Embed, waits: tuple[bool, bool]) -> None:
        tensor = self._weight(op.weight)
        vocab, width = tensor.shape
        self._plan.embed(
            waits, format=tensor.format, weight=tensor.data, vocab=vocab, width=width, scale=op.scale, out=_place(op.out)
        )

    def _norm(self, op: plan_ops.Norm, waits: tuple[bool, bool]) -> None:
        self._plan.norm(
            waits,
            x=_place(op.x),
            weight=self._weight(op.weight).data,
            eps=op.eps,
            width=op.x.width,
            head_dim=op.head_dim,
            out=_place_or_none(op.out),
            quantized=_number(op.quantized),
        )

    def _quantize(self, op: plan_ops.Quantize, waits: tuple[bool, bool]) -> None:
        self._plan.quantize(waits, x=_place(op.x), width=op.x.width, quantized=op.quantized)

    def _act_mul(self, op: plan_ops.ActMul, waits: tuple[bool, bool]) -> None:
        self._plan.act_mul(
            waits,
            gate=_place(op.gate),
            up=_place(op.up),
            width=op.gate.width,
            kind=ACTIVATIONS[op.kind],
            out=_place_or_none(op.out),
            quantized=_number(op.quantized),
        )

    def _linear(self, op: plan_ops.Linear, waits: tuple[bool, bool]) -> None:
        segments = []
        for segment in op.segments:
            tensor = self._weight(segment.weight)
            bias = None if segment.bias is None else self._weight(segment.bias).data
            segments.append((int(tensor.format), tensor.data, bias, segment.y.width, _place(segment.y)))
        x, quantized = _place_or_none(op.x), _number(op.quantized)
        self._plan.linear(waits, x=x, quantized=quantized, k=op.k, accumulate=op.accumulate, segments=segments)

    def _rope_table(self, op: plan_ops.RopeTable, waits: tuple[bool, bool]) -> None:
        cos, sin = _place(op.cos), _place(op.sin)
        self._plan.rope_table(waits, inv_freq=list(op.inv_freq), attention_factor=op.attention_factor, cos=cos, sin=sin)

    def _rope_store(self, op: plan_ops.RopeStore, waits: tuple[bool, bool]) -> None:
        self._plan.rope_store(
            waits,
            q=_place(op.q),
            k=_place(op.k),
            v=_place(op.v),
            cos=_place_or_none(op.cos),
            sin=_place_or_none(op.sin),
            half=op.cos.width if op.cos else 0,
            layer=op.layer,
            num_heads=op.num_heads,
        )

    def _attend(self, op: plan_ops.Attend, waits: tuple[bool, bool]) -> None:
        self._plan.attend(
            waits,
            q=_place(op.q),
            out=_place(op.out),
            layer=op.layer,
            num_heads=op.num_heads,
            scale=op.scale,
            window=op.window,
            softcap=op.softcap,
        )

    def _add(self, op: plan_ops.Add, waits: tuple[bool, bool]) -> None:
        self._plan.add(waits, x=_place(op.x), y=_place(op.y), out=_place(op.out), width=op.out.width)

    def _softcap(self, op: plan_ops.Softcap, waits: tuple[bool, bool]) -> None:
        self._plan.softcap(waits, x=_place(op.x), out=_place(op.out), width=op.out.width, cap=op.cap)

    def _gather(self, op: plan_ops.Gather, waits: tuple[bool, bool]) -> None:
        self._plan.gather(waits, x=_place(op.x), out=_place(op.out), width=op.out.width)

    def _sample(self, op: plan_ops.Sample, waits: tuple[bool, bool]) -> None:
        self._plan.sample(waits, logits=_place(op.logits), vocab=op.logits.width)


def _place(view: View) -> Place:
    return view.buffer, view.column


def _place_or_none(view: View | None) -> Place | None:
    return None if view is None else _place(view)


def _number(buffer: int | None) -> int:
    return -1 if buffer is None else buffer
