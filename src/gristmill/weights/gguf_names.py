"""GGUF's tensor names and Hugging Face's, which are ours. Source: gguf.md and the conversion tables of GGUF's authors."""

from __future__ import annotations

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3 = {"ffn_up": "mlp.gate_up_proj"}
_BY_ARCHITECTURE = {"gemma3": _GEMMA, "phi3": _PHI3}


def canonical_name(name: str, architecture: str) -> str:
    """Return Hugging Face's name of a GGUF tensor; one without a counterpart keeps its own."""
    parts = name.split(".")
    layer = {**_LAYER, **_BY_ARCHITECTURE.get(architecture, {})}
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in layer:
        return f"model.layers.{parts[1]}.{layer[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _TOP:
        return f"{_TOP[parts[0]]}.{parts[1]}"
    return name
