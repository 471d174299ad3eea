import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.weights.samples import CONFIG, llama_weights, write_folder, write_llama, write_safetensors

from gristmill.core.errors import ModelFileError
from gristmill.graph.ir import Weight
from gristmill.graph.recorder import record
from gristmill.graph.weight_rule import WeightRule
from gristmill.models.registry import load_architecture
from gristmill.quant.formats import Format, PackedTensor
from gristmill.quant.pack import unpack
from gristmill.weights.checkpoint import Checkpoint, open_checkpoint
from gristmill.weights.load import load, packed_bytes


def load_model(checkpoint: Checkpoint) -> dict[str, PackedTensor]:
    architecture = load_architecture(checkpoint.config)
    config = architecture.parse(checkpoint.config, None)
    return load(checkpoint, record(architecture.build, config).weights, architecture.weight_rules(config))


def folder_of(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> Checkpoint:
    (path / "config.json").write_text("{}")
    write_safetensors(path / "model.safetensors", tensors)
    return open_checkpoint(path)


def test_a_gguf_file_and_a_hugging_face_folder_of_one_model_load_to_the_same_bytes(tmp_path: Path) -> None:
    weights = llama_weights()
    from_gguf = load_model(open_checkpoint(write_llama(tmp_path / "a.gguf", weights)))
    from_folder = load_model(open_checkpoint(write_folder(tmp_path / "m", weights)))
    assert from_gguf.keys() == from_folder.keys()
    for name, packed in from_gguf.items():
        assert packed.format == from_folder[name].format == Format.F32
        assert np.array_equal(packed.data, from_folder[name].data), name
        assert np.array_equal(unpack(packed), weights[name]), name


def test_weights_of_one_source_share_one_copy(tmp_path: Path) -> None:
    checkpoint = folder_of(tmp_path, {"embedding": ("F32", np.ones((4, 32), np.float32))})
    weights = {name: Weight(name, (4, 32)) for name in ("embedding", "head")}
    rules = {"head": WeightRule("embedding")}
    packed = load(checkpoint, weights, rules)
    assert packed["head"] is packed["embedding"]
    assert packed_bytes(checkpoint, weights, rules) == packed["head"].data.size


def test_f16_stays_f16_and_bf16_stays_bf16(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    half = rng.normal(size=(5, 7)).astype(np.float16)
    brain = (rng.normal(size=(5, 7)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    checkpoint = folder_of(tmp_path, {"half": ("F16", half), "brain": ("BF16", brain)})
    packed = load(checkpoint, {name: Weight(name, (5, 7)) for name in ("half", "brain")}, {})
    assert (packed["half"].format, packed["brain"].format) == (Format.F16, Format.BF16)
    assert np.array_equal(unpack(packed["half"]), half.astype(np.float32))
    assert np.array_equal(unpack(packed["brain"]).view(np.uint32) >> 16, brain)


def test_fused_tensors_are_cut_by_rows(tmp_path: Path) -> None:
    fused = np.arange(10 * 32, dtype=np.float32).reshape(10, 32)
    checkpoint = folder_of(tmp_path, {"fused": ("F32", fused), "bias": ("F32", fused[:, 0].copy())})
    weights = {"a": Weight("a", (6, 32)), "b": Weight("b", (4, 32)), "c": Weight("c", (6,)), "d": Weight("d", (4,))}
    rules = {"a": WeightRule("fused", (0, 6)), "b": WeightRule("fused", (6, 10))}
    rules |= {"c": WeightRule("bias", (0, 6)), "d": WeightRule("bias", (6, 10))}
    packed = load(checkpoint, weights, rules)
    assert np.array_equal(unpack(packed["a"]), fused[:6])
    assert np.array_equal(unpack(packed["b"]), fused[6:])
    assert np.array_equal(unpack(packed["d"]), fused[6:, 0])
    assert packed_bytes(checkpoint, weights, rules) == sum(tensor.data.size for tensor in packed.values())


def test_one_is_added_to_norms_that_are_stored_without_it_and_only_to_those(tmp_path: Path) -> None:
    weights = llama_weights()
    norm = "model.norm.weight"
    rules = {norm: WeightRule(norm, add_one=True)}
    needed = {norm: Weight(norm, (64,))}
    from_folder = load(open_checkpoint(write_folder(tmp_path / "m", weights)), needed, rules)
    from_gguf = load(open_checkpoint(write_llama(tmp_path / "a.gguf", weights)), needed, rules)
    assert np.array_equal(unpack(from_folder[norm]), weights[norm] + np.float32(1))
    assert np.array_equal(unpack(from_gguf[norm]), weights[norm])


def test_a_missing_tensor_and_a_wrong_shape_are_errors_with_the_facts(tmp_path: Path) -> None:
    checkpoint = folder_of(tmp_path, {"w": ("F32", np.ones((4, 32), np.float32))})
    for act in (load, packed_bytes):
        with pytest.raises(ModelFileError, match="no tensor other"):
            act(checkpoint, {"other": Weight("other", (4, 32))}, {})
        with pytest.raises(ModelFileError, match="the tensor w has the shape 4x32; the configuration needs 5x32"):
            act(checkpoint, {"w": Weight("w", (5, 32))}, {})
        with pytest.raises(ModelFileError, match="4x32; the configuration needs 128"):
            act(checkpoint, {"w": Weight("w", (128,))}, {})
        with pytest.raises(ModelFileError, match="4x32; the configuration needs 3x32"):
            act(checkpoint, {"w": Weight("w", (3, 32))}, {"w": WeightRule("w", (0, 3))})


def test_every_packed_tensor_begins_at_a_cache_line(tmp_path: Path) -> None:
    packed = load_model(open_checkpoint(write_llama(tmp_path / "a.gguf", llama_weights())))
    assert all(tensor.data.ctypes.data % 64 == 0 for tensor in packed.values())


def test_loading_the_default_model_takes_little_more_memory_than_its_result(smollm2_path: Path) -> None:
    """The largest tensor is 30 MB; what is in flight beside the result is a batch of rows of it."""
    checkpoint = open_checkpoint(smollm2_path)
    tracemalloc.start()
    try:
        packed = load_model(checkpoint)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sizes = [tensor.data.size for tensor in packed.values()]
    assert peak <= sum(sizes) + max(sizes)
    assert CONFIG["tie_word_embeddings"]
    assert "lm_head.weight" not in packed
