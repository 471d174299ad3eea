from __future__ import annotations

import numpy as np
import pytest

from gristmill.core.errors import ModelFileError
from gristmill.text.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"model": "bert"}, "'bert'.*not supported"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"tokens": []}, "tokens is missing or empty"),
        ({"tokens": None}, "tokens is missing or empty"),
        ({"tokens": "abc"}, "tokens is not an array"),
        ({"tokens": [1, 2]}, "not a str"),
        ({"tokens": ["a", "a"]}, "the same token twice"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"token_type": ["x"]}, "not a int"),
        ({"bos_token_id": 10**9}, "bos_token_id is 1000000000"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eos_token_ids": [10**9]}, "eos_token_ids is 1000000000"),
        ({"eot_token_id": "2"}, "eot_token_id is '2'"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["no-space"]}, "not two tokens"),
        ({"merges": ["qqq zzz"]}, "was refused"),
        ({"pre": "mystery"}, "'mystery'.*not supported"),
    ],
)
def test_broken_metadata_is_refused_by_key(change, fact, pairs):
    metadata = {**pairs["qwen3"].metadata, **{f"tokenizer.ggml.{key}": value for key, value in change.items()}}
    with pytest.raises(ModelFileError, match=fact):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"scores": [1.0]}, "scores has 1 entries"),
        ({"scores": None, "unknown_token_id": 10**9}, "unknown_token_id"),
    ],
)
def test_broken_sentencepiece_metadata_is_refused_by_key(change, fact, pairs):
    metadata = {**pairs["llama2"].metadata, **{f"tokenizer.ggml.{key}": value for key, value in change.items()}}
    with pytest.raises(ModelFileError, match=fact):
        Tokenizer.from_gguf(metadata)


def test_scores_that_are_not_numbers_are_refused(pairs):
    scores = np.array(pairs["llama2"].metadata["tokenizer.ggml.scores"], dtype=np.float32)
    scores[5] = np.nan
    with pytest.raises(ModelFileError, match="NaN"):
        Tokenizer.from_gguf({**pairs["llama2"].metadata, "tokenizer.ggml.scores": scores})


def test_arrays_may_be_numpys(pairs, corpus):
    metadata = dict(pairs["llama2"].metadata)
    for key in ("scores", "token_type"):
        metadata[f"tokenizer.ggml.{key}"] = np.array(metadata[f"tokenizer.ggml.{key}"])
    ours = Tokenizer.from_gguf(metadata)
    assert ours.encode(corpus[0], add_special_tokens=False) == pairs["llama2"].ours.encode(corpus[0], add_special_tokens=False)


def test_empty_tokens_do_not_collide(pairs):
    tokens = [*pairs["qwen3"].metadata["tokenizer.ggml.tokens"], "", ""]
    types = [*pairs["qwen3"].metadata["tokenizer.ggml.token_type"], 5, 5]
    metadata = {**pairs["qwen3"].metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert Tokenizer.from_gguf(metadata).vocab_size == len(tokens)


def test_llama_file_that_names_no_ids_means_the_first_llamas(pairs):
    tokenizer = pairs["llama2"].ours
    assert (tokenizer.bos_id, tokenizer.eos_token, tokenizer.adds_bos) == (1, "</s>", True)
