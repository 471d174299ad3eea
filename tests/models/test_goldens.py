import numpy as np
import pytest
from tests.backends.batches import Chunk, generate, make_batch
from tests.models.goldens import ROOT, TOLERANCE, Golden, packed_weights, read_golden

from gristmill.backends.base import Limits
from gristmill.backends.reference.backend import ReferenceBackend, ReferenceExecutable
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture

NAMES = sorted(folder.name for folder in ROOT.iterdir() if (folder / "model.safetensors").exists())
BLOCKS = [3, 0, 5, 1]  # not in order, as the engine would give them


def compile_golden(golden: Golden, kv_dtype: str = "f32") -> ReferenceExecutable:
    architecture = load_architecture(golden.config)
    config = architecture.parse(golden.config, golden.max_model_len)
    graph = record(architecture.build, config)
    weights = packed_weights(golden, graph.weights, architecture.weight_rules(config))
    return ReferenceBackend(kv_dtype).compile(graph, weights, Limits(64, 4, 128, 8, 1))


def relative_error(logits: np.ndarray, reference: np.ndarray) -> float:
    return float((np.abs(logits - reference).max(axis=-1) / np.abs(reference).max(axis=-1)).max())


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return read_golden(ROOT / request.param)


def test_logits_of_every_prompt_token_are_those_of_transformers(golden):
    batch = make_batch(Chunk(golden.prompt_ids, 0, BLOCKS, wants_rows=len(golden.prompt_ids)))
    assert relative_error(compile_golden(golden).logits(batch), golden.logits) <= TOLERANCE


def test_greedy_ids_are_those_of_transformers_with_the_prompt_in_chunks(golden):
    count = min(len(golden.greedy_ids), golden.max_model_len - len(golden.prompt_ids))
    assert generate(compile_golden(golden), golden.prompt_ids, count, BLOCKS, chunk=13) == golden.greedy_ids[:count]


def test_goldens_cover_every_architecture_rope_kind_and_head_width():
    goldens = [read_golden(ROOT / name) for name in NAMES]
    architectures = [load_architecture(golden.config) for golden in goldens]
    parsed = [a.parse(golden.config, golden.max_model_len) for a, golden in zip(architectures, goldens, strict=True)]
    assert {a.model_types[0] for a in architectures} == {"llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3"}
    assert {config.head_dim for config in parsed} >= {64, 80, 96, 128, 256}
    texts = [(golden.folder / "config.json").read_text() for golden in goldens]
    kinds = {kind for kind in ("default", "linear", "llama3", "yarn", "longrope") if any(f'"{kind}"' in t for t in texts)}
    assert len(kinds) == 5
