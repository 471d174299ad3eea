"""From stored rows to a packed tensor, in numpy: the definition that faster packers must equal byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import ModelFileError
from gristmill.quant.block_types import SHAPES, BlockType, stored_bytes
from gristmill.quant.formats import TILE_CHANNELS, PackedTensor
from gristmill.quant.pack import aligned_empty, pack_codes, pack_floats
from gristmill.quant.published import count_lost_scales, regroup

# Rows are packed in batches of about so many weights, so that temporary arrays stay in the cache.
_BATCH_WEIGHTS = 1 << 18
_FLOATS = {BlockType.F32: np.float32, BlockType.F16: np.float16, BlockType.BF16: np.uint16}


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A matrix [n, k] to be packed: row i is row `row_ids[i]` of `raw`, or row i where there are none."""

    name: str
    type: BlockType
    raw: NDArray[np.uint8]
    n: int
    k: int
    row_ids: NDArray[np.int64] | None


Packer = Callable[[StoredRows], PackedTensor]


def pack_rows(rows: StoredRows) -> PackedTensor:
    """Pack into layout B32. Raises: ModelFileError naming the tensor if fp16 cannot hold its scales."""
    kept = SHAPES[rows.type].format
    data = aligned_empty(kept.packed_bytes(rows.n, rows.k))
    stored = rows.raw.reshape(-1, stored_bytes(rows.type, (rows.k,)))
    batch = max(1, _BATCH_WEIGHTS // rows.k // TILE_CHANNELS) * TILE_CHANNELS
    at = 0
    for first in range(0, rows.n, batch):
        taken = slice(first, min(first + batch, rows.n))
        part = stored[taken] if rows.row_ids is None else stored[rows.row_ids[taken]]
        packed = _pack_batch(rows, np.ascontiguousarray(part)).data
        data[at : at + packed.size] = packed
        at += packed.size
    assert at == data.size, "batches of whole tiles make up the tensor"
    return PackedTensor(kept, (rows.n, rows.k), data)


def lost_scales_error(name: str, count: int) -> ModelFileError:
    """Say that a tensor's scales are beyond fp16."""
    return ModelFileError(
        f"the tensor {name} has {count:,} scales or minimums that fp16 cannot hold.", "take another quantization of the model."
    )


def _pack_batch(rows: StoredRows, part: NDArray[np.uint8]) -> PackedTensor:
    kept, raw = SHAPES[rows.type].format, part.reshape(-1)
    if not kept.is_quantized:
        return pack_floats(raw.view(_FLOATS[rows.type]).reshape(len(part), rows.k), kept)
    if lost := count_lost_scales(rows.type, raw):
        raise lost_scales_error(rows.name, lost)
    return pack_codes(regroup(rows.type, raw, len(part), rows.k))
