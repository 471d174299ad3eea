"""Qwen2 and Qwen2.5: a Llama with biases on q, k and v; upper layers may see only a sliding window.

Source: Yang et al. 2024, and Hugging Face's `Qwen2ForCausalLM` for names and configuration.
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
class Qwen2Config(Config):
    """Sizes of a Qwen2 and each layer's window (0 = none)."""

    rope: RopeScaling
    windows: tuple[int, ...]


def parse(config: Mapping[str, Any], max_model_len: int | None) -> Qwen2Config:
    """Check a configuration. Raises: ModelFileError, UnsupportedArchitecture."""
    fields = Fields(config)
    fields.expect("hidden_act", "silu", ("silu",))
    sizes = fields.decoder()
    windows: tuple[int, ...] = (0,) * sizes["num_layers"]
    if fields.flag("use_sliding_window", False):
        first = fields.integer("max_window_layers", 28)
        windows = fields.layer_windows(sizes["num_layers"], lambda layer: layer >= first)
    return Qwen2Config(**sizes, rope=frequencies(config, sizes["head_dim"], max_model_len), windows=windows)


def build(g: Builder[V], config: Qwen2Config) -> V:
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


def _attention(g: Builder[V], x: V, layer: int, config: Qwen2Config) -> V:
    name, head_dim = f"model.layers.{layer}.self_attn", config.head_dim

    def project(part: str, num_heads: int) -> V:
        return g.linear(x, f"{name}.{part}.weight", num_heads * head_dim, bias=f"{name}.{part}.bias")

    attended = g.attend(
        g.rope(project("q_proj", config.num_heads), head_dim=head_dim, scaling=config.rope),
        g.rope(project("k_proj", config.num_kv_heads), head_dim=head_dim, scaling=config.rope),
        project("v_proj", config.num_kv_heads),
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window=config.windows[layer],
    )
    return g.linear(attended, f"{name}.o_proj.weight", config.hidden_size)


def weight_rules(config: Qwen2Config) -> Mapping[str, WeightRule]:
    """Return no rules: every weight is stored as it is read."""
    return {}


ARCHITECTURE = Architecture(("qwen2",), parse, build, weight_rules)
