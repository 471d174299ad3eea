import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.weights.samples import add_key, close, llama_weights, write_llama

from gristmill.core.errors import ModelFileError, UnsupportedArchitecture
from gristmill.models.registry import load_architecture
from gristmill.weights.gguf import read_gguf
from gristmill.weights.gguf_config import config_of, generation_config_of, shortest

SIZES = {
    "block_count": 1,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-6,
}


def write(path: Path, architecture: str, keys: dict[str, Any], tensors: dict[str, np.ndarray] | None = None) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**SIZES, **keys}.items():
        add_key(writer, key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}", value)
    embedding = {"token_embd.weight": np.zeros((50, 64), np.float32)}
    for name, values in (embedding | (tensors or {})).items():
        writer.add_tensor(name, values)
    return close(writer)


def config(
    tmp_path: Path, architecture: str, keys: dict[str, Any], tensors: dict[str, np.ndarray] | None = None
) -> dict[str, Any]:
    found = config_of(read_gguf(write(tmp_path / "a.gguf", architecture, keys, tensors)))
    return found


def parsed(found: dict[str, Any]) -> Any:
    return load_architecture(found).parse(found, None)


def test_sizes_become_hugging_faces_keys(tmp_path: Path) -> None:
    found = config_of(read_gguf(write_llama(tmp_path / "a.gguf", llama_weights(), extra={"tokenizer.ggml.eos_token_id": 2})))
    assert found == {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "vocab_size": 50,
        "eos_token_id": 2,
    }


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3", "phi3"])
def test_every_architecture_parses_its_translated_config(tmp_path: Path, architecture: str) -> None:
    found = parsed(config(tmp_path, architecture, {"attention.key_length": 32, "rope.freq_base": 5e5}))
    assert (found.num_layers, found.hidden_size, found.num_heads, found.num_kv_heads, found.head_dim) == (1, 64, 4, 2, 32)
    assert (found.vocab_size, found.max_position, found.eps) == (50, 256, 1e-6)


def test_a_head_of_its_own_is_not_tied(tmp_path: Path) -> None:
    assert config(tmp_path, "llama", {})["tie_word_embeddings"] is True
    head = {"output.weight": np.zeros((50, 64), np.float32)}
    assert config(tmp_path, "llama", {}, head)["tie_word_embeddings"] is False


def test_a_llama_with_a_window_is_a_mistral(tmp_path: Path) -> None:
    found = config(tmp_path, "llama", {"attention.sliding_window": 128})
    assert found["model_type"] == "mistral"
    assert parsed(found).window == 128


def test_a_llama_with_experts_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match="llama with experts"):
        parsed(config(tmp_path, "llama", {"expert_count": 8}))


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match="mamba"):
        parsed(config(tmp_path, "mamba", {}))


def test_biases_are_seen_in_the_tensors(tmp_path: Path) -> None:
    bias = {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    assert "attention_bias" not in config(tmp_path, "llama", {})
    assert config(tmp_path, "llama", {}, bias)["attention_bias"] is True


def test_gemma3_scales_its_attention_by_the_head_or_in_the_27b_by_the_width(tmp_path: Path) -> None:
    assert config(tmp_path, "gemma3", {"attention.key_length": 256})["query_pre_attn_scalar"] == 256
    large = config(
        tmp_path, "gemma3", {"attention.key_length": 128, "block_count": 62, "embedding_length": 5376, "attention.head_count": 32}
    )
    assert large["query_pre_attn_scalar"] == 168
    assert large["model_type"] == "gemma3_text"


def test_a_window_of_zero_and_a_qwens_are_no_windows(tmp_path: Path) -> None:
    assert "sliding_window" not in config(tmp_path, "phi3", {"attention.sliding_window": 0})
    assert "sliding_window" not in config(tmp_path, "qwen2", {"attention.sliding_window": 4096})
    assert config(tmp_path, "phi3", {"attention.sliding_window": 99})["sliding_window"] == 99


def test_linear_scaling_is_translated(tmp_path: Path) -> None:
    found = config(tmp_path, "llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    assert found["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert config(tmp_path, "llama", {"rope.scale_linear": 8.0})["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert "rope_scaling" not in config(tmp_path, "llama", {"rope.scaling.type": "none"})


def test_llama3s_frequencies_come_from_their_tensor(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    found = config(tmp_path, "llama", {}, {"rope_freqs.weight": factors})
    assert found["rope_scaling"] == {"rope_type": "gguf_factors", "factors": factors.tolist()}
    plain = parsed(config(tmp_path, "llama", {})).rope.inv_freq
    assert np.allclose(parsed(found).rope.inv_freq, np.array(plain) / factors)


def test_yarn_is_translated_and_its_attention_factor_only_where_it_is_not_the_usual(tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
    found = config(tmp_path, "qwen2", keys)["rope_scaling"]
    assert found == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    scaled = config(tmp_path, "qwen2", {**keys, "rope.scaling.attn_factor": 2.0})["rope_scaling"]
    assert scaled["attention_factor"] == pytest.approx(2.0 * (0.1 * math.log(4) + 1))
    cancelled = config(tmp_path, "qwen2", {**keys, "rope.scaling.yarn_log_multiplier": 1.0})["rope_scaling"]
    assert cancelled["attention_factor"] == pytest.approx(1.0)


def test_longropes_factors_come_from_their_tensors(tmp_path: Path) -> None:
    tensors = {f"rope_factors_{name}.weight": np.full(8, value, np.float32) for name, value in (("long", 4.0), ("short", 1.5))}
    keys = {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.25}
    found = config(tmp_path, "phi3", keys, tensors)["rope_scaling"]
    assert found["long_factor"] == [4.0] * 8
    assert found["short_factor"] == [1.5] * 8
    assert (found["original_max_position_embeddings"], found["attention_factor"]) == (64, 1.25)
    del tensors["rope_factors_short.weight"]
    with pytest.raises(ModelFileError, match="rope_factors_short"):
        config(tmp_path, "phi3", keys, tensors)


def test_factors_of_a_wrong_shape_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="rope_freqs"):
        config(tmp_path, "llama", {}, {"rope_freqs.weight": np.ones((2, 4), np.float32)})


@pytest.mark.parametrize("head_dim", range(16, 257, 16))
def test_a_part_of_a_head_is_rotated_to_the_column(tmp_path: Path, head_dim: int) -> None:
    file = read_gguf(write(tmp_path / "a.gguf", "llama", {"attention.key_length": head_dim}))
    for rotated in range(2, head_dim + 1, 2):
        file.metadata["llama.rope.dimension_count"] = rotated
        assert int(head_dim * config_of(file).get("partial_rotary_factor", 1.0)) == rotated


def test_a_file_without_an_architecture_says_so(tmp_path: Path) -> None:
    file = read_gguf(write(tmp_path / "a.gguf", "llama", {}))
    del file.metadata["general.architecture"]
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        config_of(file)


def test_sampling_defaults_are_kept(tmp_path: Path) -> None:
    file = read_gguf(write(tmp_path / "a.gguf", "llama", {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}))
    assert generation_config_of(file) == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("value", [1e-5, 0.1, 10_000.0, 1e300, -1e300, math.inf, -math.inf, 5, True, "x", None])
def test_the_shortest_decimal_is_found_and_nothing_else_changed(value: Any) -> None:
    stored = float(np.float32(value)) if isinstance(value, float) and abs(value) < 1e30 else value
    assert shortest(stored) == value


def test_not_a_number_stays_one() -> None:
    assert math.isnan(shortest(math.nan))
