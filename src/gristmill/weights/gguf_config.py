"""GGUF metadata in the shape of Hugging Face's config.json. Values are checked where they are read: in models/.

Source: ggml's docs/gguf.md for the keys; llama.cpp's use of them where a key's meaning is not written down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gristmill.core.errors import ModelFileError
from gristmill.quant.block_types import BlockType
from gristmill.quant.published import dequantize
from gristmill.weights.gguf import GgufFile, GgufTensor

_CHECK = "check the file's metadata, or take the model from another source."
# GGUF's architecture name -> Hugging Face's model_type; any other name is passed on, to be refused by name.
_MODEL_TYPES = {"gemma3": "gemma3_text"}
_SIZES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}
_SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "penalty_repeat"}
_GEMMA3_27B_LAYERS = 62
_MAX_FACTORS = 512
_F32_MAX = float(np.finfo(np.float32).max)


def config_of(file: GgufFile) -> dict[str, Any]:
    """Translate metadata into config.json's keys. Raises: ModelFileError naming the key or tensor."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelFileError(f"{file.paths[0].name} has no general.architecture.", _CHECK)
    keys = _Keys(file.metadata, architecture)
    config: dict[str, Any] = {"model_type": _model_type(keys)}
    config |= {name: keys.get(key) for name, key in _SIZES.items() if keys.get(key) is not None}
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    if (embedding := file.tensors.get("token_embd.weight")) is not None:
        config["vocab_size"] = embedding.shape[0]
    for name in ("bos_token_id", "eos_token_id"):
        if (token_id := file.metadata.get(f"tokenizer.ggml.{name}")) is not None:
            config[name] = token_id
    config |= {name: True for name, tensor in _BIASES.items() if tensor in file.tensors}
    config |= _window(keys) | _rope(keys, file)
    return config | (_gemma3(config) if architecture == "gemma3" else {})


def generation_config_of(file: GgufFile) -> dict[str, Any]:
    """Return the sampling defaults that newer files carry (general.sampling.*)."""
    found = {name: file.metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    return {name: shortest(value) for name, value in found.items() if value is not None}


def shortest(value: Any) -> Any:
    """Return the decimal that was meant by a number stored as f32: 1e-05, not 9.99999974737875e-06."""
    if not isinstance(value, float) or not abs(value) <= _F32_MAX:
        return value
    rounded = np.float32(value)
    return float(str(rounded)) if float(rounded) == value else value


_BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"}


class _Keys:
    """The metadata of one architecture, its keys without their prefix."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.architecture = architecture
        self._metadata = metadata

    def get(self, key: str) -> Any:
        return shortest(self._metadata.get(f"{self.architecture}.{key}"))

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ModelFileError(f"the key {self.architecture}.{key} is {value!r}, not a positive number.", _CHECK)
        return value


def _model_type(keys: _Keys) -> str:
    """GGUF calls a Mistral `llama`, and so a Mixtral; the latter must not be served as a dense model."""
    if keys.get("expert_count"):
        return f"{keys.architecture} with experts"
    if keys.architecture == "llama" and keys.get("attention.sliding_window"):
        return "mistral"
    return _MODEL_TYPES.get(keys.architecture, keys.architecture)


def _window(keys: _Keys) -> dict[str, Any]:
    window = keys.get("attention.sliding_window")
    if not window or keys.architecture in ("qwen2", "qwen3"):  # these store it and do not use it
        return {}
    return {"sliding_window": window}


def _gemma3(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF has no key for the scale of attention: it is the head's width, but for the 27B."""
    layers, heads, width = (config.get(name) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    if layers == _GEMMA3_27B_LAYERS and isinstance(heads, int) and heads > 0 and isinstance(width, int):
        return {"query_pre_attn_scalar": width // heads}
    return {"query_pre_attn_scalar": config.get("head_dim", 256)}


def _rope(keys: _Keys, file: GgufFile) -> dict[str, Any]:
    found = _rotated(keys)
    kind = keys.get("rope.scaling.type")
    if (factors := file.tensors.get("rope_freqs.weight")) is not None:
        found["rope_scaling"] = {"rope_type": "gguf_factors", "factors": _factors(factors)}
    elif "rope_factors_long.weight" in file.tensors or "rope_factors_short.weight" in file.tensors:
        found["rope_scaling"] = _longrope(keys, file.tensors)
    elif kind == "yarn":
        found["rope_scaling"] = _yarn(keys)
    elif kind not in (None, "none"):
        found["rope_scaling"] = {"rope_type": kind, "factor": keys.get("rope.scaling.factor")}
    elif (scale := keys.get("rope.scale_linear")) not in (None, 1):
        found["rope_scaling"] = {"rope_type": "linear", "factor": scale}
    return found


def _rotated(keys: _Keys) -> dict[str, Any]:
    if keys.get("rope.dimension_count") is None:
        return {}
    head_dim = keys.get("attention.key_length")
    if head_dim is None:
        head_dim = keys.number("embedding_length") // keys.number("attention.head_count")
    rotated = keys.number("rope.dimension_count")
    if head_dim <= 0 or rotated == head_dim:
        return {}
    factor = rotated / head_dim
    # Rounding must not lose a column: int(head_dim * factor) has to be `rotated` again.
    return {"partial_rotary_factor": factor if head_dim * factor >= rotated else math.nextafter(factor, 2.0)}


def _yarn(keys: _Keys) -> dict[str, Any]:
    factor = keys.number("rope.scaling.factor")
    found = {"rope_type": "yarn", "factor": factor}
    for name, key in (
        ("original_max_position_embeddings", "original_context_length"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ):
        if (value := keys.get(f"rope.scaling.{key}")) is not None:
            found[name] = value
    own, log_multiplier = keys.get("rope.scaling.attn_factor"), keys.get("rope.scaling.yarn_log_multiplier")
    if own is not None or log_multiplier:
        strength = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        if log_multiplier and factor > 1:
            strength /= 0.1 * keys.number("rope.scaling.yarn_log_multiplier") * math.log(factor) + 1.0
        found["attention_factor"] = strength * keys.number("rope.scaling.attn_factor", 1.0)
    return found


def _longrope(keys: _Keys, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": "longrope"}
    for name in ("long", "short"):
        if (tensor := tensors.get(f"rope_factors_{name}.weight")) is None:
            raise ModelFileError(f"the tensor rope_factors_{name}.weight is missing, but its counterpart is there.", _CHECK)
        found[f"{name}_factor"] = _factors(tensor)
    if (original := keys.get("rope.scaling.original_context_length")) is not None:
        found["original_max_position_embeddings"] = original
    if (own := keys.get("rope.scaling.attn_factor")) is not None:
        found["attention_factor"] = own
    return found


def _factors(tensor: GgufTensor) -> list[float]:
    if tensor.type != BlockType.F32 or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_FACTORS:
        raise ModelFileError(
            f"the tensor {tensor.name!r} is {tensor.type} {tensor.shape}; F32 of one dimension up to {_MAX_FACTORS} is possible.",
            _CHECK,
        )
    return [float(value) for value in dequantize(tensor.type, tensor.raw, 1, tensor.shape[0])[0]]
