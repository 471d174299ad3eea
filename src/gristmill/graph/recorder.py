"""The builder that records: `record(build, config)` gives the model's graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from gristmill.graph.builder import Builder, RopeScaling
from gristmill.graph.ir import Graph, KvGroup, Node, Scalar, Value, Weight

C = TypeVar("C")


def record(build: Callable[[Builder[Value], C], Value], config: C) -> Graph:
    """Run `build` over a recorder and return what it asked for, checked for consistency."""
    recorder = Recorder()
    logits = build(recorder, config)
    assert logits.rows == "R", "a model's build must end in logits of the rows from logits_rows"
    assert recorder.nodes[-1].output is logits, "a model's build must return its last value"
    return Graph(tuple(recorder.nodes), recorder.kv_groups(), logits.width, dict(recorder.weights))


class Recorder:
    """A `Builder` whose values are symbolic."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self._kv_layers: dict[int, tuple[int, int]] = {}
        self._num_values = 0

    def embed(self, weight: str, vocab_size: int, width: int, *, scale: float = 1.0) -> Value:
        """Record an embedding lookup."""
        return self._node("embed", (), {"weight": self._weight(weight, vocab_size, width)}, {"scale": scale}, "T", width)

    def rms_norm(self, x: Value, weight: str, *, eps: float, head_dim: int = 0) -> Value:
        """Record a norm."""
        assert head_dim == 0 or x.width % head_dim == 0, f"width {x.width} is not a multiple of {head_dim}"
        roles = {"weight": self._weight(weight, head_dim or x.width)}
        return self._node("rms_norm", (x,), roles, {"eps": eps, "head_dim": head_dim}, x.rows, x.width)

    def linear(self, x: Value, weight: str, out_width: int, *, bias: str | None = None) -> Value:
        """Record a matrix product."""
        roles = {"weight": self._weight(weight, out_width, x.width)}
        if bias is not None:
            roles["bias"] = self._weight(bias, out_width)
        return self._node("linear", (x,), roles, {}, x.rows, out_width)

    def rope(self, x: Value, *, head_dim: int, scaling: RopeScaling) -> Value:
        """Record a rotation."""
        assert x.width % head_dim == 0
        assert 2 * len(scaling.inv_freq) <= head_dim
        attributes: dict[str, Scalar] = {"head_dim": head_dim, "inv_freq": scaling.inv_freq}
        attributes["attention_factor"] = scaling.attention_factor
        return self._node("rope", (x,), {}, attributes, x.rows, x.width)

    def attend(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        layer: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Value:
        """Record attention over the paged KV of one layer."""
        assert q.width == num_heads * head_dim
        assert k.width == v.width == num_kv_heads * head_dim
        assert num_heads % num_kv_heads == 0
        assert layer not in self._kv_layers
        self._kv_layers[layer] = (num_kv_heads, head_dim)
        attributes: dict[str, Scalar] = {"layer": layer, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
        attributes |= {"head_dim": head_dim, "scale": scale, "window": window, "softcap": softcap}
        return self._node("attend", (q, k, v), {}, attributes, q.rows, q.width)

    def act_mul(self, gate: Value, up: Value, *, kind: str) -> Value:
        """Record a gated activation."""
        assert gate.width == up.width
        assert kind in ("silu", "gelu_tanh", "gelu")
        return self._node("act_mul", (gate, up), {}, {"kind": kind}, gate.rows, gate.width)

    def add(self, x: Value, y: Value) -> Value:
        """Record a sum."""
        assert (x.rows, x.width) == (y.rows, y.width)
        return self._node("add", (x, y), {}, {}, x.rows, x.width)

    def split(self, x: Value, widths: tuple[int, ...]) -> tuple[Value, ...]:
        """Record one `slice` node for each range."""
        assert sum(widths) == x.width
        starts = [sum(widths[:i]) for i in range(len(widths))]
        return tuple(self._node("slice", (x,), {}, {"start": s}, x.rows, w) for s, w in zip(starts, widths, strict=True))

    def softcap(self, x: Value, *, cap: float) -> Value:
        """Record a soft cap."""
        return self._node("softcap", (x,), {}, {"cap": cap}, x.rows, x.width)

    def logits_rows(self, x: Value) -> Value:
        """Record the choice of rows."""
        return self._node("logits_rows", (x,), {}, {}, "R", x.width)

    def kv_groups(self) -> tuple[KvGroup, ...]:
        """Return the one group of all layers."""
        shapes = set(self._kv_layers.values())
        assert len(shapes) == 1, "all layers must have one KV shape"
        assert sorted(self._kv_layers) == list(range(len(self._kv_layers)))
        num_kv_heads, head_dim = shapes.pop()
        return (KvGroup(len(self._kv_layers), num_kv_heads, head_dim),)

    def _weight(self, name: str, *shape: int) -> Weight:
        weight = self.weights.setdefault(name, Weight(name, shape))
        assert weight.shape == shape, f"{name} is read as {weight.shape} and as {shape}"
        return weight

    def _node(
        self,
        op: str,
        inputs: tuple[Value, ...],
        weights: Mapping[str, Weight],
        attributes: Mapping[str, Scalar],
        rows: str,
        width: int,
    ) -> Value:
        output = Value(self._num_values, rows, width)
        self._num_values += 1
        self.nodes.append(Node(op, inputs, weights, attributes, output))
        return output
