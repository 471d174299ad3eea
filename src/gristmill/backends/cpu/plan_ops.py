"""The ops of a CPU plan, as `lowering` makes them and the native plan runs them.

Buffers are numbered; a view is columns of a buffer. Each op says what it reads and writes, so that barriers
and lifetimes follow from the list alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """A matrix of the activation arena.

    `rows` is "T" (tokens of the step) or "R" (rows of one tile of logits). `is_quantized`: int8 with scales
    instead of f32. `is_private`: with one row, every thread computes and reads a copy of its own.
    """

    rows: str
    width: int
    is_quantized: bool = False
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """Columns [column, column + width) of a buffer."""

    buffer: int
    column: int
    width: int


@dataclass(frozen=True, slots=True)
class Access:
    """What an op touches: columns of a buffer; buffer < 0 is the KV cache of layer -1 - buffer."""

    buffer: int
    column_begin: int
    column_end: int


EVERYTHING = 1 << 62


def _views(*views: View | None) -> tuple[Access, ...]:
    return tuple(Access(v.buffer, v.column, v.column + v.width) for v in views if v is not None)


def _whole(*buffers: int | None) -> tuple[Access, ...]:
    return tuple(Access(b, 0, EVERYTHING) for b in buffers if b is not None)


@dataclass(frozen=True, slots=True)
class Embed:
    """Rows of the embedding."""

    weight: str
    scale: float
    out: View

    def reads(self) -> Iterable[Access]:
        return ()

    def writes(self) -> Iterable[Access]:
        return _views(self.out)


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square norm, written as f32, as int8 with scales, or both."""

    x: View
    weight: str
    eps: float
    head_dim: int
    out: View | None
    quantized: int | None

    def reads(self) -> Iterable[Access]:
        return _views(self.x)

    def writes(self) -> Iterable[Access]:
        return _views(self.out) + _whole(self.quantized)


@dataclass(frozen=True, slots=True)
class Quantize:
    """F32 to int8 with scales."""

    x: View
    quantized: int

    def reads(self) -> Iterable[Access]:
        return _views(self.x)

    def writes(self) -> Iterable[Access]:
        return _whole(self.quantized)


@dataclass(frozen=True, slots=True)
class ActMul:
    """Gated activation, written as f32, as int8 with scales, or both."""

    gate: View
    up: View
    kind: str
    out: View | None
    quantized: int | None

    def reads(self) -> Iterable[Access]:
        return _views(self.gate, self.up)

    def writes(self) -> Iterable[Access]:
        return _views(self.out) + _whole(self.quantized)


@dataclass(frozen=True, slots=True)
class Segment:
    """One matrix of a `Linear`."""

    weight: str
    bias: str | None
    y: View


@dataclass(frozen=True, slots=True)
class Linear:
    """One or several matrices over the same input; `accumulate` adds to y (the residual)."""

    x: View | None
    quantized: int | None
    k: int
    accumulate: bool
    segments: tuple[Segment, ...]

    def reads(self) -> Iterable[Access]:
        return _views(self.x) + _whole(self.quantized)

    def writes(self) -> Iterable[Access]:
        return _views(*(segment.y for segment in self.segments))


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of the step's positions."""

    inv_freq: tuple[float, ...]
    attention_factor: float
    cos: View
    sin: View

    def reads(self) -> Iterable[Access]:
        return ()

    def writes(self) -> Iterable[Access]:
        return _views(self.cos, self.sin)


@dataclass(frozen=True, slots=True)
class RopeStore:
    """Rotate q in place, rotate k, store k and v in the KV cache."""

    q: View
    k: View
    v: View
    cos: View | None
    sin: View | None
    layer: int
    num_heads: int

    def reads(self) -> Iterable[Access]:
        return _views(self.q, self.k, self.v, self.cos, self.sin)

    def writes(self) -> Iterable[Access]:
        return _views(self.q) + _whole(-1 - self.layer)


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention over the KV cache."""

    q: View
    out: View
    layer: int
    num_heads: int
    scale: float
    window: int
    softcap: float

    def reads(self) -> Iterable[Access]:
        return _views(self.q) + _whole(-1 - self.layer)

    def writes(self) -> Iterable[Access]:
        return _views(self.out)


@dataclass(frozen=True, slots=True)
class Add:
    """Sum of two matrices."""

    x: View
    y: View
    out: View

    def reads(self) -> Iterable[Access]:
        return _views(self.x, self.y)

    def writes(self) -> Iterable[Access]:
        return _views(self.out)


@dataclass(frozen=True, slots=True)
class Softcap:
    """Cap * tanh(x / cap)."""

    x: View
    out: View
    cap: float

    def reads(self) -> Iterable[Access]:
        return _views(self.x)

    def writes(self) -> Iterable[Access]:
        return _views(self.out)


@dataclass(frozen=True, slots=True)
class Gather:
    """The rows that need logits; ops from here on run once for each tile of them."""

    x: View
    out: View

    def reads(self) -> Iterable[Access]:
        return _views(self.x)

    def writes(self) -> Iterable[Access]:
        return _views(self.out)


@dataclass(frozen=True, slots=True)
class Sample:
    """Choose a token for each row of logits, which it overwrites."""

    logits: View

    def reads(self) -> Iterable[Access]:
        return _views(self.logits)

    def writes(self) -> Iterable[Access]:
        return _views(self.logits)


PlanOp = (
    Embed | Norm | Quantize | ActMul | Linear | RopeTable | RopeStore | Attend | Add | Softcap | Gather | Sample
)  # fmt: skip
