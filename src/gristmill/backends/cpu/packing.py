"""The native packer: published blocks into layout B32, byte for byte as `quant.pack` defines it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gristmill import _native
from gristmill.quant.block_types import SHAPES, BlockType
from gristmill.quant.formats import PackedTensor


def pack_published(
    kind: BlockType, raw: NDArray[np.uint8], n: int, k: int, row_ids: NDArray[np.int64] | None
) -> tuple[PackedTensor, int]:
    """Pack rows [n, k] into huge-page memory; also return how many scales fp16 could not hold."""
    kept = SHAPES[kind].format
    data = _native.aligned_empty(kept.packed_bytes(n, k))
    lost = _native.pack(int(kind), raw, n, k, data, row_ids)
    return PackedTensor(kept, (n, k), data), lost
