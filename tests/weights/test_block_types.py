"""Logits of a model stored in each block type, against the same model in floats as the published definition reads it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.backends.batches import Chunk, make_batch
from tests.quant.blocks import random_blocks
from tests.weights.samples import gguf_name, llama_weights

from gristmill.backends.base import Limits
from gristmill.backends.reference.backend import ReferenceBackend
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.quant.block_types import SHAPES, BlockType
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.load import load

CONFIG = {
    "num_hidden_layers": 1,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIG |= {"vocab_size": 64}
PROMPT = [1, 5, 9, 33, 60, 2, 2, 17]


def write_model(path: Path, kind: BlockType, *, as_floats: bool) -> Path:
    """A Llama whose matrices are random blocks of `kind`, or the floats that the gguf package makes of them."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    stored_type = gguf.GGMLQuantizationType(int(kind))
    for name, weight in llama_weights(config=CONFIG).items():
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name), np.abs(weight))
            continue
        raw = random_blocks(kind, *weight.shape, scale=0.01).reshape(len(weight), -1)
        if as_floats:
            writer.add_tensor(gguf_name(name), gguf.quants.dequantize(raw, stored_type).astype(np.float32).reshape(weight.shape))
        else:
            writer.add_tensor(gguf_name(name), raw, raw_dtype=stored_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(path: Path) -> np.ndarray:
    checkpoint = open_checkpoint(path)
    architecture = load_architecture(checkpoint.config)
    config = architecture.parse(checkpoint.config, None)
    graph = record(architecture.build, config)
    weights = load(checkpoint, graph.weights, architecture.weight_rules(config))
    executable = ReferenceBackend("f32").compile(graph, weights, Limits(64, 1, 64, 4, 1))
    return executable.logits(make_batch(Chunk(PROMPT, 0, [0], wants_rows=len(PROMPT))))


@pytest.mark.parametrize("kind", list(BlockType), ids=str)
def test_logits_are_those_of_the_published_values(tmp_path: Path, kind: BlockType) -> None:
    ours = logits(write_model(tmp_path / "blocks.gguf", kind, as_floats=False))
    floats = logits(write_model(tmp_path / "floats.gguf", kind, as_floats=True))
    assert np.isfinite(floats).all()
    # Types of 32 and floats hold the values exactly; products of k-quants' scales are rounded to fp16 once.
    tolerance = 1e-5 if SHAPES[kind].width <= 32 else 2e-3
    assert np.abs(ours - floats).max() <= tolerance * np.abs(floats).max()
