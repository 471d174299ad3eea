import numpy as np
import pytest
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.load import load
from tests.backends.batches import Chunk, generate, make_batch
from tests.models.goldens import ROOT, TOLERANCE, read_tensors

from gristmill.backends.base import Limits
from gristmill.backends.reference.backend import ReferenceBackend
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture


@pytest.fixture(scope="module")
def executable(smollm2_path):
    checkpoint = open_checkpoint(smollm2_path)
    architecture = load_architecture(checkpoint.config)
    config = architecture.parse(checkpoint.config, 512)
    graph = record(architecture.build, config)
    weights = load(checkpoint, graph.weights, architecture.weight_rules(config))
    return ReferenceBackend("f32").compile(graph, weights, Limits(64, 1, 512, 4, 1))


@pytest.mark.parametrize("name", ["story", "code", "chat"])
def test_the_default_model_answers_as_transformers_does_from_the_same_weights(executable, name):
    tensors, _ = read_tensors(ROOT / "smollm2-135m" / f"{name}.safetensors")
    golden = {key: values for key, (_, values) in tensors.items()}
    prompt = golden["prompt_ids"].tolist()
    logits = executable.logits(make_batch(Chunk(prompt, 0, [0])))[0]
    limit = TOLERANCE * golden["max_abs_logit"][0]
    assert np.abs(logits[golden["top_ids"]] - golden["top_logits"]).max() <= limit
    assert np.abs(logits[::64] - golden["logits"]).max() <= limit
    assert generate(executable, prompt, 64, [3, 1, 0]) == golden["greedy_ids"].tolist()
