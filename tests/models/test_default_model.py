from pathlib import Path

import numpy as np
import pytest
from tests.backends.batches import Chunk, generate, make_batch
from tests.models.goldens import ROOT, TOLERANCE, read_tensors

from gristmill.backends.base import Limits
from gristmill.backends.reference.backend import ReferenceBackend, ReferenceExecutable
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.load import load


def compile_model(path: Path) -> ReferenceExecutable:
    checkpoint = open_checkpoint(path)
    architecture = load_architecture(checkpoint.config)
    config = architecture.parse(checkpoint.config, 512)
    graph = record(architecture.build, config)
    weights = load(checkpoint, graph.weights, architecture.weight_rules(config))
    return ReferenceBackend("f32").compile(graph, weights, Limits(64, 1, 512, 4, 1))


def assert_answers_as_transformers(executable: ReferenceExecutable, golden_path: Path, count: int) -> None:
    golden = {key: values for key, (_, values) in read_tensors(golden_path)[0].items()}
    prompt, limit = golden["prompt_ids"].tolist(), TOLERANCE * golden["max_abs_logit"][0]
    logits = executable.logits(make_batch(Chunk(prompt, 0, [0])))[0]
    assert np.abs(logits[golden["top_ids"]] - golden["top_logits"]).max() <= limit
    assert np.abs(logits[::64] - golden["logits"]).max() <= limit
    assert generate(executable, prompt, count, [3, 1, 0]) == golden["greedy_ids"][:count].tolist()


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return compile_model(smollm2_path)


# One prompt runs to its end; the others stop early, since numpy takes a tenth of a second for a token.
@pytest.mark.parametrize(("name", "count"), [("story", 8), ("code", 8), ("chat", 64)])
def test_the_default_model_answers_as_transformers_does_from_the_same_file(smollm2, name, count):
    assert_answers_as_transformers(smollm2, ROOT / "smollm2-135m" / f"{name}.safetensors", count)


def test_gemma3_answers_as_transformers_does_from_the_same_file(gemma3_path):
    # Its k-quants are loaded with scale products rounded to f16, so later tokens may differ where two are close.
    golden = {key: values for key, (_, values) in read_tensors(ROOT / "gemma3-270m" / "fact.safetensors")[0].items()}
    prompt = golden["prompt_ids"].tolist()
    logits = compile_model(gemma3_path).logits(make_batch(Chunk(prompt, 0, [0])))[0]
    assert np.abs(logits[golden["top_ids"]] - golden["top_logits"]).max() <= 10 * TOLERANCE * golden["max_abs_logit"][0]
    assert int(logits.argmax()) == golden["top_ids"][0]
