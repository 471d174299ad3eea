import numpy as np
import pytest
from tests.backends.batches import Chunk, generate, make_batch
from tests.models.goldens import ROOT, packed_weights, read_golden

from gristmill.backends.base import BLOCK_SIZE_TOKENS, Limits
from gristmill.backends.reference.backend import ReferenceBackend
from gristmill.backends.reference.eager import EagerStep
from gristmill.backends.reference.pages import Pages
from gristmill.core.clock import FakeClock
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.quant.pack import unpack
from gristmill.sampling.sampler import RowSampling, sample

LIMITS = Limits(max_step_tokens=128, max_num_seqs=8, max_model_len=128, num_blocks=16, num_threads=1)


class Model:
    """A golden's model, ready to be compiled."""

    def __init__(self, name):
        self.golden = read_golden(ROOT / name)
        self.architecture = load_architecture(self.golden.config)
        self.config = self.architecture.parse(self.golden.config, self.golden.max_model_len)
        self.graph = record(self.architecture.build, self.config)
        self.weights = packed_weights(self.golden, self.graph.weights, self.architecture.weight_rules(self.config))

    def compile(self, kv_dtype="bf16", **changes):
        return ReferenceBackend(kv_dtype, FakeClock()).compile(self.graph, self.weights | changes, LIMITS)


@pytest.fixture(scope="module")
def model():
    return Model("mistral")


def run(executable, *chunks):
    return executable.collect(executable.submit(make_batch(*chunks)))


@pytest.mark.parametrize("name", ["llama-biases", "mistral", "qwen3", "gemma3", "gemma3-softcap", "phi3-longrope-long"])
def test_running_build_eagerly_and_running_the_recorded_graph_give_the_same_bits(name):
    model = Model(name)
    batch = make_batch(Chunk(model.golden.prompt_ids, 0, [2, 1], wants_rows=5))
    arrays = {name: unpack(weight) for name, weight in model.weights.items()}
    step = EagerStep(batch, arrays, Pages(model.graph.kv_groups[0], 4, BLOCK_SIZE_TOKENS, "bf16"))
    assert np.array_equal(model.architecture.build(step, model.config), model.compile().logits(batch))


def test_a_prompt_in_chunks_and_beside_others_gives_the_same_bits_as_alone(model):
    prompt, rng = model.golden.prompt_ids, np.random.default_rng(1)
    alone = model.compile().logits(make_batch(Chunk(prompt, 0, [0, 1])))
    executable = model.compile()
    for start in range(0, len(prompt), 7):
        others = [Chunk(rng.integers(3, 100, size).tolist(), 0, [8 + row]) for row, size in enumerate((3, 30))]
        mine = Chunk(prompt[start : start + 7], start, [5, 2])
        logits = executable.logits(make_batch(others[0], mine, others[1]))
    assert np.array_equal(logits[1], alone[0])


def test_kv_is_rounded_to_bf16_unless_f32_is_asked_for(model):
    batch = make_batch(Chunk(model.golden.prompt_ids, 0, [0, 1]))
    exact, rounded = model.compile("f32").logits(batch), model.compile().logits(batch)
    assert not np.array_equal(exact, rounded)
    assert np.abs(exact - rounded).max() < 0.1 * np.abs(exact).max()
    assert [model.compile(kv_dtype).fingerprint() for kv_dtype in ("bf16", "f32")] == ["reference-bf16", "reference-f32"]


def test_each_row_is_sampled_as_the_definition_says(model):
    sampling = RowSampling(temperature=1.3, top_k=20, top_p=0.9, seed=11, choice=2, position=40, num_logprobs=3)
    rows = [sampling, RowSampling(num_logprobs=1), RowSampling()]
    chunks = [Chunk(model.golden.prompt_ids, 0, [2 * i, 2 * i + 1], sampling=row) for i, row in enumerate(rows)]
    executable = model.compile()
    logits = executable.logits(make_batch(*chunks))
    output = run(executable, *chunks)
    expected = [sample(row, how) for row, how in zip(logits, rows, strict=True)]
    assert output.token_ids.tolist() == [row.token_id for row in expected]
    assert output.logprobs.tolist() == [row.logprob for row in expected]
    assert output.top_ids.tolist() == [expected[0].top_ids.tolist(), [expected[1].top_ids[0], -1, -1], [-1] * 3]
    assert output.is_finite.all()


def test_a_row_of_nan_is_flagged_and_harms_no_other(model):
    prompt = model.golden.prompt_ids
    alone = run(model.compile(), Chunk(prompt, 0, [0, 1]))
    embedding = unpack(model.weights["model.embed_tokens.weight"])
    unused = next(id for id in range(len(embedding)) if id not in prompt)
    embedding[unused] = np.nan
    tile, lane = divmod(unused, 32)
    packed = model.weights["model.embed_tokens.weight"]
    data = packed.data.copy()
    data.view(np.uint16).reshape(-1, packed.shape[1], 32)[tile, :, lane] = 0x7FC0
    broken = model.compile(**{"model.embed_tokens.weight": type(packed)(packed.format, packed.shape, data)})
    output = run(broken, Chunk([unused], 0, [4]), Chunk(prompt, 0, [0, 1]))
    assert output.is_finite.tolist() == [False, True]
    assert output.token_ids[1] == alone.token_ids[0]


def test_copied_blocks_continue_as_their_sources_do(model):
    prompt = model.golden.prompt_ids
    executable = model.compile()
    expected = generate(executable, prompt, 8, [0, 1])
    run(executable, Chunk(prompt, 0, [0, 1]))
    executable.copy_blocks(np.array([0, 1], np.int32), np.array([9, 4], np.int32))
    first = Chunk(expected[:1], len(prompt), [9, 4])
    assert int(run(executable, first).token_ids[0]) == expected[1]


def test_all_blocks_are_committed_and_the_time_is_the_clocks(model):
    executable = model.compile()
    executable.request_blocks(99)
    assert executable.num_committed_blocks() == LIMITS.num_blocks
    assert run(executable, Chunk([5], 0, [0])).device_ns == 0
    executable.close()
    executable.close()


def test_memory_is_counted_in_bytes(model):
    backend = ReferenceBackend()
    assert backend.kv_block_bytes(model.graph) == 2 * 4 * 32 * 2 * 96
    assert backend.activation_bytes(model.graph, LIMITS) >= 4 * LIMITS.max_step_tokens * model.config.hidden_size
