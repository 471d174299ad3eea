from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text.detokenizer import IncrementalDetokenizer

NAMES = ("smollm2", "llama3", "deepseek", "llama2")


@pytest.fixture(scope="session")
def tokenizers_by_name(pairs, smollm2):
    return {name: smollm2 if name == "smollm2" else pairs[name].ours for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_pushes_and_flush_join_to_the_full_decode_of_any_ids(name, tokenizers_by_name, data):
    tokenizer = tokenizers_by_name[name]
    # Low ids are control and byte tokens: their runs make broken and split characters.
    ids = data.draw(st.lists(st.integers(0, 300) | st.integers(0, tokenizer.vocab_size + 5), max_size=30))
    skip = data.draw(st.booleans())
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip)
    parts = []
    while ids_left := ids[sum(len(part) for part in parts) :]:
        parts.append(ids_left[: data.draw(st.integers(1, len(ids_left)))])
    text = "".join([*(detokenizer.push(part) for part in parts), detokenizer.flush()])
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", NAMES)
def test_no_replacement_character_appears_while_a_text_streams(name, tokenizers_by_name, corpus):
    tokenizer = tokenizers_by_name[name]
    for text in corpus:
        ids = tokenizer.encode(text, add_special_tokens=False)
        detokenizer = IncrementalDetokenizer(tokenizer, (), skip_special_tokens=False)
        pieces = [detokenizer.push([token_id]) for token_id in ids]
        assert not any("\ufffd" in piece for piece in pieces)
        assert detokenizer.flush() == ""
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", NAMES)
def test_answer_after_a_prompt_is_the_rest_of_the_whole_text(name, tokenizers_by_name, corpus):
    tokenizer = tokenizers_by_name[name]
    for text in corpus[1:60]:
        ids = tokenizer.encode(text, add_special_tokens=True)
        for cut in range(len(ids) + 1):
            prompt = tokenizer.decode(ids[:cut], skip_special_tokens=True).rstrip("\ufffd")
            detokenizer = IncrementalDetokenizer(tokenizer, ids[:cut], skip_special_tokens=True)
            assert prompt + detokenizer.push(ids[cut:]) + detokenizer.flush() == tokenizer.decode(ids, skip_special_tokens=True)


def test_space_at_the_begin_of_an_answer_is_kept_after_a_prompt(tokenizers_by_name):
    tokenizer = tokenizers_by_name["llama2"]
    word = tokenizer.encode("the", add_special_tokens=False)
    assert IncrementalDetokenizer(tokenizer, ()).push(word) == "the"
    assert IncrementalDetokenizer(tokenizer, [tokenizer.bos_id]).push(word) == "the"
    assert IncrementalDetokenizer(tokenizer, word).push(word) == " the"


def test_character_over_several_tokens_appears_with_its_last_byte(tokenizers_by_name):
    tokenizer = tokenizers_by_name["smollm2"]
    ids = tokenizer.encode("🧑🏿‍🌾", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push([token_id]) for token_id in ids]
    assert "" in pieces
    assert "".join(pieces) == "🧑🏿‍🌾"


def test_unfinished_character_is_flushed_as_one_replacement_character(tokenizers_by_name):
    tokenizer = tokenizers_by_name["llama2"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.push([tokenizer.token_to_id("<0xF0>"), tokenizer.token_to_id("<0x9F>")]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_special_tokens_are_shown_only_if_asked(tokenizers_by_name):
    tokenizer = tokenizers_by_name["smollm2"]
    assert IncrementalDetokenizer(tokenizer, (), skip_special_tokens=True).push([1, 2]) == ""
    assert IncrementalDetokenizer(tokenizer, (), skip_special_tokens=False).push([1, 2]) == "<|im_start|><|im_end|>"
