"""Phi-3 and Phi-4-mini: a Llama stored with fused projections; part of each head may pass unrotated.

The graph reads q, k, v, gate and up as weights of their own: `weight_rules` cuts the stored tensors by rows.
Source: Abdin et al. 2024, and Hugging Face's `Phi3ForCausalLM` for names and configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gristmill.graph.builder import Builder, RopeScaling
from gristmill.graph.rope import frequencies, rope_parameters
from gristmill.graph.weight_rule import WeightRule
from gristmill.models.architecture import Architecture, Config, Fields

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Phi3Config(Config):
    """Sizes of a Phi-3; `window` 0 = every layer sees the whole context."""

    rope: RopeScaling
    window: int


def parse(config: Mapping[str, Any], max_model_len: int | None) -> Phi3Config:
    """Check a configuration. Raises: ModelFileError, UnsupportedArchitecture."""
    fields = Fields(config)
    fields.expect("hidden_act", "silu", ("silu",))
    sizes = fields.decoder(eps=1e-5)
    parameters = rope_parameters(config)
    if "long_factor" in parameters:  # The first releases called longrope "su" or "yarn".
        parameters["rope_type"] = "longrope"
    rope = frequencies({"rope_parameters": parameters}, sizes["head_dim"], max_model_len)
    return Phi3Config(**sizes, rope=rope, window=fields.window())


def build(g: Builder[V], config: Phi3Config) -> V:
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


def _attention(g: Builder[V], x: V, layer: int, config: Phi3Config) -> V:
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


def weight_rules(config: Phi3Config) -> Mapping[str, WeightRule]:
    """Cut the fused tensors: q, k, v rows of `qkv_proj`, gate, up rows of `gate_up_proj`."""
    q_end = config.num_heads * config.head_dim
    k_end = q_end + config.num_kv_heads * config.head_dim
    v_end = k_end + config.num_kv_heads * config.head_dim
    up_end = 2 * config.intermediate_size
    rules: dict[str, WeightRule] = {}
    for layer in range(config.num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for part, rows in (("q", (0, q_end)), ("k", (q_end, k_end)), ("v", (k_end, v_end))):
            rules[f"{attention}.{part}_proj.weight"] = WeightRule(f"{attention}.qkv_proj.weight", rows)
        for part, rows in (("gate", (0, up_end // 2)), ("up", (up_end // 2, up_end))):
            rules[f"{mlp}.{part}_proj.weight"] = WeightRule(f"{mlp}.gate_up_proj.weight", rows)
    return rules


ARCHITECTURE = Architecture(("phi3",), parse, build, weight_rules)
