"""The numpy definition of every published block type: what its bytes mean, and how they become an execution format.

`dequantize` is bit-equal to the published definition in f32. `regroup` keeps codes as they are and brings scales and
minimums to fp16: exact for the types of 32, rounded once for the products of the k-quants (relative error 2^-11).
Source: ggml's block definitions (ggml-common.h, ggml-quants.c describe layout and arithmetic).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gristmill.quant.block_types import SHAPES, BlockType
from gristmill.quant.formats import Format, GroupedCodes

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Codes = U8 | NDArray[np.int8]

IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


@dataclass(frozen=True, slots=True)
class Groups:
    """Blocks taken apart: value = scale * code + minimum, `code` signed or unsigned as published."""

    codes: Codes  # [blocks, groups, group size]
    scales: F32  # [blocks, groups]
    mins: F32 | None  # [blocks, groups]


def dequantize(kind: BlockType, raw: U8, n: int, k: int) -> F32:
    """Values [n, k] of stored bytes, in f32 as published."""
    if kind == BlockType.F32:
        return raw.view(np.float32).reshape(n, k)
    if kind == BlockType.F16:
        return raw.view(np.float16).astype(np.float32).reshape(n, k)
    if kind == BlockType.BF16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(n, k)
    groups = take_apart(kind, raw)
    values = groups.scales[..., None] * groups.codes.astype(np.float32)
    if groups.mins is not None:
        values = values + groups.mins[..., None]
    return values.reshape(n, k)


def regroup(kind: BlockType, raw: U8, n: int, k: int) -> GroupedCodes:
    """Codes, scales and minimums of a quantized tensor in its execution format."""
    groups = take_apart(kind, raw)
    kept = SHAPES[kind].format
    zero = 0 if kept in (Format.Q4_G32_MIN, Format.Q4_G16_MIN) else 8 if kept.code_bits == 4 else 128
    codes = (groups.codes.view(np.uint8) + np.uint8(zero)).reshape(n, k)  # modulo 256: a signed code shifted to its zero
    with np.errstate(over="ignore"):
        scales = groups.scales.astype(np.float16).reshape(n, -1)
        mins = None if groups.mins is None else groups.mins.astype(np.float16).reshape(n, -1)
    return GroupedCodes(kept, codes, scales, mins)


def count_lost_scales(kind: BlockType, raw: U8) -> int:
    """How many scales and minimums fp16 cannot hold to its full precision (subnormal and inexact, or too large).

    Types of 32 have none: they store fp16. A k-quant's product below fp16's normal range is exact, being a small
    multiple of a scale that is itself a multiple of 2^-24; so only absurdly large ones are lost.
    """
    if SHAPES[kind].width == 32:
        return 0
    groups = take_apart(kind, raw)
    return sum(_lost(values) for values in (groups.scales, groups.mins) if values is not None)


def take_apart(kind: BlockType, raw: U8) -> Groups:
    """Codes, scales and minimums of quantized blocks."""
    return _READERS[kind](raw.reshape(-1, SHAPES[kind].num_bytes))


def _lost(values: F32) -> int:
    with np.errstate(over="ignore"):
        kept = values.astype(np.float16).astype(np.float32)
    is_small = np.abs(values) < np.float32(2.0**-14)
    return int(np.count_nonzero((is_small & (kept != values)) | (np.isinf(kept) & np.isfinite(values))))


def _half(block: U8, at: int) -> F32:
    return block[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(block: U8, at: int) -> U8:
    packed = block[:, at : at + 16]
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _high_bits(block: U8, at: int) -> U8:
    return np.unpackbits(block[:, at : at + 4], axis=1, bitorder="little")


def _grouped(codes: Codes, num_groups: int) -> Codes:
    return codes.reshape(len(codes), num_groups, -1)


def _signed(codes: U8, zero: int) -> NDArray[np.int8]:
    return codes.view(np.int8) - np.int8(zero)


def _q4_0(block: U8) -> Groups:
    return Groups(_grouped(_signed(_nibbles(block, 2), 8), 1), _half(block, 0), None)


def _q4_1(block: U8) -> Groups:
    return Groups(_grouped(_nibbles(block, 4), 1), _half(block, 0), _half(block, 2))


def _q5_0(block: U8) -> Groups:
    codes: U8 = _nibbles(block, 6) | (_high_bits(block, 2) << np.uint8(4))
    return Groups(_grouped(_signed(codes, 16), 1), _half(block, 0), None)


def _q5_1(block: U8) -> Groups:
    return Groups(_grouped(_nibbles(block, 8) | (_high_bits(block, 4) << 4), 1), _half(block, 0), _half(block, 2))


def _q8_0(block: U8) -> Groups:
    return Groups(_grouped(block[:, 2:].view(np.int8), 1), _half(block, 0), None)


def _iq4_nl(block: U8) -> Groups:
    return Groups(_grouped(IQ4_NL_VALUES[_nibbles(block, 2)], 1), _half(block, 0), None)


def _q2_k(block: U8) -> Groups:
    scales, packed = block[:, :16], block[:, 16:80].reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    codes = ((packed >> shifts) & 3).reshape(-1, 256)
    scale, minimum = _half(block, 80), _half(block, 82)
    return Groups(_grouped(codes, 16), scale * (scales & 15).astype(np.float32), -(minimum * (scales >> 4).astype(np.float32)))


def _q3_k(block: U8) -> Groups:
    high = ((block[:, :32].reshape(-1, 1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)) & 1) ^ 1
    low = (block[:, 32:96].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3
    codes = (low.view(np.int8) - (high << 2).view(np.int8)).reshape(-1, 256)
    packed = block[:, 96:108]
    nibbles = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    upper = (packed[:, 8:12].reshape(-1, 1, 4) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)) & 3
    factors = (nibbles | (upper.reshape(-1, 16) << 4)).astype(np.int16) - 32
    return Groups(_grouped(codes, 16), _half(block, 108) * factors.astype(np.float32), None)


def _six_bit_factors(packed: U8) -> tuple[U8, U8]:
    """The 8 scales and 8 minimums of 6 bits in the 12 bytes of q4_K and q5_K."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    mins = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales, mins


