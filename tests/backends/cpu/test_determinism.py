"""Equal bits, not tolerance: tokens and logprobs never depend on how a step is cut, placed, batched or threaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.cpu.driver import LIMITS, LLAMA, Sequence_, commit, generate, make_graph, random_weights, run_step

from gristmill import _native
from gristmill.backends.cpu.backend import CpuBackend
from gristmill.backends.cpu.executable import CpuExecutable
from gristmill.quant.formats import Format, PackedTensor

TIERS = [tier for tier in _native.compiled_tiers() if not _native.missing_features(tier)]
NUM_TOKENS = 3
SLIDING = LLAMA | {"model_type": "mistral", "sliding_window": 40}


@cache
def weights(format: Format, window: bool = False) -> dict[str, PackedTensor]:
    return random_weights(make_graph(SLIDING if window else LLAMA), lambda _: format)


@cache
def compiled(tier: str, num_threads: int, format: Format, window: bool = False) -> CpuExecutable:
    graph = make_graph(SLIDING if window else LLAMA)
    backend = CpuBackend(num_threads, tier)
    return backend.compile(graph, weights(format, window), replace(LIMITS, num_threads=num_threads))


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, LLAMA["vocab_size"], n).tolist() for n in (1, 31, 32, 33, 65, 257)]


@cache
def alone(tier: str, format: Format, window: bool) -> Sequence[Sequence[tuple[int, bytes]]]:
    """Each prompt by itself, one thread, the prompt in one step."""
    executable = compiled(tier, 1, format, window)
    return [generate(executable, [prompt], NUM_TOKENS)[0] for prompt in prompts()]


@pytest.mark.parametrize("window", [False, True], ids=["full", "sliding"])
@pytest.mark.parametrize(
    "format", [Format.Q4_G32, Format.Q4_G32_MIN, Format.Q8_G32, Format.F16, Format.F32], ids=lambda f: f.name
)
@pytest.mark.parametrize("tier", TIERS)
def test_bits_do_not_depend_on_threads_batches_chunks_or_blocks(tier: str, format: Format, window: bool) -> None:
    expected = alone(tier, format, window)
    for num_threads in (1, 2, 3, 5):
        executable = compiled(tier, num_threads, format, window)
        assert generate(executable, prompts(), NUM_TOKENS) == expected
        assert generate(executable, prompts(), NUM_TOKENS, chunk=20, shuffle=num_threads) == expected
    assert [generate(executable, [p], NUM_TOKENS, chunk=7, shuffle=1)[0] for p in prompts()] == expected


@pytest.mark.parametrize("tier", TIERS)
def test_a_prompt_fed_token_by_token_gives_the_bits_of_one_step(tier: str) -> None:
    executable = compiled(tier, 2, Format.Q4_G32_MIN)
    assert generate(executable, prompts()[:5], NUM_TOKENS, chunk=1) == list(alone(tier, Format.Q4_G32_MIN, False)[:5])


def test_eight_threads_on_any_machine_finish_and_give_the_same_bits() -> None:
    executable = compiled(TIERS[-1], 8, Format.Q4_G32)
    assert generate(executable, prompts(), NUM_TOKENS) == alone(TIERS[-1], Format.Q4_G32, False)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_mixtures_of_prefill_and_decode_give_the_bits_of_each_alone(data: st.DataObject) -> None:
    tier = TIERS[-1]
    executable = compiled(tier, data.draw(st.sampled_from((1, 2, 3))), Format.Q4_G32)
    commit(executable)
    ids = np.random.default_rng(data.draw(st.integers(0, 2**16))).permutation(LIMITS.num_blocks).tolist()
    sequences = [Sequence_(list(p), [ids.pop() for _ in range(len(p) // 32 + 2)]) for p in prompts()]
    while unfinished := [s for s in sequences if len(s.chosen) < NUM_TOKENS]:
        chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique_by=id))
        work = [(s, data.draw(st.integers(1, min(len(s.tokens) - s.computed, 100)))) for s in chosen]
        run_step(executable, work)
    assert [s.chosen for s in sequences] == alone(tier, Format.Q4_G32, False)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("format", [Format.Q4_G32, Format.F32], ids=lambda f: f.name)
def test_a_row_of_nan_ends_that_row_and_no_other(tier: str, format: Format) -> None:
    graph = make_graph(LLAMA | {"tie_word_embeddings": False})
    tensors = random_weights(graph, lambda w: Format.F32 if "embed" in w.name else format)
    name = "model.embed_tokens.weight"
    table = tensors[name].data.view(np.float32).reshape(-1, graph.weights[name].shape[1], 32).copy()
    table[5 // 32, 40, 5 % 32] = np.nan
    tensors[name] = PackedTensor(Format.F32, tensors[name].shape, table.reshape(-1).view(np.uint8))
    executable = CpuBackend(2, tier).compile(graph, tensors, replace(LIMITS, num_threads=2))
    commit(executable)

    def step(*prompts: list[int]) -> tuple[list[bool], list[bytes]]:
        sequences = [Sequence_(list(p), [4 * i, 4 * i + 1]) for i, p in enumerate(prompts)]
        output = run_step(executable, [(s, len(s.tokens)) for s in sequences])
        return output.is_finite.tolist(), [s.chosen[0][1] for s in sequences]

    finite, bits = step([1, 2, 3], [1, 5, 3], [4] * 40)
    assert finite == [True, False, True]
    assert [bits[0], bits[2]] == [step([1, 2, 3])[1][0], step([4] * 40)[1][0]]
    # The blocks that held NaN serve the next sequence as if they were fresh.
    assert step([9], [1, 2, 3])[1][1] == bits[0]
