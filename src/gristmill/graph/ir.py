"""The graph: a flat list of nodes over named weights; the one description of a model.

Symbolic sizes: T tokens in the step, S sequences, R rows that need logits. Everything else is a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = int | float | str | bool | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """The result of a node: `rows` is the symbolic row count ("T" or "R"), `width` the columns. Always f32."""

    id: int
    rows: str
    width: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that the graph reads: canonical `name` (Hugging Face's tensor name) and shape.

    Linear weights are [out, in]; embeddings [vocabulary, width]; norm weights and biases [width].
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One op: what it reads, its weights by role, its attributes, and what it makes."""

    op: str
    inputs: tuple[Value, ...]
    weights: Mapping[str, Weight]  # role ("weight", "bias") -> weight
    attributes: Mapping[str, Scalar]
    output: Value


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers of equal KV shape and retention. One group to begin with."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A model: nodes in execution order; the last node's output is the logits [R, vocabulary]."""

    nodes: tuple[Node, ...]
    kv_groups: tuple[KvGroup, ...]
    vocab_size: int
    weights: Mapping[str, Weight] = field(default_factory=dict)
