from gristmill.quant.block_types import SHAPES, BlockType, stored_bytes
from gristmill.quant.formats import Format


def test_no_quantized_format_takes_more_than_nine_bits_a_weight() -> None:
    for kept in Format:
        if kept.is_quantized:
            assert kept.packed_bytes(64, 256) * 8 / (64 * 256) <= 9.0


def test_every_published_type_has_the_execution_format_of_the_architecture() -> None:
    expected = {
        "Q4_0": "Q4_G32",
        "Q4_1": "Q4_G32_MIN",
        "Q4_K": "Q4_G32_MIN",
        "Q5_0": "Q8_G32",
        "Q8_0": "Q8_G32",
        "IQ4_NL": "Q8_G32",
    }
    expected |= {"Q5_1": "Q8_G32_MIN", "Q5_K": "Q8_G32_MIN", "Q6_K": "Q8_G16", "Q3_K": "Q4_G16", "Q2_K": "Q4_G16_MIN"}
    expected |= {"F32": "F32", "F16": "F16", "BF16": "BF16"}
    assert {str(kind): shape.format.name for kind, shape in SHAPES.items()} == expected


def test_stored_bytes_count_whole_blocks() -> None:
    assert stored_bytes(BlockType.Q4_K, (3, 512)) == 3 * 2 * 144
    assert stored_bytes(BlockType.F16, (5,)) == 10


def test_channels_are_padded_to_whole_tiles() -> None:
    assert Format.Q4_G32.packed_bytes(33, 32) == 2 * 576
    assert Format.F32.packed_bytes(1, 3) == 32 * 3 * 4
