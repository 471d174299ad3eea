"""The Python class on the real default model."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill import LLM, SamplingParams
from gristmill.core.errors import InvalidRequest, ModelReferenceError, SettingsError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), max_model_len=512, max_num_seqs=4, max_waiting_requests=8) as loaded:
        yield loaded


def test_prompts_are_texts_or_ids_and_come_back_in_order(llm: LLM) -> None:
    texts = ["The capital of France is", "Once upon a time"]
    by_text = llm.generate(texts, GREEDY, progress=False)
    by_ids = llm.generate([output.prompt_token_ids for output in by_text], GREEDY, progress=False)
    assert [output.prompt for output in by_text] == texts
    assert [o.outputs[0].text for o in by_ids] == [o.outputs[0].text for o in by_text]
    assert by_text[0].outputs[0].text.startswith(" Paris")
    assert by_text[0].outputs[0].finish_reason == "length"
    assert len(by_text[0].outputs[0].token_ids) == by_text[0].usage.completion_tokens == 12


def test_more_prompts_than_the_queue_holds_are_all_answered(llm: LLM) -> None:
    outputs = llm.generate([[5, 6, 7 + i] for i in range(40)], SamplingParams(temperature=0.0, max_tokens=2), progress=False)
    assert all(output.outputs[0].finish_reason is not None for output in outputs)


def test_choices_differ_and_a_seed_repeats_them(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=3, max_tokens=12)
    first, again = (llm.generate("My favourite thing is", params, progress=False)[0] for _ in range(2))
    assert len({choice.text for choice in first.outputs}) == 4
    assert [c.text for c in again.outputs] == [c.text for c in first.outputs]


def test_an_unseeded_answer_can_be_replayed_by_the_seed_it_returns(llm: LLM) -> None:
    first = llm.generate("I saw", SamplingParams(max_tokens=12), progress=False)[0]
    again = llm.generate("I saw", SamplingParams(max_tokens=12, seed=first.seed), progress=False)[0]
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


def test_a_stream_gives_the_same_text_and_its_result(llm: LLM) -> None:
    whole = llm.generate("Once upon a time", GREEDY, progress=False)[0]
    with llm.stream("Once upon a time", GREEDY) as stream:
        pieces = list(stream)
    assert "".join(pieces) == whole.outputs[0].text == stream.result.outputs[0].text
    assert len(pieces) > 1


def test_a_stream_that_is_left_is_cancelled(llm: LLM) -> None:
    with llm.stream("Once upon a time", SamplingParams(max_tokens=400, ignore_eos=True)) as stream:
        next(stream)
    assert llm.generate("One", GREEDY, progress=False)[0].usage.completion_tokens == 12


def test_chat_uses_the_template(llm: LLM) -> None:
    answer = llm.chat([{"role": "user", "content": "Say hello."}], GREEDY)[0]
    assert answer.usage.prompt_tokens > 10
    assert answer.outputs[0].text


def test_logprobs_hold_the_chosen_token(llm: LLM) -> None:
    choice = llm.generate("One two three", SamplingParams(temperature=0.0, max_tokens=3, logprobs=2), progress=False)[0].outputs[
        0
    ]
    assert choice.logprobs is not None
    for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True):
        assert entry.token_id == token_id == entry.top[0][0]
        assert entry.logprob == entry.top[0][1] <= 0.0


async def test_agenerate_answers_from_any_event_loop(llm: LLM) -> None:
    answers = await asyncio.gather(*(llm.agenerate(text, GREEDY) for text in ("One", "Two")))
    assert all(answer.outputs[0].text for answer in answers)


def test_a_bad_prompt_and_a_bad_setting_are_told(llm: LLM, smollm2_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="token"):
        llm.generate([[10**6]], GREEDY, progress=False)
    with pytest.raises(InvalidRequest, match="neither"):
        llm.stream()
    with pytest.raises(SettingsError, match="max_num_seqs"):
        LLM(str(smollm2_path), max_num_seqs=0)


@pytest.mark.parametrize("prompts", [None, 3, b"abc", [None], [[1.5]], [[True]], [1, "a"]], ids=repr)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequest, match="neither a text nor token ids"):
        llm.generate(prompts, GREEDY)


@pytest.mark.parametrize("messages", [None, "hi", [None], [3], {"role": "user", "content": "x"}], ids=repr)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequest, match="not a list of messages"):
        llm.chat(messages, GREEDY)


def test_arguments_of_wrong_types_are_told(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="SamplingParams"):
        llm.generate("One", {"max_tokens": 2})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="cache_salt"):
        llm.generate("One", GREEDY, cache_salt=5)  # type: ignore[arg-type]
    with pytest.raises(ModelReferenceError, match="NoneType"):
        LLM(None)  # type: ignore[arg-type]


def test_token_ids_may_be_numpys(llm: LLM) -> None:
    ids = llm.generate("The capital of France is", GREEDY, progress=False)[0].prompt_token_ids
    answers = llm.generate(np.array(ids), GREEDY, progress=False)  # type: ignore[arg-type]
    assert answers[0].outputs[0].text.startswith(" Paris")


def test_a_model_may_be_a_path(smollm2_path: Path) -> None:
    with LLM(smollm2_path, max_model_len=256) as llm:
        assert llm.max_model_len == 256


def test_a_program_that_does_not_close_it_ends_without_a_word(smollm2_path: Path) -> None:
    program = f"from gristmill import LLM\nllm = LLM({str(smollm2_path)!r}, max_model_len=256)\nprint(llm.vocab_size)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("49152\n", "")


def test_a_model_that_nothing_refers_to_is_closed(smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, max_model_len=256)
    thread = llm._thread
    del llm
    gc.collect()
    assert not thread.is_alive()


def test_closing_twice_is_harmless_and_a_closed_model_says_so(smollm2_path: Path) -> None:
    llm = LLM(str(smollm2_path), max_model_len=256)
    llm.close()
    llm.close()
    with pytest.raises(InvalidRequest, match="closed"):
        llm.generate("One", GREEDY)
