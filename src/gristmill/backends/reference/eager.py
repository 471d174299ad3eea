"""A `Builder` that computes: give it to a model's `build` and the model runs one step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gristmill.backends.base import Batch
from gristmill.backends.reference import ops
from gristmill.backends.reference.pages import Pages
from gristmill.graph.builder import RopeScaling

F32 = NDArray[np.float32]


class EagerStep:
    """The ops of one step over its batch, the model's weights (f32, by name) and the KV pages."""

    def __init__(self, batch: Batch, weights: Mapping[str, F32], pages: Pages) -> None:
        self._batch = batch
        self._weights = weights
        self._pages = pages

    def embed(self, weight: str, vocab_size: int, width: int, *, scale: float = 1.0) -> F32:
        """Rows of the embedding."""
        rows = self._weights[weight][self._batch.token_ids]
        return rows if scale == 1.0 else rows * np.float32(scale)

    def rms_norm(self, x: F32, weight: str, *, eps: float, head_dim: int = 0) -> F32:
        """A norm."""
        return ops.rms_norm(x, self._weights[weight], eps=eps, head_dim=head_dim)

    def linear(self, x: F32, weight: str, out_width: int, *, bias: str | None = None) -> F32:
        """A matrix product."""
        return ops.linear(x, self._weights[weight], None if bias is None else self._weights[bias])

    def rope(self, x: F32, *, head_dim: int, scaling: RopeScaling) -> F32:
        """A rotation."""
        return ops.rope(x, self._batch.positions[0], head_dim=head_dim, scaling=scaling)

    def attend(
        self,
        q: F32,
        k: F32,
        v: F32,
        *,
        layer: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> F32:
        """Store, then attend, token by token."""
        batch, out = self._batch, np.empty_like(q)
        self._pages.store(layer, batch.slot_mapping[0], k, v)
        for sequence, context_len in enumerate(batch.context_len):
            keys, values = self._pages.read(layer, batch.block_tables[0][sequence], int(context_len))
            begin, end = int(batch.query_start[sequence]), int(batch.query_start[sequence + 1])
            for token in range(begin, end):
                seen = int(context_len) - (end - 1 - token)
                first = max(0, seen - window) if window else 0
                out[token] = ops.attend_row(
                    q[token].reshape(num_heads, head_dim),
                    keys[first:seen],
                    values[first:seen],
                    scale=scale,
                    softcap_value=softcap,
                )
        return out

    def act_mul(self, gate: F32, up: F32, *, kind: str) -> F32:
        """A gated activation."""
        return ops.act_mul(gate, up, kind=kind)

    def add(self, x: F32, y: F32) -> F32:
        """A sum."""
        return x + y

    def split(self, x: F32, widths: tuple[int, ...]) -> tuple[F32, ...]:
        """Column ranges."""
        ends = np.cumsum(widths)
        return tuple(x[:, end - width : end] for end, width in zip(ends, widths, strict=True))

    def softcap(self, x: F32, *, cap: float) -> F32:
        """A soft cap."""
        return ops.softcap(x, cap=cap)

    def logits_rows(self, x: F32) -> F32:
        """The rows whose logits are needed."""
        return x[self._batch.logits_rows]
