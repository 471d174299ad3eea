"""The paged KV cache: blocks of tokens, each layer's keys and values stored as rounded to the KV type."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gristmill.graph.ir import KvGroup

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
KvType = Literal["bf16", "f32"]


def round_to_bf16(x: F32) -> F32:
    """Round to the nearest bf16, ties to even; the result is held in f32. Not for NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


class Pages:
    """Keys and values of all layers of one group: [layers, slots, kv heads, head_dim], slot = block * size + offset."""

    def __init__(self, group: KvGroup, num_blocks: int, block_size_tokens: int, kv_dtype: KvType) -> None:
        shape = (group.num_layers, num_blocks * block_size_tokens, group.num_kv_heads, group.head_dim)
        self._keys, self._values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._block_size_tokens = block_size_tokens
        self._kv_dtype = kv_dtype

    def store(self, layer: int, slots: I32, k: F32, v: F32) -> None:
        """Write k and v [T, kv heads * head_dim] to their slots."""
        for pages, x in ((self._keys, k), (self._values, v)):
            stored = round_to_bf16(x) if self._kv_dtype == "bf16" else x
            pages[layer, slots] = stored.reshape(-1, *pages.shape[2:])

    def read(self, layer: int, block_table: I32, context_len: int) -> tuple[F32, F32]:
        """Return the first `context_len` keys and values of a sequence: [L, kv heads, head_dim] each."""
        size = self._block_size_tokens
        blocks = block_table[: -(-context_len // size)].astype(np.int64)
        slots = (blocks[:, None] * size + np.arange(size)).ravel()[:context_len]
        return self._keys[layer, slots], self._values[layer, slots]

    def copy(self, source_ids: I32, target_ids: I32) -> None:
        """Copy whole blocks."""
        for pages in (self._keys, self._values):
            blocks = pages.reshape(pages.shape[0], -1, self._block_size_tokens, *pages.shape[2:])
            blocks[:, target_ids] = blocks[:, source_ids]
