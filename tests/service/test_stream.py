"""The text side of a choice on chosen events: several tokens in one event, stop strings across them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.scripted import IM_END, byte_tokenizer

from gristmill.core.request import FinishReason, Request, TokenEvent, TokenLogprobs, Usage
from gristmill.core.sampling_params import SamplingParams
from gristmill.service.stream import ChoiceStream, Delta, sum_usages

TOKENIZER = byte_tokenizer()


def stream(**params: Any) -> ChoiceStream:
    ends = frozenset() if params.get("ignore_eos") else frozenset({IM_END})
    return ChoiceStream(Request("r", [1], SamplingParams(**{"max_tokens": 100, **params}), ends), 3, TOKENIZER)


def event(tokens: bytes | list[int], reason: FinishReason | None = None, **fields: Any) -> TokenEvent:
    return TokenEvent("r", tuple(tokens), finish_reason=reason, usage=Usage(prompt_tokens=1, completion_tokens=99), **fields)


def stopped(tokens: list[int]) -> TokenEvent:
    return event(tokens, FinishReason.STOP, stop_token_id=tokens[-1])


def test_many_tokens_in_one_event_are_one_delta() -> None:
    one = stream()
    assert one.advance(event(b"hello")) == Delta(3, "hello", tuple(b"hello"))
    last = one.advance(stopped([*b" you", IM_END]))
    assert (last.text, last.finish_reason, last.stop_reason) == (" you", "stop", None)
    assert last.usage == Usage(prompt_tokens=1, completion_tokens=10)


def test_a_stop_string_inside_an_event_cuts_tokens_logprobs_and_usage() -> None:
    logprobs = tuple(TokenLogprobs(i, -1.0, ()) for i in b"one two")
    last = stream(stop="e t", logprobs=0).advance(event(b"one two", logprobs=logprobs))
    assert (last.text, last.finish_reason, last.stop_reason) == ("on", "stop", "e t")
    assert last.token_ids == tuple(b"one t")
    assert last.logprobs == logprobs[:5]
    assert last.usage is not None
    assert last.usage.completion_tokens == 5


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_how_tokens_are_grouped_changes_nothing(size: int) -> None:
    data = "aé stop? not yet, st then sto🎈 stops".encode()
    one = stream(stop=["stops", "xyz"])
    text, finish = "", None
    for start in range(0, len(data), size):
        delta = one.advance(event(data[start : start + size]))
        text += delta.text
        finish = delta.finish_reason
        if finish:
            break
    assert (text, finish, one.num_tokens) == ("aé stop? not yet, st then sto🎈 ", "stop", len(data))


def test_a_stop_string_wins_over_the_length_that_ends_with_it() -> None:
    last = stream(stop="b").advance(event(b"ab", FinishReason.LENGTH))
    assert (last.text, last.finish_reason, last.stop_reason) == ("a", "stop", "b")


def test_what_was_held_back_is_given_at_the_end() -> None:
    one = stream(stop="abcd")
    assert one.advance(event(b"xab")).text == "x"
    assert one.advance(event(b"c", FinishReason.LENGTH)).text == "abc"


def test_a_broken_character_at_the_end_may_complete_a_stop_string() -> None:
    last = stream(stop="x\ufffd").advance(event(b"ax\xc3", FinishReason.LENGTH))
    assert (last.text, last.finish_reason, last.stop_reason) == ("a", "stop", "x\ufffd")
    assert last.token_ids == tuple(b"ax\xc3")
    assert last.usage is not None
    assert last.usage.completion_tokens == 3


def test_special_tokens_are_shown_when_asked_but_never_the_one_that_ended_it() -> None:
    tokens = [*b"a", 256, *b"b", IM_END]
    assert stream().advance(stopped(tokens)).text == "ab"
    assert stream(skip_special_tokens=False).advance(stopped(tokens)).text == "a<|im_start|>b"
    shown = stream(skip_special_tokens=False, include_stop_str_in_output=True)
    assert shown.advance(stopped(tokens)).text == "a<|im_start|>b<|im_end|>"


def test_an_end_token_that_is_also_asked_for_is_no_stop_reason_unless_ends_are_ignored() -> None:
    assert stream(stop_token_ids=[IM_END]).advance(stopped([IM_END])).stop_reason is None
    assert stream(stop_token_ids=[IM_END], ignore_eos=True).advance(stopped([IM_END])).stop_reason == IM_END


def test_usages_add_up_over_choices_and_count_each_prompt_once() -> None:
    def used(cached: int, completion: int) -> Usage:
        return Usage(10, cached, completion, 1, 2, 3, 4, 5)

    total = sum_usages([used(0, 5), used(8, 6), used(8, 7)], [2, 1])
    assert total == Usage(20, 8, 18, 3, 6, 9, 12, 15)
