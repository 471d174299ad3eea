import numpy as np
import pytest

from gristmill.quant.formats import Format, GroupedCodes
from gristmill.quant.pack import aligned_empty, pack_codes, pack_floats, unpack, unpack_codes

QUANTIZED = [kept for kept in Format if kept.is_quantized]


def random_codes(kept: Format, n: int, k: int) -> GroupedCodes:
    source = np.random.default_rng(int(kept))
    scales = source.normal(0, 0.1, (n, k // kept.group_size)).astype(np.float16)
    mins = source.normal(0, 0.1, scales.shape).astype(np.float16) if kept.has_min else None
    return GroupedCodes(kept, source.integers(0, 1 << kept.code_bits, (n, k), dtype=np.uint8), scales, mins)


@pytest.mark.parametrize("kept", QUANTIZED, ids=lambda kept: kept.name)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 64])
def test_unpacking_inverts_packing(kept: Format, n: int) -> None:
    grouped = random_codes(kept, n, 96)
    packed = pack_codes(grouped)
    again = unpack_codes(packed)
    assert packed.data.size == kept.packed_bytes(n, 96)
    assert np.array_equal(again.codes, grouped.codes)
    assert np.array_equal(again.scales, grouped.scales)
    assert grouped.mins is None or np.array_equal(again.mins, grouped.mins)


@pytest.mark.parametrize("kept", QUANTIZED, ids=lambda kept: kept.name)
def test_every_byte_lies_where_the_layout_says(kept: Format) -> None:
    """Read single weights by the formula of `quant.formats`, independently of the packer's reshapes."""
    n, k = 70, 96
    grouped = random_codes(kept, n, k)
    data, block = pack_codes(grouped).data, kept.block_bytes()
    num_groups = 32 // kept.group_size
    codes_at = num_groups * 64 * (2 if kept.has_min else 1)
    for channel, column in np.random.default_rng(1).integers(0, (n, k), (400, 2)).tolist():
        base = (channel // 32 * (k // 32) + column // 32) * block
        half, c, within = channel % 32 // 16, channel % 16, column % 32
        group = within // kept.group_size
        scale = data[base + group * 64 + channel % 32 * 2 :][:2].view(np.float16)[0]
        assert scale == grouped.scales[channel, column // kept.group_size]
        if kept.code_bits == 4:
            j, rest = within // 8, within % 8
            byte = data[base + codes_at + (2 * j + half) * 64 + c * 4 + rest % 4]
            code = byte >> 4 if rest >= 4 else byte & 15
        else:
            code = data[base + codes_at + (2 * (within // 4) + half) * 64 + c * 4 + within % 4]
        assert code == grouped.codes[channel, column]
        if grouped.mins is not None:
            at = base + num_groups * 64 + group * 64 + channel % 32 * 2
            assert data[at : at + 2].view(np.float16)[0] == grouped.mins[channel, column // kept.group_size]


@pytest.mark.parametrize("kept", QUANTIZED, ids=lambda kept: kept.name)
def test_missing_channels_are_zeros(kept: Format) -> None:
    grouped = random_codes(kept, 33, 64)
    padded = pack_codes(grouped)
    whole = unpack_codes(type(padded)(kept, (64, 64), padded.data))
    assert not whole.codes[33:].any()
    assert not whole.scales[33:].any()
    assert whole.mins is None or not whole.mins[33:].any()


@pytest.mark.parametrize("kept", [Format.F16, Format.BF16, Format.F32], ids=lambda kept: kept.name)
@pytest.mark.parametrize("n", [1, 32, 45])
def test_floats_keep_their_bits(kept: Format, n: int) -> None:
    values = np.random.default_rng(n).normal(size=(n, 37)).astype(np.float32)
    stored = values.astype(np.float16) if kept == Format.F16 else values
    if kept == Format.BF16:
        stored = (values.view(np.uint32) >> 16).astype(np.uint16)
        values = (stored.astype(np.uint32) << 16).view(np.float32)
    packed = pack_floats(stored, kept)
    assert packed.data.size == kept.packed_bytes(n, 37)
    assert np.array_equal(unpack(packed), values if kept != Format.F16 else stored.astype(np.float32))


def test_a_vector_becomes_plain_f32() -> None:
    packed = pack_floats(np.arange(5, dtype=np.float16), Format.F32)
    assert (packed.format, packed.shape) == (Format.F32, (5,))
    assert unpack(packed).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_memory_begins_at_a_cache_line(size: int) -> None:
    assert aligned_empty(size).ctypes.data % 64 == 0
    assert aligned_empty(size).size == size
