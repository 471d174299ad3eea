import numpy as np
import pytest
from tests.quant.blocks import random_blocks

from gristmill.core.errors import ModelFileError
from gristmill.quant.block_types import SHAPES, BlockType
from gristmill.quant.pack import pack_codes, pack_floats, unpack
from gristmill.quant.published import dequantize, regroup
from gristmill.weights import pack_rows as module
from gristmill.weights.pack_rows import StoredRows, pack_rows


@pytest.mark.parametrize("kind", list(BlockType), ids=str)
def test_packing_in_batches_gives_the_bytes_of_packing_at_once(kind: BlockType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_WEIGHTS", 1)  # a batch is one tile of 32 rows
    raw = random_blocks(kind, 70, 256)
    packed = pack_rows(StoredRows("t", kind, raw, 70, 256, None))
    if SHAPES[kind].format.is_quantized:
        expected = pack_codes(regroup(kind, raw, 70, 256))
    else:
        values = raw.view({BlockType.F32: np.float32, BlockType.F16: np.float16, BlockType.BF16: np.uint16}[kind])
        expected = pack_floats(values.reshape(70, 256), SHAPES[kind].format)
    assert packed.format == expected.format
    assert np.array_equal(packed.data, expected.data)


@pytest.mark.parametrize("kind", list(BlockType), ids=str)
def test_rows_are_taken_in_the_order_asked_for(kind: BlockType) -> None:
    raw = random_blocks(kind, 6, 256)
    straight = unpack(pack_rows(StoredRows("t", kind, raw, 6, 256, None)))
    order = np.array([5, 0, 3], np.int64)
    assert np.array_equal(unpack(pack_rows(StoredRows("t", kind, raw, 3, 256, order))), straight[order])
    assert np.allclose(straight, dequantize(kind, raw, 6, 256), rtol=2e-3, atol=2e-3)


def test_scales_that_fp16_cannot_hold_are_an_error_that_names_the_tensor() -> None:
    raw = random_blocks(BlockType.Q6_K, 2, 256)
    raw[208:210] = np.array([60_000.0], np.float16).view(np.uint8)
    with pytest.raises(ModelFileError, match=r"the tensor some\.weight has 1"):
        pack_rows(StoredRows("some.weight", BlockType.Q6_K, raw, 2, 256, None))
