from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gristmill.quant.block_types import SHAPES, BlockType, stored_bytes
from gristmill.repository.packing import pack_natively
from gristmill.weights.pack_rows import StoredRows, pack_rows


def _rows(kind: BlockType, row_ids: np.ndarray | None) -> StoredRows:
    source = np.random.default_rng(int(kind))
    n, k = 48, 512
    if SHAPES[kind].width == 1:
        raw = source.uniform(0.5, 1.0, (n, k)).astype(np.float16 if kind == BlockType.F16 else np.float32)
        data = raw.view(np.uint8).reshape(-1) if kind != BlockType.BF16 else raw.view(np.uint16)[:, ::2].tobytes()
        return StoredRows("w", kind, np.frombuffer(bytes(data), np.uint8)[: stored_bytes(kind, (n, k // 2))], n, k // 2, row_ids)
    raw = source.integers(0, 60, stored_bytes(kind, (n, k)), dtype=np.uint8)
    return StoredRows("w", kind, raw, n, k, row_ids)


@pytest.mark.parametrize("kind", list(BlockType), ids=lambda kind: kind.name)
@pytest.mark.parametrize("order", [None, "reversed"])
def test_the_native_packer_equals_the_definition_byte_for_byte(kind: BlockType, order: str | None) -> None:
    row_ids = None if order is None else np.arange(48, dtype=np.int64)[::-1].copy()
    rows = _rows(kind, row_ids)
    expected, made = pack_rows(rows), pack_natively(rows)
    assert (made.format, made.shape) == (expected.format, expected.shape)
    assert np.array_equal(made.data, expected.data)
    assert made.data.ctypes.data % 64 == 0


def test_the_default_model_packs_alike(smollm2_path: Path) -> None:
    from gristmill.weights.checkpoint import open_checkpoint

    stored = open_checkpoint(smollm2_path).stored("model.layers.3.mlp.down_proj.weight")
    rows = StoredRows("w", stored.type, stored.raw, *stored.shape, None)
    assert np.array_equal(pack_natively(rows).data, pack_rows(rows).data)
