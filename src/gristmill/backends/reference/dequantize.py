"""Packed weights back to f32 arrays: what every kernel's products are defined by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gristmill.quant.formats import BLOCK_K, TILE_CHANNELS, Format, PackedTensor

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


def dequantize(tensor: PackedTensor) -> F32:
    """Return the values of a packed matrix [N, K], or of a vector [D], in f32."""
    if len(tensor.shape) == 1:
        return tensor.data.view(np.float32)[: tensor.shape[0]].copy()
    n, k = tensor.shape
    if tensor.format.is_quantized:
        return _quantized(tensor.format, tensor.data, k)[:n]
    return _floats(tensor.format, tensor.data, k)[:n]


def _floats(format_: Format, data: U8, k: int) -> F32:
    if format_ is Format.BF16:
        values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = data.view(np.float16 if format_ is Format.F16 else np.float32).astype(np.float32)
    return values.reshape(-1, k, TILE_CHANNELS).transpose(0, 2, 1).reshape(-1, k)


def _quantized(format_: Format, data: U8, k: int) -> F32:
    """Return [padded N, K]. Formula and order of the bytes: see `quant.formats`."""
    groups = BLOCK_K // format_.group_size
    blocks = data.reshape(-1, k // BLOCK_K, format_.block_bytes())  # [tiles, k blocks, bytes]
    scale_bytes = groups * TILE_CHANNELS * 2
    codes = _codes(format_, blocks[..., -TILE_CHANNELS * BLOCK_K * format_.code_bits // 8 :])
    zero = 128 if format_.code_bits == 8 else 0 if format_.has_min else 8
    values = (codes.astype(np.float32) - np.float32(zero)) * _per_k(blocks[..., :scale_bytes], groups)
    if format_.has_min:
        values += _per_k(blocks[..., scale_bytes : 2 * scale_bytes], groups)
    return values.transpose(0, 3, 1, 2).reshape(-1, k)  # [tile, k block, k, channel] -> [tile, channel, k block, k]


def _per_k(raw: U8, groups: int) -> F32:
    """Half floats [.., groups, 32 channels] -> [.., 32 k, 32 channels]."""
    halves = np.ascontiguousarray(raw).view(np.float16).reshape(*raw.shape[:2], groups, TILE_CHANNELS)
    return np.repeat(halves.astype(np.float32), BLOCK_K // groups, axis=2)


def _codes(format_: Format, raw: U8) -> U8:
    """Codes of each block as [tiles, k blocks, 32 k, 32 channels]."""
    lead = raw.shape[:2]
    if format_.code_bits == 8:
        lines = raw.reshape(*lead, 8, 2, 16, 4)  # j, h, c, i -> k = 4j + i, channel = 16h + c
        return lines.transpose(0, 1, 2, 5, 3, 4).reshape(*lead, BLOCK_K, TILE_CHANNELS)
    lines = raw.reshape(*lead, 4, 2, 16, 4)
    both = np.stack([lines & 15, lines >> 4], axis=3)  # j, nibble, h, c, i -> k = 8j + 4 * nibble + i
    return both.transpose(0, 1, 2, 3, 6, 4, 5).reshape(*lead, BLOCK_K, TILE_CHANNELS)
