"""The numpy definition of layout B32: packing and unpacking (see `quant.formats`)."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gristmill.quant.formats import BLOCK_K, TILE_CHANNELS, Format, GroupedCodes, PackedTensor

U8 = NDArray[np.uint8]
V = TypeVar("V", bound=np.generic)


def aligned_empty(num_bytes: int) -> U8:
    """Return bytes [num_bytes], not yet written, that begin at a multiple of 64."""
    room = np.empty(num_bytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + num_bytes]


def aligned_copy(data: U8) -> U8:
    """Return a copy of bytes [count] that begins at a multiple of 64."""
    kept = aligned_empty(data.size)
    kept[:] = data
    return kept


def pack_codes(grouped: GroupedCodes) -> PackedTensor:
    """Bring codes [N, K], scales and minimums into layout B32; missing channels are zeros."""
    n, k = grouped.codes.shape
    num_tiles, num_blocks = -(-n // TILE_CHANNELS), k // BLOCK_K
    parts = [_pack_scales(values, num_tiles, num_blocks) for values in (grouped.scales, grouped.mins) if values is not None]
    codes: U8 = _pad_rows(grouped.codes, num_tiles).reshape(num_tiles, 2, 16, num_blocks, BLOCK_K).transpose(0, 3, 1, 2, 4)
    parts.append(_pack_nibbles(codes) if grouped.format.code_bits == 4 else _pack_bytes(codes))
    data = np.concatenate(parts, axis=2).reshape(-1)
    return PackedTensor(grouped.format, (n, k), aligned_copy(data))


def pack_floats(values: NDArray[np.generic], kept: Format) -> PackedTensor:
    """Bring float weights [N, K] (bf16 as u16) into layout B32, or a vector [D] into plain f32."""
    if values.ndim == 1:
        return PackedTensor(Format.F32, values.shape, aligned_copy(np.ascontiguousarray(values, np.float32).view(np.uint8)))
    n, k = values.shape
    tiles = _pad_rows(values, -(-n // TILE_CHANNELS)).reshape(-1, TILE_CHANNELS, k).transpose(0, 2, 1)
    return PackedTensor(kept, (n, k), aligned_copy(np.ascontiguousarray(tiles).view(np.uint8).reshape(-1)))


def unpack(packed: PackedTensor) -> NDArray[np.float32]:
    """Return the f32 values of a packed tensor, of its true shape."""
    if len(packed.shape) == 1:
        return packed.data.view(np.float32).copy()
    if not packed.format.is_quantized:
        return _unpack_floats(packed)
    grouped = unpack_codes(packed)
    n, k = packed.shape
    kept, size = packed.format, packed.format.group_size
    zero = 128 if kept.code_bits == 8 else 0 if kept.has_min else 8
    codes = (grouped.codes.astype(np.int16) - zero).astype(np.float32).reshape(n, k // size, size)
    values = codes * grouped.scales.astype(np.float32)[..., None]
    if grouped.mins is not None:
        values = values + grouped.mins.astype(np.float32)[..., None]
    return values.reshape(n, k)


def unpack_codes(packed: PackedTensor) -> GroupedCodes:
    """Return what `pack_codes` was given."""
    n, k = packed.shape
    kept, num_blocks, num_tiles = packed.format, k // BLOCK_K, -(-n // TILE_CHANNELS)
    blocks = packed.data.reshape(num_tiles, num_blocks, kept.block_bytes())
    scale_bytes = BLOCK_K // kept.group_size * TILE_CHANNELS * 2
    scales = _unpack_scales(blocks[:, :, :scale_bytes], n)
    mins = _unpack_scales(blocks[:, :, scale_bytes : 2 * scale_bytes], n) if kept.has_min else None
    lines = blocks[:, :, scale_bytes * (2 if kept.has_min else 1) :]
    codes = _unpack_nibbles(lines) if kept.code_bits == 4 else _unpack_bytes(lines)
    return GroupedCodes(kept, codes.transpose(0, 2, 3, 1, 4).reshape(-1, k)[:n], scales, mins)


def _pad_rows(values: NDArray[V], num_tiles: int) -> NDArray[V]:
    missing = num_tiles * TILE_CHANNELS - len(values)
    return np.pad(values, ((0, missing), (0, 0))) if missing else values


def _pack_scales(values: NDArray[np.float16], num_tiles: int, num_blocks: int) -> U8:
    groups = _pad_rows(values, num_tiles).reshape(num_tiles, TILE_CHANNELS, num_blocks, -1).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(groups).view(np.uint8).reshape(num_tiles, num_blocks, -1)


def _unpack_scales(data: U8, n: int) -> NDArray[np.float16]:
    num_tiles, num_blocks = data.shape[:2]
    groups = np.ascontiguousarray(data).view(np.float16).reshape(num_tiles, num_blocks, -1, TILE_CHANNELS)
    return groups.transpose(0, 3, 1, 2).reshape(num_tiles * TILE_CHANNELS, -1)[:n]


# Codes are [tile, block, half, channel, k]; lines come in the order (j, half), a byte being (channel, i).
# Both pack four codes of a channel at a time, as one u32: nibbles do not reach the byte above when shifted by 4.
def _pack_nibbles(codes: U8) -> U8:
    split = codes.view(np.uint32).reshape(*codes.shape[:4], 4, 2)
    packed = split[..., 0] | (split[..., 1] << np.uint32(4))
    return np.ascontiguousarray(packed.transpose(0, 1, 4, 2, 3)).view(np.uint8).reshape(*codes.shape[:2], -1)


def _unpack_nibbles(lines: U8) -> U8:
    packed = lines.reshape(*lines.shape[:2], 4, 2, 16, 4).transpose(0, 1, 3, 4, 2, 5)
    return np.stack([packed & 15, packed >> 4], axis=5).reshape(*packed.shape[:4], BLOCK_K)


def _pack_bytes(codes: U8) -> U8:
    split = codes.view(np.uint32).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(split).view(np.uint8).reshape(*codes.shape[:2], -1)


def _unpack_bytes(lines: U8) -> U8:
    return lines.reshape(*lines.shape[:2], 8, 2, 16, 4).transpose(0, 1, 3, 4, 2, 5).reshape(*lines.shape[:2], 2, 16, BLOCK_K)


def _unpack_floats(packed: PackedTensor) -> NDArray[np.float32]:
    n, k = packed.shape
    kinds = {Format.F16: np.float16, Format.BF16: np.uint16, Format.F32: np.float32}
    values = packed.data.view(kinds[packed.format]).reshape(-1, k, TILE_CHANNELS).transpose(0, 2, 1).reshape(-1, k)[:n]
    if packed.format == Format.BF16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
