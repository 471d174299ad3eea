from pathlib import Path

import numpy as np
import pytest
from tests.weights.samples import CONFIG, llama_weights, write_llama

from gristmill.core.errors import ModelFileError
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.gguf_checkpoint import GgufCheckpoint

TOKENS = {"tokenizer.ggml.tokens": ["<s>", "</s>", "x"], "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}


def test_rows_of_q_and_k_are_found_in_hugging_faces_order(tmp_path: Path) -> None:
    weights = llama_weights()
    checkpoint = GgufCheckpoint(write_llama(tmp_path / "a.gguf", weights))
    for name, weight in weights.items():
        stored = checkpoint.stored(name)
        values = stored.raw.view(np.float32).reshape(stored.shape)
        assert np.array_equal(values if stored.row_ids is None else values[stored.row_ids], weight), name
        assert (stored.row_ids is not None) == (".q_proj." in name or ".k_proj." in name)


def test_heads_that_cannot_share_the_rows_are_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "a.gguf", llama_weights(), {**CONFIG, "num_attention_heads": 4})
    checkpoint = GgufCheckpoint(path)
    checkpoint.config = {**checkpoint.config, "num_attention_heads": 5}
    with pytest.raises(ModelFileError, match=r"q_proj\.weight has 64 rows, which 5 heads"):
        checkpoint.stored("model.layers.0.self_attn.q_proj.weight")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tensor for lm_head\.weight"):
        GgufCheckpoint(write_llama(tmp_path / "a.gguf", llama_weights())).stored("lm_head.weight")


def test_template_and_special_tokens_come_from_the_metadata(tmp_path: Path) -> None:
    extra = {**TOKENS, "tokenizer.chat_template": "{{ bos_token }}"}
    checkpoint = open_checkpoint(write_llama(tmp_path / "a.gguf", llama_weights(), extra=extra))
    assert checkpoint.chat_template == "{{ bos_token }}"
    assert checkpoint.special_tokens() == {"bos_token": "<s>", "eos_token": "</s>"}
    assert checkpoint.config["eos_token_id"] == 1
    assert checkpoint.norms_include_one


def test_a_special_token_outside_of_the_vocabulary_is_none(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(
        write_llama(tmp_path / "a.gguf", llama_weights(), extra={**TOKENS, "tokenizer.ggml.bos_token_id": 9})
    )
    assert checkpoint.special_tokens() == {"bos_token": "", "eos_token": "</s>"}
    assert checkpoint.chat_template is None
