"""The default model, loaded twice for all tests: behind `gristmill serve`, and in process under pressure; and a tiny one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.client import Client
from tests.server.serve_process import ServeProcess
from tests.service.scripted import byte_tokenizer
from tests.text.conftest import as_gguf
from tests.weights.samples import CONFIG, llama_weights, write_llama

from gristmill import LLM

KV_BYTES_PER_BLOCK = 30 * 3 * 64 * 2 * 2 * 32  # layers, kv heads, head width, K and V, bf16, tokens


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(str(smollm2_path), "--max-model-len", "1024", "--max-num-seqs", "4") as running:
        yield running


@pytest.fixture(scope="session")
def client(server: ServeProcess) -> Iterator[Client]:
    made = Client(server.url)
    yield made
    made.http.close()


@pytest.fixture(scope="session")
def pressed(smollm2_path: Path) -> Iterator[LLM]:
    """32 slots that share 32 blocks, short chunks, one thread: everything that must change no answer."""
    kv_memory = 32 * KV_BYTES_PER_BLOCK
    with LLM(str(smollm2_path), max_model_len=512, max_num_seqs=32, kv_memory=kv_memory, max_step_tokens=48, threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokens are bytes and one pair of them, with sampling defaults of its own and no chat template."""
    tokenizer = json.loads(byte_tokenizer().to_json())
    tokenizer["model"]["vocab"]["ab"] = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    tokenizer["model"]["merges"] = [["a", "b"]]  # no byte-level BPE is without any
    metadata = as_gguf(tokenizer, "gpt-2")
    config = {**CONFIG, "vocab_size": len(metadata["tokenizer.ggml.tokens"])}
    defaults = {"general.sampling.top_k": 1, "general.sampling.temp": 0.5}
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    return write_llama(path, llama_weights(config=config), config, extra={**metadata, **defaults})
