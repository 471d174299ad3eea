from __future__ import annotations

from types import SimpleNamespace

from gristmill.text.end_tokens import end_tokens
from gristmill.text.template import ChatTemplate
from gristmill.text.tokenizer import Tokenizer

LLAMA3 = (
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}{% endfor %}"
)


def names(tokenizer, ids):
    return {tokenizer.id_to_token(token_id) for token_id in ids}


def test_token_with_which_the_template_closes_a_turn_ends_an_answer(pairs):
    tokenizer = pairs["llama3"].ours
    assert names(tokenizer, end_tokens(tokenizer, ChatTemplate(LLAMA3), {})) == {"<|eot_id|>"}
    assert names(tokenizer, end_tokens(tokenizer, ChatTemplate(None), {})) == set()


def test_closing_token_is_found_by_rendering_whatever_its_name(pairs):
    tokenizer = pairs["deepseek"].ours
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }} {{ eos_token }}{% endfor %}", eos_token="<｜end▁of▁sentence｜>"
    )
    assert names(tokenizer, end_tokens(tokenizer, template, {})) == {"<｜end▁of▁sentence｜>"}


def test_every_id_of_generation_config_ends_an_answer(smollm2, smollm2_metadata):
    template = ChatTemplate(smollm2_metadata["tokenizer.chat_template"])
    assert end_tokens(smollm2, template, {"eos_token_id": [0, 7]}) == {0, 2, 7}
    assert end_tokens(smollm2, template, {"eos_token_id": 5}) == {2, 5}
    assert end_tokens(smollm2, None, {}) == {2}


def test_template_that_fails_or_closes_with_plain_text_adds_nothing(smollm2):
    for source in ("{{ raise_exception('no') }}", "{% for", "{% for m in messages %}{{ m.content }} done{% endfor %}"):
        assert end_tokens(smollm2, ChatTemplate(source), {}) == {2}


def test_tokenizer_from_a_checkpoints_files_knows_the_templates_end_tokens(pairs):
    pair = pairs["llama3"]
    gguf = Tokenizer.from_files(SimpleNamespace(metadata=pair.metadata), {}, {}, LLAMA3)
    files = SimpleNamespace(tokenizer_json=pair.original_json, tokenizer_config={"eos_token": "<|end_of_text|>"})
    folder = Tokenizer.from_files(files, {}, {}, LLAMA3)
    assert names(gguf, gguf.end_token_ids) == {"<|eot_id|>"}
    assert names(folder, folder.end_token_ids) == {"<|eot_id|>", "<|end_of_text|>"}
