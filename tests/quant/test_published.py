import gguf
import numpy as np
import pytest
from tests.quant.blocks import random_blocks

from gristmill.quant.block_types import SHAPES, BlockType
from gristmill.quant.pack import pack_codes, unpack, unpack_codes
from gristmill.quant.published import count_lost_scales, dequantize, regroup, take_apart

QUANTIZED = [kind for kind in BlockType if SHAPES[kind].format.is_quantized]


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_values_are_bit_equal_to_the_published_definition(kind: BlockType) -> None:
    raw = random_blocks(kind, 8, 512)
    expected = gguf.quants.dequantize(raw.reshape(8, -1), gguf.GGMLQuantizationType(int(kind)))
    assert np.array_equal(dequantize(kind, raw, 8, 512).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_regrouping_keeps_the_values_within_half_a_unit_of_fp16(kind: BlockType) -> None:
    raw = random_blocks(kind, 5, 512)
    groups = take_apart(kind, raw)
    values = unpack(pack_codes(regroup(kind, raw, 5, 512)))
    exact = dequantize(kind, raw, 5, 512)
    if SHAPES[kind].width == 32:
        assert np.array_equal(values, exact)
        return
    size = np.abs(groups.scales[..., None] * groups.codes)
    if groups.mins is not None:
        size = size + np.abs(groups.mins)[..., None]
    assert np.all(np.abs(values - exact) <= size.reshape(5, 512) * 2.0**-11 * 1.001)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_unpacking_inverts_packing(kind: BlockType) -> None:
    grouped = regroup(kind, random_blocks(kind, 40, 256), 40, 256)
    packed = pack_codes(grouped)
    again = unpack_codes(packed)
    assert packed.data.ctypes.data % 64 == 0
    assert packed.data.size == packed.format.packed_bytes(40, 256)
    assert np.array_equal(again.codes, grouped.codes)
    assert np.array_equal(again.scales, grouped.scales)
    assert (again.mins is None) == (grouped.mins is None)


def test_scales_that_fp16_would_lose_are_counted() -> None:
    """A subnormal factor times a small integer stays exact; a product over 65,504 does not."""
    raw = random_blocks(BlockType.Q6_K, 1, 256)
    raw[192:208] = 3
    raw[208:210] = np.array([3e-6], np.float16).view(np.uint8)
    assert count_lost_scales(BlockType.Q6_K, raw) == 0
    raw[208:210] = np.array([60_000.0], np.float16).view(np.uint8)
    assert count_lost_scales(BlockType.Q6_K, raw) == 16
