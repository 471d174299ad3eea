"""Tiny models as files, written by the `gguf` package and by hand, so that our readers meet others' writers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama_weights(seed: int = 0, config: Mapping[str, Any] = CONFIG) -> dict[str, np.ndarray]:
    """Random weights of a Llama, under Hugging Face's names."""
    rng = np.random.default_rng(seed)
    d, f = config["hidden_size"], config["intermediate_size"]
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], d), "model.norm.weight": (d,)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.input_layernorm.weight": (d,), f"{name}.post_attention_layernorm.weight": (d,)}
        shapes |= {f"{name}.self_attn.{part}.weight": (rows, d) for part, rows in (("q_proj", d), ("k_proj", kv), ("v_proj", kv))}
        shapes |= {f"{name}.self_attn.o_proj.weight": (d, d), f"{name}.mlp.gate_proj.weight": (f, d)}
        shapes |= {f"{name}.mlp.up_proj.weight": (f, d), f"{name}.mlp.down_proj.weight": (d, f)}
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def gguf_name(name: str) -> str:
    """GGUF's name of a Llama's tensor."""
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top:
        return top[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{_LAYER_NAMES[part]}.weight"


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """What the converters of GGUF do to q and k of a Llama."""
    return weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_llama(
    path: Path,
    weights: Mapping[str, np.ndarray],
    config: Mapping[str, Any] = CONFIG,
    *,
    extra: Mapping[str, Any] | None = None,
    split: int = 0,
) -> Path:
    """Write a Llama as GGUF; `extra` are more keys, `split` the most tensors of a part (0 = one file)."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    for key, value in (extra or {}).items():
        add_key(writer, key, value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in weights.items():
        part = name.split(".")[-2]
        writer.add_tensor(gguf_name(name), interleaved(weight, heads[part]) if part in heads else weight)
    return close(writer)


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)


def close(writer: gguf.GGUFWriter) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    path = writer.fout[0].name
    writer.close()
    return Path(path)


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> Path:
    """Write a safetensors file: name -> (dtype, array; BF16 as u16)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (kind, array) in tensors.items():
        data = array.tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    return write_raw_safetensors(path, json.dumps(header).encode(), body)


def write_raw_safetensors(path: Path, header: bytes, body: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    return path


def write_folder(
    folder: Path, weights: Mapping[str, np.ndarray], config: Mapping[str, Any] = CONFIG, shards: Sequence[Sequence[str]] = ()
) -> Path:
    """Write a Hugging Face folder in F32; `shards` lists the tensors of each, none = one file."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if not shards:
        write_safetensors(folder / "model.safetensors", {name: ("F32", weight) for name, weight in weights.items()})
        return folder
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / file, {name: ("F32", weights[name]) for name in names})
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
