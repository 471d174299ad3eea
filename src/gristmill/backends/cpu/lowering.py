"""From a graph to the flat list of ops that the native plan runs, with everything fused that may be.

Fusions never change a bit of what the ops define: matrices over one input become one op (`Linear` with several
segments), a norm or activation writes the int8 rows that its consumers read, a residual sum is added to by the
matrix product before it, rotation and the KV store are one op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gristmill.backends.cpu.plan_ops import (
    ActMul,
    Add,
    Attend,
    Buffer,
    Embed,
    Gather,
    Linear,
    Norm,
    PlanOp,
    Quantize,
    RopeStore,
    RopeTable,
    Sample,
    Segment,
    Softcap,
    View,
)
from gristmill.graph.ir import Graph, Node, Value
from gristmill.quant.formats import Format

# Up to this width a row is computed by every thread alone when a step has one row: cheaper than a barrier.
PRIVATE_WIDTH_MAX = 4096
COLUMN_ALIGNMENT = 16  # floats: one cache line


@dataclass(frozen=True, slots=True)
class Lowered:
    """Buffers by number, and ops in order."""

    buffers: tuple[Buffer, ...]
    ops: tuple[PlanOp, ...]


def lower(graph: Graph, formats: Mapping[str, Format] | None) -> Lowered:
    """Lower `graph` for weights of these formats; None = unknown: room for whatever they may be."""
    return _Lowering(graph, formats).run()


class _Lowering:
    """One walk over the nodes; `views` has where each value lies."""

    def __init__(self, graph: Graph, formats: Mapping[str, Format] | None) -> None:
        self._graph = graph
        self._formats = formats
        self._buffers: list[Buffer] = []
        self._tables: list[PlanOp] = []
        self._ops: list[PlanOp] = []
        self._views: dict[int, View] = {}
        self._quantized: dict[int, int] = {}
        self._table_views: dict[tuple[tuple[float, ...], float], tuple[View, View]] = {}
        self._producers = {node.output.id: node for node in graph.nodes}
        self._consumers: dict[int, list[Node]] = {node.output.id: [] for node in graph.nodes}
        for node in graph.nodes:
            for value in node.inputs:
                self._consumers[value.id].append(node)
        self._positions = {node.output.id: i for i, node in enumerate(graph.nodes)}
        self._residuals = self._find_residuals()
        self._done: set[int] = set()  # linears that were emitted with an earlier one

    def run(self) -> Lowered:
        """Emit every node."""
        emit: dict[str, Callable[[Node], None]] = {
            "embed": self._embed,
            "rms_norm": self._rms_norm,
            "linear": self._linear,
            "rope": self._rope,
            "attend": self._attend,
            "act_mul": self._act_mul,
            "add": self._add,
            "slice": self._slice,
            "softcap": self._softcap,
            "logits_rows": self._logits_rows,
        }
        for node in self._graph.nodes:
            emit[node.op](node)
        self._ops.append(Sample(self._views[self._graph.nodes[-1].output.id]))
        return Lowered(tuple(self._buffers), tuple(self._tables + self._ops))

    # -- what may be fused -------------------------------------------------------------------------------------

    def _find_residuals(self) -> dict[int, tuple[Node, Value]]:
        """Sums whose linear operand can be added into the other one in place: sum -> (linear, base)."""
        found: dict[int, tuple[Node, Value]] = {}
        for node in self._graph.nodes:
            if node.op == "add":
                x, y = node.inputs
                for term, base in ((y, x), (x, y)):
                    if self._is_only_use(term, node, "linear") and self._may_overwrite(base, node):
                        found[node.output.id] = (self._producers[term.id], base)
                        break
        return found

    def _is_only_use(self, value: Value, node: Node, op: str) -> bool:
        return self._consumers[value.id] == [node] and self._producers[value.id].op == op

    def _may_overwrite(self, value: Value, node: Node) -> bool:
        """True if nothing reads `value` after `node`, no other value shares its columns, and it lies in one place.

        What norms and activations write may be private, one copy for each thread.
        """
        uses = self._consumers[value.id]
        producer = self._producers[value.id].op
        is_last = all(self._positions[use.output.id] <= self._positions[node.output.id] for use in uses)
        is_alone = producer not in ("slice", "rope") and not any(use.op in ("slice", "rope") for use in uses)
        return is_last and uses.count(node) == 1 and is_alone and producer not in ("rms_norm", "act_mul")

    def _needs(self, value: Value) -> tuple[bool, bool]:
        """Whether `value` is read as f32, and as int8."""
        needs_f32 = needs_quantized = False
        for node in self._consumers[value.id]:
            is_quantized = self._is_quantized(node) if node.op == "linear" else False
            needs_quantized |= is_quantized is not False
            needs_f32 |= is_quantized is not True
        return needs_f32, needs_quantized

    def _is_quantized(self, linear: Node) -> bool | None:
        """Whether a linear reads int8 rows; None = not known yet."""
        return None if self._formats is None else self._formats[linear.weights["weight"].name].is_quantized

    # -- buffers -----------------------------------------------------------------------------------------------

    def _buffer(self, rows: str, width: int, *, is_quantized: bool = False, is_private: bool = False) -> int:
        self._buffers.append(Buffer(rows, width, is_quantized, is_private))
        return len(self._buffers) - 1

    def _new_view(self, value: Value, *, is_private: bool = False) -> View:
        width = -(-value.width // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
        view = View(self._buffer(value.rows, width, is_private=is_private), 0, value.width)
        self._views[value.id] = view
        return view

    def _new_outputs(self, value: Value, *, is_private: bool) -> tuple[View | None, int | None]:
        """Buffers for a value in the forms that its consumers read."""
        needs_f32, needs_quantized = self._needs(value)
        out = self._new_view(value, is_private=is_private) if needs_f32 or not needs_quantized else None
        if not needs_quantized:
            return out, None
        self._quantized[value.id] = self._buffer(value.rows, value.width, is_quantized=True, is_private=is_private)
        return out, self._quantized[value.id]

    def _quantized_rows(self, value: Value) -> int:
        """The int8 form of a value, made here if its producer did not."""
        if value.id not in self._quantized:
            is_private = value.width <= PRIVATE_WIDTH_MAX
            buffer = self._buffer(value.rows, value.width, is_quantized=True, is_private=is_private)
            self._ops.append(Quantize(self._views[value.id], buffer))
            self._quantized[value.id] = buffer
        return self._quantized[value.id]

    # -- one method for each op --------------------------------------------------------------------------------

    def _embed(self, node: Node) -> None:
        self._ops.append(Embed(node.weights["weight"].name, _float(node, "scale"), self._new_view(node.output)))

    def _rms_norm(self, node: Node) -> None:
        x = self._views[node.inputs[0].id]
        head_dim = _int(node, "head_dim")
        quantized: int | None = None
        out: View | None
        if head_dim and self._may_overwrite(node.inputs[0], node):
            out = self._views[node.output.id] = x
        else:
            # A norm cannot be cut by columns: alone on every thread, it saves a barrier and costs nothing.
            out, quantized = self._new_outputs(node.output, is_private=not head_dim)
        self._ops.append(Norm(x, node.weights["weight"].name, _float(node, "eps"), head_dim, out, quantized))

    def _linear(self, node: Node) -> None:
        if node.output.id in self._done or self._is_residual(node):
            return
        group = [other for other in self._consumers[node.inputs[0].id] if other.op == "linear" and not self._is_residual(other)]
        self._done |= {other.output.id for other in group}
        columns = [-(-other.output.width // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT for other in group]
        buffer = self._buffer(node.output.rows, sum(columns))
        for i, other in enumerate(group):
            self._views[other.output.id] = View(buffer, sum(columns[:i]), other.output.width)
        self._emit_linear(group, accumulate=False)

    def _is_residual(self, linear: Node) -> bool:
        uses = self._consumers[linear.output.id]
        return len(uses) == 1 and self._residuals.get(uses[0].output.id, (None, None))[0] is linear

    def _emit_linear(self, group: list[Node], *, accumulate: bool) -> None:
        x = group[0].inputs[0]
        kinds = {self._is_quantized(node) for node in group}
        quantized = self._quantized_rows(x) if kinds != {False} else None
        floats = self._views[x.id] if kinds != {True} else None
        segments = tuple(Segment(node.weights["weight"].name, _name(node, "bias"), self._views[node.output.id]) for node in group)
        self._ops.append(Linear(floats, quantized, x.width, accumulate, segments))

    def _add(self, node: Node) -> None:
        if node.output.id in self._residuals:
            linear, base = self._residuals[node.output.id]
            self._views[node.output.id] = self._views[linear.output.id] = self._views[base.id]
            self._emit_linear([linear], accumulate=True)
            return
        x, y = node.inputs
        target = next((value for value in (x, y) if self._may_overwrite(value, node)), None)
        out = self._new_view(node.output) if target is None else self._views[target.id]
        self._views[node.output.id] = out
        self._ops.append(Add(self._views[x.id], self._views[y.id], out))

    def _act_mul(self, node: Node) -> None:
        gate, up = (self._views[value.id] for value in node.inputs)
        out, quantized = self._new_outputs(node.output, is_private=node.output.width <= PRIVATE_WIDTH_MAX)
        self._ops.append(ActMul(gate, up, str(node.attributes["kind"]), out, quantized))

    def _rope(self, node: Node) -> None:
        uses = self._consumers[node.output.id]
        assert [use.op for use in uses] == ["attend"], "a rotated value must be read by one attend and nothing else"
        assert len(self._consumers[node.inputs[0].id]) == 1, "a value to rotate must have no other reader"
        self._views[node.output.id] = self._views[node.inputs[0].id]

    def _attend(self, node: Node) -> None:
        q, k, v = (self._views[value.id] for value in node.inputs)
        cos, sin = self._rope_views(node)
        layer, num_heads = _int(node, "layer"), _int(node, "num_heads")
        self._ops.append(RopeStore(q, k, v, cos, sin, layer, num_heads))
        scale, window, softcap = _float(node, "scale"), _int(node, "window"), _float(node, "softcap")
        self._ops.append(Attend(q, self._new_view(node.output), layer, num_heads, scale, window, softcap))

    def _rope_views(self, attend: Node) -> tuple[View | None, View | None]:
        ropes = [self._producers[value.id] for value in attend.inputs[:2] if self._producers[value.id].op == "rope"]
        if not ropes:
            return None, None
        keys = {(_floats(rope, "inv_freq"), _float(rope, "attention_factor")) for rope in ropes}
        assert (len(ropes), len(keys)) == (2, 1), "q and k of one attend must be rotated alike"
        key = keys.pop()
        if key not in self._table_views:
            half = len(key[0])
            cos, sin = (View(self._buffer("T", half), 0, half) for _ in range(2))
            self._tables.append(RopeTable(*key, cos, sin))
            self._table_views[key] = cos, sin
        return self._table_views[key]

    def _slice(self, node: Node) -> None:
        view = self._views[node.inputs[0].id]
        self._views[node.output.id] = View(view.buffer, view.column + _int(node, "start"), node.output.width)

    def _softcap(self, node: Node) -> None:
        x = self._views[node.inputs[0].id]
        in_place = self._may_overwrite(node.inputs[0], node)
        out = x if in_place else self._new_view(node.output)
        self._views[node.output.id] = out
        self._ops.append(Softcap(x, out, _float(node, "cap")))

    def _logits_rows(self, node: Node) -> None:
        self._ops.append(Gather(self._views[node.inputs[0].id], self._new_view(node.output)))


def _int(node: Node, name: str) -> int:
    value = node.attributes[name]
    assert isinstance(value, int)
    return value


def _float(node: Node, name: str) -> float:
    value = node.attributes[name]
    assert isinstance(value, int | float)
    return float(value)


def _floats(node: Node, name: str) -> tuple[float, ...]:
    value = node.attributes[name]
    assert isinstance(value, tuple)
    return value


def _name(node: Node, role: str) -> str | None:
    return node.weights[role].name if role in node.weights else None
