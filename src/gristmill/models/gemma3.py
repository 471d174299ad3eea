"""Gemma 3: local and global layers with rope bases of their own, four norms a layer, heads normalised.

Source: Gemma Team 2025, and Hugging Face's `Gemma3ForCausalLM` for names and configuration. Of the models that
also see images (`model_type` gemma3) the language model is served.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gristmill.graph.builder import Builder, RopeScaling
from gristmill.graph.recorder import record
from gristmill.graph.rope import frequencies
from gristmill.graph.weight_rule import WeightRule
from gristmill.models.architecture import Architecture, Config, Fields, rounded_to_bf16

V = TypeVar("V")

_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_DEFAULTS = {"vocab_size": 262_208, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
_DEFAULTS |= {"max_position_embeddings": 131_072, "sliding_window": 4096, "query_pre_attn_scalar": 256}


@dataclass(frozen=True, slots=True)
class Gemma3Config(Config):
    """Sizes of a Gemma 3; a layer with a window (not 0) is local and uses `local_rope`."""

    global_rope: RopeScaling
    local_rope: RopeScaling
    windows: tuple[int, ...]
    scale: float  # of attention scores
    attention_bias: bool
    logits_softcap: float  # 0 = none
    embedding_scale: float  # sqrt(width), rounded to the type the model is stored in, as Hugging Face does
    stored_prefix: str  # before every stored name


def parse(config: Mapping[str, Any], max_model_len: int | None) -> Gemma3Config:
    """Check a configuration. Raises: ModelFileError, UnsupportedArchitecture."""
    text = Fields(config).mapping("text_config") or config
    fields = Fields({**_DEFAULTS, **config, **text})
    fields.expect("hidden_activation", "gelu_pytorch_tanh", ("gelu_pytorch_tanh",))
    fields.refuse("use_bidirectional_attention")
    fields.refuse("attn_logit_softcapping")  # Hugging Face has the key and ignores it; no published model sets it.
    sizes = fields.decoder(tied_head=True)
    scale = math.sqrt(sizes["hidden_size"])
    nested = Fields(fields.mapping("rope_parameters"))
    local = {"rope_theta": text.get("rope_local_base_freq", 10_000.0), **nested.mapping("sliding_attention")}
    whole = {"rope_theta": text.get("rope_theta", 1_000_000.0), **fields.mapping("rope_scaling")}
    whole |= {"max_position_embeddings": sizes["max_position"], **nested.mapping("full_attention")}
    pattern = fields.integer("sliding_window_pattern", 6)
    return Gemma3Config(
        **sizes,
        global_rope=frequencies({"rope_parameters": whole}, sizes["head_dim"], max_model_len),
        local_rope=frequencies({"rope_parameters": local}, sizes["head_dim"], max_model_len),
        windows=fields.layer_windows(sizes["num_layers"], lambda layer: (layer + 1) % pattern != 0),
        scale=fields.number("query_pre_attn_scalar") ** -0.5,
        attention_bias=fields.flag("attention_bias", False),
        logits_softcap=fields.number("final_logit_softcapping") if text.get("final_logit_softcapping") else 0.0,
        embedding_scale=rounded_to_bf16(scale) if "bfloat16" in fields.dtype() else scale,
        stored_prefix="language_model." if "text_config" in config else "",
    )


def build(g: Builder[V], config: Gemma3Config) -> V:
    """Ask for the ops of the whole model."""
    x = g.embed("model.embed_tokens.weight", config.vocab_size, config.hidden_size, scale=config.embedding_scale)
    for layer in range(config.num_layers):
        before, after, before_mlp, after_mlp = (f"model.layers.{layer}.{norm}.weight" for norm in _NORMS)
        attended = _attention(g, g.rms_norm(x, before, eps=config.eps), layer, config)
        x = g.add(x, g.rms_norm(attended, after, eps=config.eps))
        name, normed = f"model.layers.{layer}.mlp", g.rms_norm(x, before_mlp, eps=config.eps)
        gate = g.linear(normed, f"{name}.gate_proj.weight", config.intermediate_size)
        up = g.linear(normed, f"{name}.up_proj.weight", config.intermediate_size)
        mixed = g.linear(g.act_mul(gate, up, kind="gelu_tanh"), f"{name}.down_proj.weight", config.hidden_size)
        x = g.add(x, g.rms_norm(mixed, after_mlp, eps=config.eps))
    x = g.rms_norm(g.logits_rows(x), "model.norm.weight", eps=config.eps)
    logits = g.linear(x, config.head, config.vocab_size)
    return g.softcap(logits, cap=config.logits_softcap) if config.logits_softcap else logits


def _attention(g: Builder[V], x: V, layer: int, config: Gemma3Config) -> V:
    name, head_dim, window = f"model.layers.{layer}.self_attn", config.head_dim, config.windows[layer]
    rope = config.local_rope if window else config.global_rope

    def project(x: V, part: str, width: int) -> V:
        return g.linear(x, f"{name}.{part}.weight", width, bias=f"{name}.{part}.bias" if config.attention_bias else None)

    def rotated(x: V, norm: str) -> V:
        normed = g.rms_norm(x, f"{name}.{norm}.weight", eps=config.eps, head_dim=head_dim)
        return g.rope(normed, head_dim=head_dim, scaling=rope)

    attended = g.attend(
        rotated(project(x, "q_proj", config.num_heads * head_dim), "q_norm"),
        rotated(project(x, "k_proj", config.num_kv_heads * head_dim), "k_norm"),
        project(x, "v_proj", config.num_kv_heads * head_dim),
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=head_dim,
        scale=config.scale,
        window=window,
    )
    return project(attended, "o_proj", config.hidden_size)


def weight_rules(config: Gemma3Config) -> Mapping[str, WeightRule]:
    """Add 1 to every norm, and find the language model inside a model that also sees images."""
    names = record(build, config).weights
    return {name: WeightRule(config.stored_prefix + name, add_one=name.endswith("norm.weight")) for name in names}


ARCHITECTURE = Architecture(("gemma3", "gemma3_text"), parse, build, weight_rules)
