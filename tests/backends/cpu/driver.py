"""Small random models, and a scheduler of a few lines that drives an executable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, Batch, Executable, Limits, SamplingColumns, StepOutput
from gristmill.graph.ir import Graph, Weight
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.quant.formats import Format, PackedTensor

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 200,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
LIMITS = Limits(max_step_tokens=512, max_num_seqs=64, max_model_len=4096, num_blocks=600, num_threads=1)


def make_graph(config: Mapping[str, Any]) -> Graph:
    architecture = load_architecture(config)
    return record(architecture.build, architecture.parse(config, None))


def random_packed(format: Format, shape: tuple[int, ...], rng: np.random.Generator) -> PackedTensor:
    """A weight with random codes; in float formats random values. Sized to keep activations near 1."""
    scale = shape[-1] ** -0.5
    if len(shape) == 1:
        return PackedTensor(Format.F32, shape, (1 + 0.3 * rng.standard_normal(shape, np.float32)).view(np.uint8))
    n, k = shape
    if not format.is_quantized:
        values = scale * rng.standard_normal(format.packed_bytes(n, k) // (format.code_bits // 8), np.float32)
        if format is Format.BF16:
            return PackedTensor(format, shape, np.ascontiguousarray(values.view(np.uint16)[1::2]).view(np.uint8))
        return PackedTensor(format, shape, values.astype(np.float16 if format is Format.F16 else np.float32).view(np.uint8))
    blocks = rng.integers(0, 256, (format.packed_bytes(n, k) // format.block_bytes(), format.block_bytes()), np.uint8)
    num_scales = 32 * (32 // format.group_size)
    step = scale / (4 if format.code_bits == 4 else 64)
    blocks[:, : num_scales * 2] = (step * rng.uniform(0.5, 1.5, (len(blocks), num_scales))).astype(np.float16).view(np.uint8)
    if format.has_min:
        center = -7.5 * step if format.code_bits == 4 else 0.0
        mins = center + scale * 0.1 * rng.standard_normal((len(blocks), num_scales))
        blocks[:, num_scales * 2 : num_scales * 4] = mins.astype(np.float16).view(np.uint8)
    return PackedTensor(format, shape, blocks.reshape(-1))


def random_weights(graph: Graph, format_of: Callable[[Weight], Format], seed: int = 0) -> dict[str, PackedTensor]:
    rng = np.random.default_rng(seed)
    return {name: random_packed(format_of(weight), weight.shape, rng) for name, weight in graph.weights.items()}


def columns(num_rows: int, **given: Any) -> SamplingColumns:
    """Neutral sampling columns, greedy, with what is given in place."""
    values: dict[str, Any] = {
        "temperature": np.zeros(num_rows, np.float32),
        "top_k": np.zeros(num_rows, np.int32),
        "top_p": np.ones(num_rows, np.float32),
        "min_p": np.zeros(num_rows, np.float32),
        "repetition_penalty": np.ones(num_rows, np.float32),
        "presence_penalty": np.zeros(num_rows, np.float32),
        "frequency_penalty": np.zeros(num_rows, np.float32),
        "seed": np.zeros(num_rows, np.uint64),
        "choice": np.zeros(num_rows, np.uint32),
        "position": np.zeros(num_rows, np.uint32),
        "history_prompt_len": np.zeros(num_rows, np.int32),
        "num_logprobs": np.full(num_rows, -1, np.int32),
        "bias_values": np.zeros(0, np.float32),
    }
    values |= {f"{name}_start": np.zeros(num_rows + 1, np.int32) for name in ("bias", "banned", "history")}
    values |= {f"{name}_ids": np.zeros(0, np.int32) for name in ("bias", "banned", "history")}
    return SamplingColumns(**(values | given))


@dataclass
class Sequence_:
    """Tokens known, how many are computed, and where its KV lies."""

    tokens: list[int]
    blocks: list[int]
    computed: int = 0
    chosen: list[tuple[int, bytes]] = field(default_factory=list)  # token and the bits of its logprobs


def make_batch(work: Sequence[tuple[Sequence_, int]], num_logprobs: int) -> tuple[Batch, list[Sequence_]]:
    """One step: for each sequence the next `count` tokens; logits where that reaches its end."""
    token_ids, positions, slots, rows, wanted = [], [], [], [], []
    starts = [0]
    for sequence, count in work:
        at = range(sequence.computed, sequence.computed + count)
        token_ids += [sequence.tokens[p] for p in at]
        positions += at
        slots += [sequence.blocks[p // BLOCK_SIZE_TOKENS] * BLOCK_SIZE_TOKENS + p % BLOCK_SIZE_TOKENS for p in at]
        starts.append(len(token_ids))
        if at.stop == len(sequence.tokens):
            rows.append(len(token_ids) - 1)
            wanted.append(sequence)
    tables = np.zeros((len(work), max(len(s.blocks) for s, _ in work)), np.int32)
    for row, (sequence, _) in zip(tables, work, strict=True):
        row[: len(sequence.blocks)] = sequence.blocks
    sampling = columns(len(rows), num_logprobs=np.full(len(rows), num_logprobs, np.int32))
    return (
        Batch(
            np.array(token_ids, np.int32),
            np.array([positions], np.int32),
            np.array(starts, np.int32),
            np.array([s.computed + count for s, count in work], np.int32),
            (np.array(slots, np.int32),),
            (tables,),
            np.array(rows, np.int32),
            sampling,
        ),
        wanted,
    )


def commit(executable: Executable, num_blocks: int = LIMITS.num_blocks) -> None:
    """Wait until the arena's own thread has committed so many blocks."""
    executable.request_blocks(num_blocks)
    while executable.num_committed_blocks() < num_blocks:
        time.sleep(0)


def run_step(executable: Executable, work: Sequence[tuple[Sequence_, int]], num_logprobs: int = 5) -> StepOutput:
    """Run one step and append what it chose."""
    batch, wanted = make_batch(work, num_logprobs)
    output = executable.collect(executable.submit(batch))
    for sequence, count in work:
        sequence.computed += count
    for row, sequence in enumerate(wanted):
        bits = output.top_ids[row].tobytes() + output.top_logprobs[row].tobytes() + output.logprobs[row].tobytes()
        sequence.tokens.append(int(output.token_ids[row]))
        sequence.chosen.append((int(output.token_ids[row]), bits))
    return output


def generate(
    executable: Executable,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    chunk: int = 512,
    shuffle: int | None = None,
    num_logprobs: int = 5,
) -> list[list[tuple[int, bytes]]]:
    """Greedy continuation of all prompts at once, in chunks, on blocks in order or shuffled by a seed."""
    ids = np.arange(LIMITS.num_blocks) if shuffle is None else np.random.default_rng(shuffle).permutation(LIMITS.num_blocks)
    commit(executable)
    free: Iterator[int] = iter(ids.tolist())
    sequences = []
    for prompt in prompts:
        num_blocks = -(-(len(prompt) + num_tokens) // BLOCK_SIZE_TOKENS)
        sequences.append(Sequence_(list(prompt), [next(free) for _ in range(num_blocks)]))
    while any(len(s.chosen) < num_tokens for s in sequences):
        budget = LIMITS.max_step_tokens
        work = []
        for sequence in sequences:
            count = min(len(sequence.tokens) - sequence.computed, chunk, budget)
            if len(sequence.chosen) < num_tokens and count:
                work.append((sequence, count))
                budget -= count
        run_step(executable, work, num_logprobs)
    return [sequence.chosen for sequence in sequences]
