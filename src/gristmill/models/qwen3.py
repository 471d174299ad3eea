"""Qwen3: a Llama that normalises each head of q and k before rotating it; its head width is free.

Source: Yang et al. 2025, and Hugging Face's `Qwen3ForCausalLM` for names and configuration.
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
class Qwen3Config(Config):
    """Sizes of a Qwen3, whether its attention has biases, and each layer's window (0 = none)."""

    rope: RopeScaling
    attention_bias: bool
    windows: tuple[int, ...]


def parse(config: Mapping[str, Any], max_model_len: int | None) -> Qwen3Config:
    """Check a configuration. Raises: ModelFileError, UnsupportedArchitecture."""
    fields = Fields({"head_dim": 128, **config})
    fields.expect("hidden_act", "silu", ("silu",))
    sizes = fields.decoder()
    windows: tuple[int, ...] = (0,) * sizes["num_layers"]
    if fields.flag("use_sliding_window", False):
        first = fields.integer("max_window_layers", 28)
        windows = fields.layer_windows(sizes["num_layers"], lambda layer: layer >= first)
    rope = frequencies(config, sizes["head_dim"], max_model_len)
    return Qwen3Config(**sizes, rope=rope, attention_bias=fields.flag("attention_bias", False), windows=windows)


def build(g: Builder[V], config: Qwen3Config) -> V:
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


def _attention(g: Builder[V], x: V, layer: int, config: Qwen3Config) -> V:
    name, head_dim = f"model.layers.{layer}.self_attn", config.head_dim

    def project(x: V, part: str, width: int) -> V:
        return g.linear(x, f"{name}.{part}.weight", width, bias=f"{name}.{part}.bias" if config.attention_bias else None)

    def rotated(x: V, norm: str) -> V:
        normed = g.rms_norm(x, f"{name}.{norm}.weight", eps=config.eps, head_dim=head_dim)
        return g.rope(normed, head_dim=head_dim, scaling=config.rope)

    attended = g.attend(
        rotated(project(x, "q_proj", config.num_heads * head_dim), "q_norm"),
        rotated(project(x, "k_proj", config.num_kv_heads * head_dim), "k_norm"),
        project(x, "v_proj", config.num_kv_heads * head_dim),
        layer=layer,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window=config.windows[layer],
    )
    return project(attended, "o_proj", config.hidden_size)


def weight_rules(config: Qwen3Config) -> Mapping[str, WeightRule]:
    """Return no rules: every weight is stored as it is read."""
    return {}


ARCHITECTURE = Architecture(("qwen3",), parse, build, weight_rules)
