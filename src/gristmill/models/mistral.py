"""Mistral: a Llama whose layers may all see only a sliding window.

Source: Jiang et al. 2023, and Hugging Face's `MistralForCausalLM` for names and configuration.
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
class MistralConfig(Config):
    """Sizes of a Mistral; `window` 0 = every layer sees the whole context."""

    rope: RopeScaling
    window: int


def parse(config: Mapping[str, Any], max_model_len: int | None) -> MistralConfig:
    """Check a configuration. Raises: ModelFileError, UnsupportedArchitecture."""
    fields = Fields(config)
    fields.expect("hidden_act", "silu", ("silu",))
    sizes = fields.decoder()
    return MistralConfig(**sizes, rope=frequencies(config, sizes["head_dim"], max_model_len), window=fields.window())


def build(g: Builder[V], config: MistralConfig) -> V:
    """Ask for the ops of the whole model."""
    x = g.embed("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = g.rms_norm(x, f"{name}.input_layernorm.weight", eps=config.eps)
        x = g.add(x, _attention(g, normed, layer, config))
        normed = g.rms_norm(x, f"{name}.post_attention_layernorm.weight", eps=config.eps)
        gate = g.linear(normed, f"{name}.mlp.gate_proj.weight", config.intermediate_size)
        up = g.linear(normed, f"{name}.mlp.up_proj.weight", config.intermediate_size)
        x = g.add(x, g.linear(g.act_mul(gate, up, kind="silu"), f"{name}.mlp.down_proj.weight", config.hidden_size))
    x = g.rms_norm(g.logits_rows(x), "model.norm.weight", eps=config.eps)
    return g.linear(x, config.head, config.vocab_size)


def _attention(g: Builder[V], x: V, layer: int, config: MistralConfig) -> V:
    name, head_dim = f"model.layers.{layer}.self_attn", config.head_dim
    q = g.linear(x, f"{name}.q_proj.weight", config.num_heads * head_dim)
    k = g.linear(x, f"{name}.k_proj.weight", config.num_kv_heads * head_dim)
    attended = g.attend(
        g.rope(q, head_dim=head_dim, scaling=config.rope),
        g.rope(k, head_dim=head_dim, scaling=config.rope),
        g.linear(x, f"{name}.v_proj.weight", config.num_kv_heads * head_dim),
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window=config.window,
    )
    return g.linear(attended, f"{name}.o_proj.weight", config.hidden_size)


def weight_rules(config: MistralConfig) -> Mapping[str, WeightRule]:
    """Return no rules: every weight is stored as it is read."""
    return {}


ARCHITECTURE = Architecture(("mistral",), parse, build, weight_rules)
