"""Equal fingerprint + request + seed = equal bytes: text and the float bits of the logprobs, on the real model."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gristmill import _native
from gristmill.core.sampling_params import SamplingParams
from gristmill.llm import LLM, RequestOutput

LENGTHS = (1, 31, 32, 33, 257, 3000)
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, logprobs=3, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=7, max_tokens=20, logprobs=3, ignore_eos=True)
BLOCK = 32
# Portable and avx2, as far as this machine runs them: on the best tier run all other tests.
TIERS = [tier for tier in _native.compiled_tiers()[:2] if not _native.missing_features(tier)]

Answer = tuple[str, tuple[int, ...], bytes]


def _prompts() -> list[list[int]]:
    source = random.Random(1)
    return [[source.randrange(100, 40_000) for _ in range(length)] for length in LENGTHS]


PROMPTS = _prompts()


def _answer(output: RequestOutput) -> Answer:
    choice = output.outputs[0]
    assert choice.logprobs is not None
    assert len(choice.logprobs) == len(choice.token_ids)
    floats = [value for entry in choice.logprobs for value in (entry.logprob, *(p for _, p in entry.top))]
    return choice.text, tuple(choice.token_ids), struct.pack(f"{len(floats)}f", *floats)


def _load(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), **{"threads": 2, "max_model_len": 4096, "kv_memory": 2**29, **settings})


def _answers(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[Answer]:
    """Greedy and seeded answers of every prompt, all submitted at once."""
    greedy, seeded = (llm.generate(prompts, params, progress=False) for params in (GREEDY, SEEDED))
    return [_answer(output) for output in (*greedy, *seeded)]


@pytest.fixture(scope="module")
def expected(smollm2_path: Path) -> list[Answer]:
    """Each prompt alone, greedy and seeded, with the default chunk and no prefix cache."""
    with _load(smollm2_path, prefix_cache=False) as llm:
        greedy = [_answer(llm.generate([prompt], GREEDY, progress=False)[0]) for prompt in PROMPTS]
        seeded = [_answer(llm.generate([prompt], SEEDED, progress=False)[0]) for prompt in PROMPTS]
    assert len(set(greedy + seeded)) == 2 * len(LENGTHS)
    return greedy + seeded


@pytest.fixture
def llm(smollm2_path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with _load(smollm2_path, **request.param) as loaded:
        yield loaded


@pytest.mark.parametrize("llm", [{"max_step_tokens": chunk} for chunk in (16, 64, 512)], indirect=True, ids=["16", "64", "512"])
def test_chunk_size_and_a_restart_change_no_bit(llm: LLM, expected: list[Answer]) -> None:
    assert _answers(llm) == expected


@pytest.mark.parametrize("llm", [{"threads": 1}, {"threads": 3}], indirect=True, ids=["1", "3"])
def test_thread_count_changes_no_bit(llm: LLM, expected: list[Answer]) -> None:
    assert _answers(llm) == expected


@pytest.mark.parametrize("llm", [{"max_num_seqs": 64}], indirect=True, ids=["64"])
def test_company_changes_no_bit(llm: LLM, expected: list[Answer]) -> None:
    source = random.Random(2)
    others = [[source.randrange(100, 40_000) for _ in range(source.randrange(1, 80))] for _ in range(64 - len(PROMPTS))]
    assert _answers(llm, PROMPTS + others)[: len(PROMPTS)] == expected[: len(PROMPTS)]
    assert [_answer(output) for output in llm.generate(PROMPTS + others, SEEDED, progress=False)[: len(PROMPTS)]] == expected[
        len(PROMPTS) :
    ]


def test_preemption_changes_no_bit(smollm2_path: Path) -> None:
    """Twelve sequences that together need twice the blocks there are."""
    source = random.Random(3)
    prompts = [[source.randrange(100, 40_000) for _ in range(90)] for _ in range(12)]
    params = replace(SEEDED, max_tokens=100)
    need = 12 * 6 * 30 * 3 * 64 * 2 * 2 * BLOCK
    with _load(smollm2_path, max_model_len=256, max_num_seqs=12) as roomy:
        free = roomy.generate(prompts, params, progress=False)
    with _load(smollm2_path, max_model_len=256, max_num_seqs=12, kv_memory=need // 2) as tight:
        pressed = tight.generate(prompts, params, progress=False)
    assert sum(output.usage.preemptions for output in pressed) > 0
    assert sum(output.usage.preemptions for output in free) == 0
    assert [_answer(output) for output in pressed] == [_answer(output) for output in free]


@pytest.mark.parametrize("llm", [{}], indirect=True, ids=["cache"])
def test_a_prefix_hit_at_every_block_border_changes_no_bit(llm: LLM, expected: list[Answer]) -> None:
    prompt = PROMPTS[LENGTHS.index(257)]
    wanted = expected[LENGTHS.index(257)]
    for num_blocks in range(9):
        salt = str(num_blocks)
        if num_blocks:
            warm = [prompt[: num_blocks * BLOCK + 1]]
            llm.generate(warm, replace(GREEDY, max_tokens=1), progress=False, cache_salt=salt)
        output = llm.generate([prompt], GREEDY, progress=False, cache_salt=salt)[0]
        assert _answer(output) == wanted
        assert output.usage.cached_tokens == num_blocks * BLOCK


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_is_deterministic_by_itself(tier: str, smollm2_path: Path) -> None:
    """Alone with chunks of 512 on one thread, and together with chunks of 16 on three."""
    prompts = PROMPTS[:5]
    with _load(smollm2_path, cpu_isa=tier, threads=1, prefix_cache=False) as llm:
        alone = [_answer(llm.generate([prompt], SEEDED, progress=False)[0]) for prompt in prompts]
    with _load(smollm2_path, cpu_isa=tier, threads=3, max_step_tokens=16) as llm:
        together = [_answer(output) for output in llm.generate(prompts, SEEDED, progress=False)]
    assert together == alone
