from __future__ import annotations

import pytest

from gristmill.core.errors import ModelFileError
from gristmill.text.pretokenizers import PRE_TOKENIZERS, pre_tokenizer

CASES = {
    "gpt-2": ["I", "'ve", "Ġ123", "45", "Ġmills", "!!"],
    "smollm": ["I", "'ve", "Ġ", "1", "2", "3", "4", "5", "Ġmills", "!!"],
    "llama-bpe": ["I", "'ve", "Ġ", "123", "45", "Ġmills", "!!"],
    "qwen2": ["I", "'ve", "Ġ", "1", "2", "3", "4", "5", "Ġmills", "!!"],
    "tekken": ["I", "'ve", "Ġ", "1", "2", "3", "4", "5", "Ġmills", "!!"],
    "gpt-4o": ["I've", "Ġ", "123", "45", "Ġmills", "!!"],
    "deepseek-v3": ["I", "'ve", "Ġ", "123", "45", "Ġmills", "!!"],
}


@pytest.mark.parametrize("name", CASES)
def test_words_are_cut_as_the_named_models_cut_them(name):
    cut = pre_tokenizer(name).splitter().pre_tokenize_str("I've 12345 mills!!".replace("12345", "123" + "45"))
    words = [word for word, _ in cut]
    expected = CASES[name] if name != "gpt-2" else ["I", "'ve", "Ġ12345", "Ġmills", "!!"]
    assert words == expected


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_cut_keeps_every_byte(name, corpus):
    splitter = pre_tokenizer(name).splitter()
    for text in corpus:
        words = splitter.pre_tokenize_str(text)
        assert sum(len(word) for word, _ in words) == len(text.encode())


def test_unknown_name_is_refused_with_the_list_of_ours():
    with pytest.raises(ModelFileError, match=r"'klingon'[\s\S]*smollm"):
        pre_tokenizer("klingon")
