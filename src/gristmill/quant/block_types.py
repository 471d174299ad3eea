"""The published block types of GGUF files: how many weights a block holds, and how many bytes.

Source: ggml's block definitions (ggml-common.h, gguf.md); the numbers are GGUF's tensor type ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gristmill.quant.formats import Format


class BlockType(IntEnum):
    """Stored types that can be loaded; safetensors' F32, F16 and BF16 have the same names."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    BF16 = 30

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class BlockShape:
    """`width` weights in `num_bytes` bytes, executed as `format`."""

    width: int
    num_bytes: int
    format: Format


SHAPES: dict[BlockType, BlockShape] = {
    BlockType.F32: BlockShape(1, 4, Format.F32),
    BlockType.F16: BlockShape(1, 2, Format.F16),
    BlockType.BF16: BlockShape(1, 2, Format.BF16),
    BlockType.Q4_0: BlockShape(32, 18, Format.Q4_G32),
    BlockType.Q4_1: BlockShape(32, 20, Format.Q4_G32_MIN),
    BlockType.Q5_0: BlockShape(32, 22, Format.Q8_G32),
    BlockType.Q5_1: BlockShape(32, 24, Format.Q8_G32_MIN),
    BlockType.Q8_0: BlockShape(32, 34, Format.Q8_G32),
    BlockType.IQ4_NL: BlockShape(32, 18, Format.Q8_G32),
    BlockType.Q2_K: BlockShape(256, 84, Format.Q4_G16_MIN),
    BlockType.Q3_K: BlockShape(256, 110, Format.Q4_G16),
    BlockType.Q4_K: BlockShape(256, 144, Format.Q4_G32_MIN),
    BlockType.Q5_K: BlockShape(256, 176, Format.Q8_G32_MIN),
    BlockType.Q6_K: BlockShape(256, 210, Format.Q8_G16),
}


def stored_bytes(kind: BlockType, shape: tuple[int, ...]) -> int:
    """Bytes of a stored tensor; its last dimension is a multiple of the block's width."""
    count = 1
    for size in shape:
        count *= size
    return count // SHAPES[kind].width * SHAPES[kind].num_bytes