def _k_groups(codes: U8, block: U8) -> Groups:
    scales, mins = _six_bit_factors(block[:, 4:16])
    scale, minimum = _half(block, 0), _half(block, 2)
    return Groups(_grouped(codes, 8), scale * scales.astype(np.float32), -(minimum * mins.astype(np.float32)))


def _q4_k(block: U8) -> Groups:
    packed = block[:, 16:144].reshape(-1, 4, 1, 32)
    return _k_groups(np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 256), block)


def _q5_k(block: U8) -> Groups:
    packed = block[:, 48:176].reshape(-1, 4, 1, 32)
    low = np.concatenate([packed & 15, packed >> 4], axis=2)
    high = (block[:, 16:48].reshape(-1, 1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 4, 2, 1)) & 1
    return _k_groups((low | (high << 4)).reshape(-1, 256), block)


def _q6_k(block: U8) -> Groups:
    low = block[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = (block[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3
    codes: U8 = (low | (high << 4)).astype(np.uint8, copy=False).reshape(-1, 256)
    factors = block[:, 192:208].view(np.int8).astype(np.float32)
    return Groups(_grouped(_signed(codes, 32), 16), _half(block, 208) * factors, None)


_READERS: dict[BlockType, Callable[[U8], Groups]] = {
    BlockType.Q4_0: _q4_0,
    BlockType.Q4_1: _q4_1,
    BlockType.Q5_0: _q5_0,
    BlockType.Q5_1: _q5_1,
    BlockType.Q8_0: _q8_0,
    BlockType.IQ4_NL: _iq4_nl,
    BlockType.Q2_K: _q2_k,
    BlockType.Q3_K: _q3_k,
    BlockType.Q4_K: _q4_k,
    BlockType.Q5_K: _q5_k,
    BlockType.Q6_K: _q6_k,
}
