"""The way back from a recorded graph to a builder: each node asks for the op that made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gristmill.graph.builder import Builder, RopeScaling
from gristmill.graph.ir import Node

V = TypeVar("V")


def replay_node(g: Builder[V], node: Node, inputs: Sequence[V]) -> V:
    """Ask `g` for the op of `node` over `inputs`, which stand for the node's own."""
    result: V = _REPLAY[node.op](g, node, inputs)
    return result


def _embed(g: Builder[Any], node: Node, inputs: Sequence[Any]) -> Any:
    weight = node.weights["weight"]
    return g.embed(weight.name, weight.shape[0], weight.shape[1], **_attributes(node))


def _rms_norm(g: Builder[Any], node: Node, inputs: Sequence[Any]) -> Any:
    return g.rms_norm(inputs[0], node.weights["weight"].name, **_attributes(node))


def _linear(g: Builder[Any], node: Node, inputs: Sequence[Any]) -> Any:
    bias = node.weights.get("bias")
    return g.linear(inputs[0], node.weights["weight"].name, node.output.width, bias=bias.name if bias else None)


def _rope(g: Builder[Any], node: Node, inputs: Sequence[Any]) -> Any:
    attributes = _attributes(node)
    scaling = RopeScaling(attributes["inv_freq"], attributes["attention_factor"])
    return g.rope(inputs[0], head_dim=attributes["head_dim"], scaling=scaling)


def _slice(g: Builder[Any], node: Node, inputs: Sequence[Any]) -> Any:
    start, width = _attributes(node)["start"], node.output.width
    after = node.inputs[0].width - start - width
    parts = g.split(inputs[0], tuple(part for part in (start, width, after) if part))
    return parts[1 if start else 0]


def _plain(g: Builder[Any], node: Node, inputs: Sequence[Any]) -> Any:
    return getattr(g, node.op)(*inputs, **_attributes(node))


def _attributes(node: Node) -> dict[str, Any]:
    return dict(node.attributes)


_REPLAY: Mapping[str, Callable[[Builder[Any], Node, Sequence[Any]], Any]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope": _rope,
    "slice": _slice,
    **dict.fromkeys(("attend", "act_mul", "add", "softcap", "logits_rows"), _plain),
}
