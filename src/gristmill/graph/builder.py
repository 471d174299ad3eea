"""What a model's `build(g, config)` is called with: give it the recorder and it is a graph.

The reference backend gives it arrays instead, and the same code runs eagerly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary frequencies, stretched as a model asks for it.

    `inv_freq` [head_dim_rotated / 2] and `attention_factor` are computed once, in float64, by
    `graph.rope.frequencies`; backends only apply them: angle = position * inv_freq, and cos and sin are
    multiplied by `attention_factor`.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


class Builder(Protocol[V]):
    """The transformer-level ops. Shapes in brackets; every value is f32 and row-major."""

    def embed(self, weight: str, vocab_size: int, width: int, *, scale: float = 1.0) -> V:
        """Rows of the embedding for the step's token ids, times `scale`: -> [T, width]."""
        ...

    def rms_norm(self, x: V, weight: str, *, eps: float, head_dim: int = 0) -> V:
        """X / sqrt(mean(x^2) + eps) * weight: [.., D] -> [.., D].

        `head_dim` > 0 normalises each run of that many columns on its own (q and k norms; weight[head_dim]).
        A model whose checkpoint stores w - 1 (gemma) gets 1 added at load, in f32.
        """
        ...

    def linear(self, x: V, weight: str, out_width: int, *, bias: str | None = None) -> V:
        """x[.., K] @ weight[out, K].T + bias: -> [.., out]."""
        ...

    def rope(self, x: V, *, head_dim: int, scaling: RopeScaling) -> V:
        """Rotate each head of x [T, heads * head_dim] by the step's positions, half-split ("neox") pairs.

        Pair (i, i + rotated/2) for i < rotated/2 = len(inv_freq); columns past `rotated` pass through.
        """
        ...

    def attend(
        self,
        q: V,
        k: V,
        v: V,
        *,
        layer: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> V:
        """Store k and v of the step in the KV cache of `layer`, then causal attention: -> [T, heads * head_dim].

        Query at position p sees positions max(0, p - window + 1) .. p (`window` 0 = no limit), as stored
        (rounded to the KV type). Scores are q.k * scale, then softcap * tanh(score / softcap) if softcap > 0.
        """
        ...

    def act_mul(self, gate: V, up: V, *, kind: str) -> V:
        """act(gate) * up; `kind` is silu, gelu_tanh or gelu."""
        ...

    def add(self, x: V, y: V) -> V:
        """X + y."""
        ...

    def split(self, x: V, widths: tuple[int, ...]) -> tuple[V, ...]:
        """Column ranges of x, in order."""
        ...

    def softcap(self, x: V, *, cap: float) -> V:
        """Cap * tanh(x / cap)."""
        ...

    def logits_rows(self, x: V) -> V:
        """Take the rows of x [T, D] whose logits the step needs: -> [R, D]."""
        ...
