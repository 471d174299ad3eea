"""Random blocks of every published type, with scales that a model could have."""

from __future__ import annotations

import numpy as np

from gristmill.quant.block_types import SHAPES, BlockType

_HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}


def random_blocks(kind: BlockType, n: int, k: int, scale: float = 0.1) -> np.ndarray:
    """Bytes of an [n, k] tensor; fp16 scales are uniform in `scale` / 10 .. `scale`."""
    shape, source = SHAPES[kind], np.random.default_rng(int(kind))
    if not shape.format.is_quantized:
        values = source.normal(0, scale, (n, k)).astype(np.float32)
        if kind == BlockType.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
        return values.astype(np.float16 if kind == BlockType.F16 else np.float32).view(np.uint8).reshape(-1)
    raw = source.integers(0, 256, (n * k // shape.width, shape.num_bytes), dtype=np.uint8)
    for at in _HALVES.get(kind.name, (0,)):
        raw[:, at : at + 2] = source.uniform(scale / 10, scale, len(raw)).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return raw.reshape(-1)
