"""Makes the committed goldens: tiny seeded models of every architecture, and what Hugging Face computes from them.

Run by `make golden`, in an environment that has torch and transformers. Each golden is a Hugging Face folder under
tests/data/goldens (config.json, model.safetensors) with golden.safetensors beside: `prompt_ids` [P], `logits`
[P, V] of the whole prompt, `greedy_ids` [64]; its metadata has `max_model_len`. Everything is computed in f32.

A seed is used only if, at every greedy step, the two most likely tokens lie further apart than ten times the
tolerance of the tests, so that the ids cannot flip; seeds are tried in ascending order.
Paths of the real models' GGUFs as arguments make their goldens instead: logits of the last prompt row (the 32
largest, and every 64th), and greedy ids.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1] / "tests" / "data" / "goldens"
PROMPT_LEN, NUM_GREEDY = 40, 64
TOLERANCE = 1e-3  # of the tests, relative to the largest logit of the row
MARGIN = 10 * TOLERANCE
REAL_MARGIN = 1e-4  # a hundred times the error that f32 in another order of summation makes on the real model
MAX_SEEDS = 4000
MIN_DISTINCT = 8  # a run that repeats one token proves little


@dataclass(frozen=True)
class Recipe:
    """One tiny model: Hugging Face's config class and its values over `SMALL`."""

    name: str
    config_class: str
    values: dict[str, Any]
    dtype: torch.dtype = torch.bfloat16
    max_model_len: int = 128


SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"rope_theta": 10000.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}


def longrope(rotated: int, original: int) -> dict[str, Any]:
    """Rope parameters with factors that differ for every pair."""
    pairs = rotated // 2
    short = [1.0 + 0.02 * i for i in range(pairs)]
    long = [1.0 + 0.3 * i for i in range(pairs)]
    parameters = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "rope_theta": 10000.0}
    return parameters | {"original_max_position_embeddings": original}


