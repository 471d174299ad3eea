"""Whole models on every tier against the reference backend, in every format; then real architectures' shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.backends.cpu.driver import LIMITS, LLAMA, Sequence_, commit, make_graph, random_weights, run_step

from gristmill import _native
from gristmill.backends.base import Executable
from gristmill.backends.cpu.backend import CpuBackend
from gristmill.backends.reference import backend as reference
from gristmill.backends.reference.eager import EagerStep
from gristmill.graph.ir import Graph, Weight
from gristmill.quant.formats import Format, PackedTensor

TIERS = [tier for tier in _native.compiled_tiers() if not _native.missing_features(tier)]
VOCAB = LLAMA["vocab_size"]
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2 with biases": LLAMA | {"model_type": "qwen2"},
    "qwen3 with head norms": LLAMA | {"model_type": "qwen3", "head_dim": 64},
    "mistral with a window of 40": LLAMA | {"model_type": "mistral", "sliding_window": 40},
    "gemma3 with local and global layers": LLAMA
    | {"model_type": "gemma3_text", "head_dim": 256, "num_hidden_layers": 6, "sliding_window": 48, "query_pre_attn_scalar": 256}
    | {"hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rms_norm_eps": 1e-6},
    "phi3 with fused weights": LLAMA | {"model_type": "phi3", "tie_word_embeddings": False, "head_dim": 80, "hidden_size": 320},
    "one kv head": LLAMA | {"num_key_value_heads": 1, "head_dim": 128},
    "a head of its own and no grouping": LLAMA | {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "a vocabulary and widths that are no multiple of 32": LLAMA | {"vocab_size": 217, "head_dim": 48},
}


class QuantizingStep(EagerStep):
    """The reference with its linear inputs rounded as the quantized formats round them: int8 per 32 columns."""

    formats: ClassVar[dict[str, Format]] = {}

    def linear(self, x: np.ndarray, weight: str, out_width: int, *, bias: str | None = None) -> np.ndarray:
        if self.formats[weight].is_quantized:
            groups = x.reshape(len(x), -1, 32)
            largest = np.abs(groups).max(-1, keepdims=True)
            codes = np.rint(groups * (np.float32(127) / largest))
            x = (codes * (largest / np.float32(127))).reshape(x.shape)
        return super().linear(x, weight, out_width, bias=bias)


def prompts(vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, vocab_size, n).tolist() for n in (1, 31, 32, 33, 65, 129)]


def logprobs(executable: Executable, vocab_size: int) -> np.ndarray:
    """All logprobs after each prompt, then after one more token that all backends are given alike."""
    commit(executable, 60)
    sequences = [Sequence_(p, list(range(i * 10, i * 10 + 10))) for i, p in enumerate(prompts(vocab_size))]
    tables = []
    for _ in range(2):
        output = run_step(executable, [(s, len(s.tokens) - s.computed) for s in sequences], num_logprobs=vocab_size)
        table = np.empty((len(sequences), vocab_size), np.float32)
        np.put_along_axis(table, output.top_ids.astype(np.int64), output.top_logprobs, 1)
        tables.append(table)
        for sequence in sequences:
            sequence.tokens[-1] = 3
    return np.stack(tables)


def compare(graph: Graph, weights: dict[str, PackedTensor], tier: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """Root mean square difference of the logprobs, in standard deviations of the reference's."""
    monkeypatch.setattr(QuantizingStep, "formats", {name: tensor.format for name, tensor in weights.items()})
    monkeypatch.setattr(reference, "EagerStep", QuantizingStep)
    expected = logprobs(reference.ReferenceBackend().compile(graph, weights, LIMITS), graph.vocab_size)
    executable = CpuBackend(1, tier).compile(graph, weights, LIMITS)
    actual = logprobs(executable, graph.vocab_size)
    executable.close()
    return float(np.sqrt(np.mean((actual - expected) ** 2)) / expected.std())


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("format", Format, ids=lambda f: f.name)
def test_logprobs_are_the_reference_s_in_every_format(format: Format, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph(LLAMA)
    # A code that falls to the other side of a rounding edge moves a value by 1/127 of its group's largest.
    assert compare(graph, random_weights(graph, lambda _: format), tier, monkeypatch) < (0.02 if format.is_quantized else 1e-3)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_logprobs_are_the_reference_s_in_every_architecture(shape: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph(SHAPES[shape])
    assert compare(graph, random_weights(graph, lambda _: Format.F32), tier, monkeypatch) < 1e-3


def mixed_format(weight: Weight) -> Format:
    """What k-quant files do: some matrices of a group in another format, some in floats."""
    for part, format in (
        ("v_proj", Format.Q8_G16),
        ("k_proj", Format.F16),
        ("up_proj", Format.BF16),
        ("down", Format.Q4_G32_MIN),
    ):
        if part in weight.name:
            return format
    return Format.Q8_G32 if "embed" in weight.name else Format.Q4_G32


@pytest.mark.parametrize("tier", TIERS)
def test_formats_may_be_mixed_within_a_layer(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph(LLAMA)
    assert compare(graph, random_weights(graph, mixed_format), tier, monkeypatch) < 0.02


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("window", [0, 300])
def test_a_long_context_on_shuffled_blocks_gives_the_reference_s_logprobs(window: int, num_threads: int) -> None:
    config = LLAMA | {"num_hidden_layers": 1} | ({"model_type": "mistral", "sliding_window": window} if window else {})
    graph = make_graph(config)
    weights = random_weights(graph, lambda _: Format.F32)
    backend = CpuBackend(num_threads)
    executables = (
        reference.ReferenceBackend().compile(graph, weights, LIMITS),
        backend.compile(graph, weights, replace(LIMITS, num_threads=num_threads)),
    )
    expected, actual = (after_a_long_prompt(executable) for executable in executables)
    assert np.abs(actual - expected).max() < 1e-3


def after_a_long_prompt(executable: Executable) -> np.ndarray:
    """All logprobs after 1,500 tokens in chunks, then after one more token."""
    commit(executable, 100)
    rng = np.random.default_rng(3)
    sequence = Sequence_(rng.integers(0, VOCAB, 1500).tolist(), rng.permutation(100)[:50].tolist())
    tables = []
    while len(tables) < 2:
        output = run_step(executable, [(sequence, min(512, len(sequence.tokens) - sequence.computed))], num_logprobs=VOCAB)
        if len(output.token_ids):
            tables.append(np.empty(VOCAB, np.float32))
            tables[-1][output.top_ids[0]] = output.top_logprobs[0]
            sequence.tokens[-1] = 7
    return np.stack(tables)
