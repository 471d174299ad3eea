"""The default model on the CPU against the reference backend: int8 activations move logits a little, never the sure answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.backends.cpu.driver import Sequence_, columns, commit, generate, make_batch

from gristmill import _native
from gristmill.backends.base import Executable, Limits, StepOutput
from gristmill.backends.cpu.backend import CpuBackend
from gristmill.backends.reference.backend import ReferenceBackend
from gristmill.graph.ir import Graph
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.quant.formats import PackedTensor
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.load import load

TIERS = [tier for tier in _native.compiled_tiers() if not _native.missing_features(tier)]
MODEL_LIMITS = Limits(max_step_tokens=512, max_num_seqs=16, max_model_len=2048, num_blocks=600, num_threads=2)
# "Once upon a time there was a small village near the mountains, where people lived by the rhythm of the seasons."
TEXT = [
    6403,
    1980,
    253,
    655,
    665,
    436,
    253,
    1165,
    6560,
    2141,
    260,
    8718,
    28,
    837,
    701,
    4161,
    411,
    260,
    11341,
    282,
    260,
    12064,
    30,
]
MARGIN = 1.0  # of logprobs: where the reference is surer than that, the same token must win


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> tuple[Graph, dict[str, PackedTensor]]:
    checkpoint = open_checkpoint(smollm2_path)
    architecture = load_architecture(checkpoint.config)
    config = architecture.parse(checkpoint.config, None)
    graph = record(architecture.build, config)
    return graph, load(checkpoint, graph.weights, architecture.weight_rules(config))


@pytest.fixture(scope="module", params=TIERS)
def executable(model: tuple[Graph, dict[str, PackedTensor]], request: pytest.FixtureRequest) -> Iterator[Executable]:
    compiled = CpuBackend(2, request.param).compile(*model, MODEL_LIMITS)
    yield compiled
    compiled.close()


@pytest.fixture(scope="module")
def expected(model: tuple[Graph, dict[str, PackedTensor]]) -> StepOutput:
    return after_every_token(ReferenceBackend().compile(*model, MODEL_LIMITS))


def after_every_token(executable: Executable) -> StepOutput:
    """What comes after each prefix of the text, from one step."""
    batch, _ = make_batch([(Sequence_(TEXT, [0]), len(TEXT))], 0)
    rows = np.arange(len(TEXT), dtype=np.int32)
    sampling = columns(len(rows), num_logprobs=np.full(len(rows), 20, np.int32))
    return executable.collect(executable.submit(replace(batch, logits_rows=rows, sampling=sampling)))


def test_sure_tokens_are_the_reference_s_and_logprobs_are_near(executable: Executable, expected: StepOutput) -> None:
    actual = after_every_token(executable)
    sure = expected.top_logprobs[:, 0] - expected.top_logprobs[:, 1] > MARGIN
    assert sure.sum() >= 5
    assert actual.token_ids[sure].tolist() == expected.token_ids[sure].tolist()
    both = [
        abs(float(a) - theirs[i])
        for row, theirs_ids in enumerate(expected.top_ids)
        for theirs in [dict(zip(theirs_ids.tolist(), expected.top_logprobs[row].tolist(), strict=True))]
        for i, a in zip(actual.top_ids[row].tolist(), actual.top_logprobs[row], strict=True)
        if i in theirs
    ]
    assert np.mean(both) < 0.2


def test_decoding_gives_the_bits_of_chunks_of_seven_on_shuffled_blocks(executable: Executable) -> None:
    commit(executable, MODEL_LIMITS.num_blocks)
    whole = generate(executable, [TEXT], 12)
    assert generate(executable, [TEXT], 12, chunk=7, shuffle=5) == whole
    assert generate(executable, [TEXT[:3], TEXT, TEXT[5:]], 12, shuffle=6)[1] == whole[0]
