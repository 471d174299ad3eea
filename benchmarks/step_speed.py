"""How fast the CPU backend's steps are, with no engine around them.

usage: python benchmarks/step_speed.py [MODEL] [--threads 1 2] [--isa auto] [--steps 200] [--context 128]

MODEL is a reference as `gristmill run` takes it; without one, random 4-bit weights in SmolLM2-135M's shape.
Decode: one sequence, one token a step. Batch 16: sixteen of them. Prefill: 512 tokens in one step. Times are the
median of the steps; "native" is the time inside the call, "whole" has building nothing and Python's part of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, Batch, Executable, Limits, SamplingColumns
from gristmill.backends.cpu.backend import CpuBackend
from gristmill.graph.ir import Graph
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.quant.formats import Format, PackedTensor

SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
PREFILL_TOKENS = 512


@dataclass(frozen=True)
class Times:
    """Medians over the steps, in nanoseconds."""

    native_ns: float
    whole_ns: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--context", type=int, default=128)
    arguments = parser.parse_args()
    graph, weights = load_model(arguments.model) if arguments.model else random_model()
    print(f"{'threads':8}{'figure':16}{'tok/s':>10}{'native us':>12}{'whole us':>12}")
    for threads in arguments.threads:
        backend = CpuBackend(threads, arguments.isa)
        num_blocks = 16 * -(-(arguments.context + arguments.steps) // BLOCK_SIZE_TOKENS) + 16
        executable = backend.compile(graph, weights, Limits(PREFILL_TOKENS, 16, 8192, num_blocks, threads))
        wait_for_blocks(executable, num_blocks)
        measure(executable, threads, arguments.steps, arguments.context)
        executable.close()


def measure(executable: Executable, threads: int, steps: int, context: int) -> None:
    for name, num_seqs, query_len, count in (
        ("decode", 1, 1, steps),
        ("batch 16", 16, 1, max(steps // 4, 5)),
        (f"prefill {PREFILL_TOKENS}", 1, PREFILL_TOKENS, max(steps // 20, 3)),
    ):
        times = time_steps(executable, num_seqs, query_len, context if query_len == 1 else query_len, count)
        rate = num_seqs * query_len / times.whole_ns * 1e9
        print(f"{threads:<8}{name:16}{rate:10,.0f}{times.native_ns / 1e3:12,.0f}{times.whole_ns / 1e3:12,.0f}", flush=True)


def time_steps(executable: Executable, num_seqs: int, query_len: int, context: int, count: int) -> Times:
    batch = make_batch(num_seqs, query_len, context)
    native, whole = [], []
    for _ in range(count + 3):
        start = time.perf_counter_ns()
        output = executable.collect(executable.submit(batch))
        whole.append(time.perf_counter_ns() - start)
        native.append(output.device_ns)
    return Times(statistics.median(native[3:]), statistics.median(whole[3:]))


def make_batch(num_seqs: int, query_len: int, context: int) -> Batch:
    """`num_seqs` sequences of `context` tokens, the last `query_len` of them computed in this step."""
    blocks_each = -(-context // BLOCK_SIZE_TOKENS)
    tables = np.arange(num_seqs * blocks_each, dtype=np.int32).reshape(num_seqs, blocks_each)
    positions = np.tile(np.arange(context - query_len, context, dtype=np.int32), num_seqs)
    blocks = np.repeat(tables, query_len, axis=0)[np.arange(len(positions)), positions // BLOCK_SIZE_TOKENS]
    starts = np.arange(num_seqs + 1, dtype=np.int32) * query_len
    return Batch(
        token_ids=np.random.default_rng(0).integers(0, 200, len(positions)).astype(np.int32),
        positions=positions[None],
        query_start=starts,
        context_len=np.full(num_seqs, context, np.int32),
        slot_mapping=((blocks * BLOCK_SIZE_TOKENS + positions % BLOCK_SIZE_TOKENS).astype(np.int32),),
        block_tables=(tables,),
        logits_rows=starts[1:] - 1,
        sampling=greedy(num_seqs),
    )


def greedy(num_rows: int) -> SamplingColumns:
    zeros, ones = np.zeros(num_rows, np.float32), np.ones(num_rows, np.float32)
    none, starts, no_ids = np.zeros(num_rows, np.int32), np.zeros(num_rows + 1, np.int32), np.zeros(0, np.int32)
    return SamplingColumns(
        temperature=zeros,
        top_k=none,
        top_p=ones,
        min_p=zeros,
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
        seed=np.zeros(num_rows, np.uint64),
        choice=np.zeros(num_rows, np.uint32),
        position=np.zeros(num_rows, np.uint32),
        bias_start=starts,
        bias_ids=no_ids,
        bias_values=np.zeros(0, np.float32),
        banned_start=starts,
        banned_ids=no_ids,
        history_start=starts,
        history_prompt_len=none,
        history_ids=no_ids,
        num_logprobs=np.full(num_rows, -1, np.int32),
    )


def wait_for_blocks(executable: Executable, count: int) -> None:
    executable.request_blocks(count)
    while executable.num_committed_blocks() < count:
        time.sleep(0.01)


def load_model(reference: str) -> tuple[Graph, dict[str, PackedTensor]]:
    from gristmill.repository.packing import pack_natively
    from gristmill.weights.checkpoint import open_checkpoint
    from gristmill.weights.load import load
    from gristmill.weights.references import resolve

    checkpoint = open_checkpoint(resolve(reference))
    architecture = load_architecture(checkpoint.config)
    config = architecture.parse(checkpoint.config, None)
    graph = record(architecture.build, config)
    return graph, load(checkpoint, graph.weights, architecture.weight_rules(config), pack_natively)


def random_model() -> tuple[Graph, dict[str, PackedTensor]]:
    from gristmill import _native

    architecture = load_architecture(SMOLLM2_135M)
    graph = record(architecture.build, architecture.parse(SMOLLM2_135M, None))
    rng = np.random.default_rng(0)
    weights = {}
    for name, weight in graph.weights.items():
        if len(weight.shape) == 1:
            weights[name] = PackedTensor(Format.F32, weight.shape, np.ones(weight.shape, np.float32).view(np.uint8))
            continue
        data = _native.aligned_empty(Format.Q4_G32.packed_bytes(*weight.shape))
        blocks = data.reshape(-1, Format.Q4_G32.block_bytes())
        blocks[:] = rng.integers(0, 256, blocks.shape, np.uint8)
        blocks[:, :64] = np.full(32, weight.shape[1] ** -0.5 / 4, np.float16).view(np.uint8)
        weights[name] = PackedTensor(Format.Q4_G32, weight.shape, data)
    return graph, weights


if __name__ == "__main__":
    main()
