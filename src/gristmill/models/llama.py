"""Llama: pre-norm decoder with rotary, grouped-query attention and a SiLU-gated MLP.

Source: Touvron et al. 2023, and Hugging Face's `LlamaForCausalLM` for names and configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gristmill.graph.builder import Builder, RopeScaling
from gristmill.graph.rope import frequencies
from gristmill.graph.weight_rule import WeightRule
from gristmill.models.architecture import Architecture, Config, Fields

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class LlamaConfig(Config):
    """Sizes of a Llama; its projections may have biases."""

    rope: RopeScaling
    attention_bias: bool
    mlp_bias: bool


def parse(config: Mapping[str, Any], max_model_len: int | None) -> LlamaConfig:
    """Check a configuration. Raises: ModelFileError, UnsupportedArchitecture."""
    fields = Fields(config)
    fields.expect("hidden_act", "silu", ("silu",))
    sizes = fields.decoder()
    return LlamaConfig(
        **sizes,
        rope=frequencies(config, sizes["head_dim"], max_model_len),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )


def build(g: Builder[V], config: LlamaConfig) -> V:
    """Ask for the ops of the whole model."""
    x = g.embed("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = g.rms_norm(x, f"{name}.input_layernorm.weight", eps=config.eps)
        x = g.add(x, _attention(g, normed, layer, config))
        normed = g.rms_norm(x, f"{name}.post_attention_layernorm.weight", eps=config.eps)
        x = g.add(x, _mlp(g, normed, f"{name}.mlp", config))
    x = g.rms_norm(g.logits_rows(x), "model.norm.weight", eps=config.eps)
    return g.linear(x, config.head, config.vocab_size)


def _attention(g: Builder[V], x: V, layer: int, config: LlamaConfig) -> V:
    name, head_dim = f"model.layers.{layer}.self_attn", config.head_dim

    def project(x: V, part: str, width: int) -> V:
        return g.linear(x, f"{name}.{part}.weight", width, bias=f"{name}.{part}.bias" if config.attention_bias else None)

    attended = g.attend(
        g.rope(project(x, "q_proj", config.num_heads * head_dim), head_dim=head_dim, scaling=config.rope),
        g.rope(project(x, "k_proj", config.num_kv_heads * head_dim), head_dim=head_dim, scaling=config.rope),
        project(x, "v_proj", config.num_kv_heads * head_dim),
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
    )
    return project(attended, "o_proj", config.hidden_size)


def _mlp(g: Builder[V], x: V, name: str, config: LlamaConfig) -> V:
    def project(x: V, part: str, width: int) -> V:
        return g.linear(x, f"{name}.{part}.weight", width, bias=f"{name}.{part}.bias" if config.mlp_bias else None)

    gate = project(x, "gate_proj", config.intermediate_size)
    up = project(x, "up_proj", config.intermediate_size)
    return project(g.act_mul(gate, up, kind="silu"), "down_proj", config.hidden_size)


def weight_rules(config: LlamaConfig) -> Mapping[str, WeightRule]:
    """Return no rules: every weight is stored as it is read."""
    return {}


ARCHITECTURE = Architecture(("llama",), parse, build, weight_rules)