def recipes() -> Iterator[Recipe]:
    """Every architecture, rope kind, head width, window and bias that is supported."""
    yield Recipe("llama", "LlamaConfig", {})
    yield Recipe("llama-f16", "LlamaConfig", {"head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}, torch.float16)
    yield Recipe("llama-biases", "LlamaConfig", {"head_dim": 80, "attention_bias": True, "mlp_bias": True})
    yield Recipe("llama-llama3", "LlamaConfig", {"head_dim": 128, "rope_parameters": LLAMA3, "hidden_size": 32})
    yield Recipe("llama-linear", "LlamaConfig", {"rope_parameters": LINEAR, "hidden_size": 32})
    yield Recipe("llama-yarn", "LlamaConfig", {"rope_parameters": YARN, "hidden_size": 32})
    yield Recipe("mistral", "MistralConfig", {"head_dim": 96, "sliding_window": 9})
    tied = {"tie_word_embeddings": True}
    yield Recipe("qwen2", "Qwen2Config", tied | {"hidden_size": 32}, torch.float32)
    window = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    yield Recipe("qwen2-window", "Qwen2Config", window | {"num_hidden_layers": 2})
    yield Recipe("qwen3", "Qwen3Config", {"head_dim": 128, "hidden_size": 32})
    gemma = {"head_dim": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "sliding_window": 8}
    gemma |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 144}
    gemma |= {"num_attention_heads": 1, "vocab_size": 96}
    yield Recipe("gemma3", "Gemma3TextConfig", gemma | tied)
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0}
    nested = {"full_attention": linear, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}
    gemma |= {"rope_parameters": nested, "final_logit_softcapping": 5.0, "head_dim": 64}
    yield Recipe("gemma3-softcap", "Gemma3TextConfig", gemma | tied)
    phi = {"hidden_size": 192, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": None}
    yield Recipe("phi3", "Phi3Config", phi | {"sliding_window": 16, "vocab_size": 64})
    phi = {"hidden_size": 80, "num_attention_heads": 1, "intermediate_size": 64, "head_dim": None}
    for name, original in (("phi3-longrope-short", 64), ("phi3-longrope-long", 32)):
        values = phi | {"rope_parameters": longrope(60, original) | {"partial_rotary_factor": 0.75}}
        values |= {"partial_rotary_factor": 0.75, "original_max_position_embeddings": original}
        yield Recipe(name, "Phi3Config", values, max_model_len=64 if original == 64 else 128)


def build(recipe: Recipe) -> Any:
    """A model in f32 whose weights `fill` will set."""
    values = {key: value for key, value in (SMALL | recipe.values).items() if value is not None or key == "pad_token_id"}
    config = getattr(transformers, recipe.config_class)(**values, attn_implementation="eager")
    config.dtype = recipe.dtype
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if hasattr(model.model.embed_tokens, "embed_scale"):  # Loaded in its own type, the scale is rounded to it.
        scale = model.model.embed_tokens.embed_scale
        model.model.embed_tokens.embed_scale = scale.to(recipe.dtype).float()
    return model


def fill(model: Any, recipe: Recipe, seed: int) -> None:
    """Random weights, rounded to the recipe's type, strong enough for attention to matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(_scaled(name, noise, recipe).to(recipe.dtype).float())


def _scaled(name: str, noise: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    if noise.dim() == 1:
        is_norm, is_gemma = "norm" in name, recipe.config_class.startswith("Gemma")
        return 0.2 * noise + (1.0 if is_norm and not is_gemma else 0.0)
    if "embed_tokens" in name:  # A tied head would repeat its input if the embedding outweighed what layers add.
        return noise * (0.1 if recipe.values.get("tie_word_embeddings") else 1.0)
    return noise * (1.5 / noise.shape[1] ** 0.5)


def greedy(model: Any, prompt: list[int], margin: float, count: int = NUM_GREEDY) -> list[int] | None:
    """The most likely continuation; None as soon as the two best tokens are closer than `margin`."""
    ids, cache = [], None
    tokens = torch.tensor([prompt])
    for _ in range(count):
        output = model(tokens, past_key_values=cache, use_cache=True)
        row, cache = output.logits[0, -1], output.past_key_values
        best = torch.topk(row, 2)
        if best.values[0] - best.values[1] < margin * row.abs().max():
            return None
        ids.append(int(best.indices[0]))
        tokens = torch.tensor([[ids[-1]]])
    return ids


def make(recipe: Recipe) -> None:
    """Find a seed and write the folder."""
    model = build(recipe)
    for seed in range(MAX_SEEDS):
        fill(model, recipe, seed)
        prompt = np.random.default_rng(seed).integers(3, model.config.vocab_size, PROMPT_LEN).tolist()
        ids = greedy(model, prompt, MARGIN)
        if ids is not None and len(set(ids)) >= MIN_DISTINCT:
            _write(recipe, model, prompt, ids)
            print(f"{recipe.name}: seed {seed}, {len(set(ids))} distinct ids", flush=True)
            return
    raise SystemExit(f"{recipe.name}: no seed below {MAX_SEEDS} has the margin")


def _write(recipe: Recipe, model: Any, prompt: list[int], ids: list[int]) -> None:
    folder = ROOT / recipe.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tied = model.config.tie_word_embeddings
    state = {name: t.to(recipe.dtype).contiguous() for name, t in model.state_dict().items()}
    state = {name: t for name, t in state.items() if not (tied and name == "lm_head.weight")}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | {"dtype": str(recipe.dtype).removeprefix("torch.")}
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    logits = model(torch.tensor([prompt])).logits[0]
    _save_golden(folder / "golden.safetensors", prompt, ids, {"logits": logits}, recipe.max_model_len)


def _save_golden(path: Path, prompt: list[int], ids: list[int], tensors: dict[str, torch.Tensor], max_model_len: int) -> None:
    tensors = tensors | {"prompt_ids": torch.tensor(prompt), "greedy_ids": torch.tensor(ids)}
    kept = {name: (t.float() if t.is_floating_point() else t.int()).contiguous() for name, t in tensors.items()}
    save_file(kept, path, {"max_model_len": str(max_model_len)})


def make_from_gguf(path: Path, prompts: dict[str, list[int]]) -> None:
    """The golden of a real model in a GGUF: every tensor dequantized by the published definition, run by Hugging Face."""
    model = load_gguf(path)
    for name, prompt in prompts.items():
        ids = greedy(model, prompt, 0.0)
        assert ids is not None
        rows = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :]
        best = torch.topk(rows[:-1], 2).values
        margin = float(((best[:, 0] - best[:, 1]) / rows[:-1].abs().amax(1)).min())
        assert margin > REAL_MARGIN, f"{name}: two tokens are only {margin:.1e} apart; take another prompt"
        top = torch.topk(rows[0], 32)
        tensors = {"top_logits": top.values, "max_abs_logit": rows[0].abs().max().reshape(1)}
        tensors |= {"top_ids": top.indices, "logits": rows[0][::64]}
        folder = ROOT / path.stem.lower()
        folder.mkdir(parents=True, exist_ok=True)
        _save_golden(folder / f"{name}.safetensors", prompt, ids, tensors, 8192)
        print(f"{path.stem} {name}: the smallest margin is {margin:.1e}", flush=True)


def load_gguf(path: Path) -> Any:
    """Hugging Face's model of a GGUF, in f32: q and k rows of a llama put back in order, gemma's norms less one."""
    import gguf

    reader = gguf.GGUFReader(path)
    values = {key.partition(".")[2]: field.contents() for key, field in reader.fields.items()}
    tensors = {t.name: torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type))) for t in reader.tensors}
    is_gemma = values["architecture"] == "gemma3"
    sizes = {name: values[key] for name, key in _SIZES.items()} | {"vocab_size": len(tensors["token_embd.weight"])}
    sizes["tie_word_embeddings"] = "output.weight" not in tensors
    if is_gemma:
        sizes |= {"head_dim": values["attention.key_length"], "sliding_window": values["attention.sliding_window"]}
        config = transformers.Gemma3TextConfig(**sizes, rope_theta=values["rope.freq_base"])
    else:
        rope = {"rope_type": "default", "rope_theta": values["rope.freq_base"]}
        config = transformers.LlamaConfig(**sizes, rope_parameters=rope)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    heads = {} if is_gemma else {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {_hf_name(name, is_gemma): _unpermuted(name, tensor, heads) for name, tensor in tensors.items()}
    state = {name: t - 1 if is_gemma and name.endswith("norm.weight") else t for name, t in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_PARTS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
_PARTS |= {f"attn_{p}": f"self_attn.{p}_proj" for p in "qkv"} | {f"ffn_{p}": f"mlp.{p}_proj" for p in ("gate", "up", "down")}
_WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_WHOLE |= {"output.weight": "lm_head.weight"}
_GEMMA = {"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA |= {"post_attention_norm": "post_attention_layernorm"} | {f"attn_{p}_norm": f"self_attn.{p}_norm" for p in "qk"}


def _hf_name(name: str, is_gemma: bool) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{(_PARTS | (_GEMMA if is_gemma else {}))[part]}.{kind}"


def _unpermuted(name: str, tensor: torch.Tensor, heads: dict[str, int]) -> torch.Tensor:
    """GGUF pairs neighbouring rows of a head (2i, 2i + 1); Hugging Face pairs (i, i + half)."""
    count = next((number for part, number in heads.items() if f".{part}." in name), 0)
    if not count:
        return tensor
    pairs = tensor.reshape(count, tensor.shape[0] // count // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)


def main(arguments: list[str]) -> None:
    """Make the goldens of the recipes named (all if none); a .gguf path makes the real model's."""
    names = [argument for argument in arguments if not argument.endswith(".gguf")]
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    for recipe in recipes():
        if not arguments or recipe.name in names:
            make(recipe)
    for path in (Path(argument) for argument in arguments if argument.endswith(".gguf")):
        make_from_gguf(path, REAL_PROMPTS[path.stem])


# Token ids of: the beginning of a story, of a Python function, a question inside the chat template, a fact.
REAL_PROMPTS: dict[str, dict[str, list[int]]] = {
    "smollm2-135m": {
        "story": [6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28, 665, 4161],
        "code": [1604, 3987, 46477, 24, 94, 42, 464, 25, 4722, 464, 42, 472, 1620, 14362, 260, 304, 29, 373, 1230, 7996, 198],
        "chat": [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
    },
    "gemma3-270m": {
        "story": [2, 14946, 3324, 496, 990, 236764, 528, 496, 1944, 9744, 684, 506, 5442, 236764, 993, 11742],
        "fact": [2, 818, 5279, 529, 7001, 563],
    },
}

if __name__ == "__main__":
    main(sys.argv[1:])
