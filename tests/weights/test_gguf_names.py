import pytest

from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.weights.gguf_names import canonical_name


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [
        ("llama", "token_embd.weight", "model.embed_tokens.weight"),
        ("llama", "output.weight", "lm_head.weight"),
        ("llama", "output_norm.weight", "model.norm.weight"),
        ("llama", "blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("llama", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("qwen2", "blk.3.attn_k.bias", "model.layers.3.self_attn.k_proj.bias"),
        ("qwen3", "blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
        ("gemma3", "blk.1.ffn_norm.weight", "model.layers.1.pre_feedforward_layernorm.weight"),
        ("gemma3", "blk.1.post_attention_norm.weight", "model.layers.1.post_attention_layernorm.weight"),
        ("gemma3", "blk.1.post_ffw_norm.weight", "model.layers.1.post_feedforward_layernorm.weight"),
        ("phi3", "blk.1.ffn_up.weight", "model.layers.1.mlp.gate_up_proj.weight"),
        ("phi3", "blk.1.attn_qkv.weight", "model.layers.1.self_attn.qkv_proj.weight"),
        ("llama", "rope_freqs.weight", "rope_freqs.weight"),
        ("llama", "blk.0.unknown.weight", "blk.0.unknown.weight"),
    ],
)
def test_names_become_hugging_faces(architecture: str, name: str, expected: str) -> None:
    assert canonical_name(name, architecture) == expected


SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 50}
SIZES |= {"head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "num_key_value_heads": 2}
GGUF_LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm")
GGUF_LAYER += ("ffn_gate", "ffn_up", "ffn_down", "post_attention_norm", "post_ffw_norm")


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3"])
def test_every_weight_that_a_graph_reads_has_a_name_in_gguf(model_type: str) -> None:
    config = {"model_type": model_type, **SIZES}
    architecture = load_architecture(config)
    parsed = architecture.parse(config, None)
    rules = architecture.weight_rules(parsed)
    needed = {rules[name].source if name in rules else name for name in record(architecture.build, parsed).weights}
    kind = {"gemma3_text": "gemma3", "mistral": "llama"}.get(model_type, model_type)
    stored = [f"blk.{layer}.{part}.{end}" for layer in (0, 1) for part in GGUF_LAYER for end in ("weight", "bias")]
    named = {canonical_name(name, kind) for name in [*stored, "token_embd.weight", "output.weight", "output_norm.weight"]}
    assert needed <= named
