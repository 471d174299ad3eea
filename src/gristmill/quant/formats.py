"""The execution formats: what kernels read, and the one stored layout ("B32") that they share.

Published formats are repacked into these at load. A packed matrix [N, K] is cut into column tiles of 32
output channels; a tile is a run of blocks of 32 k, each block contiguous: fp16 scale[32] for each group of
the block, then fp16 min[32] for each group (formats with a minimum), then the codes. N is padded to a
multiple of 32 with zeros. The same bytes serve every row count and every instruction set.

Codes of a block, for h in 0..1 (channels 16h .. 16h+15), c in 0..15, i in 0..3, the lines in the order given:
    q4   8 lines of 64 bytes, line 2j+h (j = 0..3): byte c*4+i holds k = 8j+i in its low nibble and
         k = 8j+4+i in its high nibble; a code u in 0..15 means (u - 8) * scale, or u * scale + min.
    q8   16 lines of 64 bytes, line 2j+h (j = 0..7): byte c*4+i is k = 4j+i; a byte u means
         (u - 128) * scale, or (u - 128) * scale + min.
With groups of 16 the scales are [2][32]: first those of k 0..15, then those of k 16..31 (minimums alike).
Float formats: tile of 32 channels, then k, then 32 values: [N/32][K][32]; K need not be a multiple of 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

TILE_CHANNELS = 32
BLOCK_K = 32


class Format(IntEnum):
    """Execution formats. The numbers are shared with `native/kernels/formats.h`."""

    Q4_G32 = 0
    Q4_G32_MIN = 1
    Q4_G16 = 2
    Q4_G16_MIN = 3
    Q8_G32 = 4
    Q8_G32_MIN = 5
    Q8_G16 = 6
    F16 = 7
    BF16 = 8
    F32 = 9

    @property
    def is_quantized(self) -> bool:
        """True for codes with scales; their activations are quantized to int8 per 32 k."""
        return self <= Format.Q8_G16

    @property
    def code_bits(self) -> int:
        """Bits of one weight's code, scales not counted."""
        return {Format.F16: 16, Format.BF16: 16, Format.F32: 32}.get(self, 4 if self <= Format.Q4_G16_MIN else 8)

    @property
    def group_size(self) -> int:
        """How many k share a scale; 0 for float formats."""
        if not self.is_quantized:
            return 0
        return 16 if self in (Format.Q4_G16, Format.Q4_G16_MIN, Format.Q8_G16) else 32

    @property
    def has_min(self) -> bool:
        """True if each group has a minimum beside its scale."""
        return self in (Format.Q4_G32_MIN, Format.Q4_G16_MIN, Format.Q8_G32_MIN)

    def block_bytes(self) -> int:
        """Bytes of one block of 32 channels x 32 k (quantized formats)."""
        assert self.is_quantized
        num_scales = (BLOCK_K // self.group_size) * (2 if self.has_min else 1)
        return num_scales * TILE_CHANNELS * 2 + TILE_CHANNELS * BLOCK_K * self.code_bits // 8

    def packed_bytes(self, n: int, k: int) -> int:
        """Bytes of a packed [n, k] matrix."""
        num_tiles = -(-n // TILE_CHANNELS)
        if self.is_quantized:
            assert k % BLOCK_K == 0, "quantized formats need K to be a multiple of 32"
            return num_tiles * (k // BLOCK_K) * self.block_bytes()
        return num_tiles * TILE_CHANNELS * k * self.code_bits // 8


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """A quantized matrix before packing, the shape in which formats are compared and tested.

    Dequantized: (codes - zero) * scales + mins, with zero = 8 (q4) or 128 (q8); 0 for q4 with a minimum.
    """

    format: Format
    codes: NDArray[np.uint8]  # [N, K]
    scales: NDArray[np.float16]  # [N, K / group]
    mins: NDArray[np.float16] | None  # [N, K / group]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A weight as a backend reads it.

    Matrices: `data` is u8 [packed_bytes] in layout B32, 64-byte aligned. Vectors (norm weights, biases):
    format F32, shape [D], `data` the plain little-endian f32 bytes.
    """

    format: Format
    shape: tuple[int, ...]  # [N, K] or [D]
    data: NDArray[np.uint8]
