from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text.stop import StopMatcher

LETTERS = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4)


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The definition: the match that ends first, of those the longest."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def held_back(text: str, stops: list[str]) -> int:
    """The definition: the longest end of the text that is a proper prefix of a stop string."""
    return max(k for k in range(len(text) + 1) for stop in stops if k < len(stop) and text.endswith(stop[:k]))


@settings(deadline=None, max_examples=500)
@given(text=LETTERS, stops=STOPS, include=st.booleans(), data=st.data())
def test_result_is_the_definitions_however_the_text_is_split(text, stops, include, data):
    matcher = StopMatcher(stops, include)
    sent, position, matched = "", 0, None
    while position < len(text) and matched is None:
        part = text[position : position + data.draw(st.integers(1, 5))]
        result = matcher.push(part)
        sent, matched = sent + result.text, result.matched
        position += result.consumed
        if matched is None:
            assert len(sent) == position - held_back(text[:position], stops)
    expected = first_match(text, stops)
    if expected is None:
        assert matched is None
        assert sent + matcher.flush() == text
    else:
        end, stop = expected
        assert (matched, position) == (stop, end)
        assert sent == text[: end if include else end - len(stop)]
        assert matcher.flush() == ""


def test_nothing_of_a_stop_string_leaks_when_it_comes_letter_by_letter():
    matcher = StopMatcher(["</answer>"])
    results = [matcher.push(letter) for letter in "42</ans</answer>"]
    assert "".join(result.text for result in results) == "42</ans"
    assert [result.matched for result in results][-1] == "</answer>"


def test_include_sends_the_stop_string_and_nothing_after_it():
    result = StopMatcher(["END"], include=True).push("the END of it")
    assert (result.text, result.matched, result.consumed) == ("the END", "END", 7)


def test_text_without_stop_strings_passes_at_once():
    matcher = StopMatcher([])
    assert matcher.push("anything").text == "anything"
    assert matcher.flush() == ""


def test_flush_gives_what_was_held_back():
    matcher = StopMatcher(["abc"])
    assert matcher.push("xab").text == "x"
    assert matcher.flush() == "ab"


def test_stop_string_of_megabytes_needs_no_preparation():
    matcher = StopMatcher(["a" * 10_000_000])
    assert matcher.push("aab").text == "aab"
    string = matcher._strings[0]
    assert len(string._fallback) < 10  # as far as the text has matched, and no further


@pytest.mark.parametrize("stop", ["🌾", "水车", "\n\n", "\ufffd"])
def test_stop_strings_are_of_any_characters(stop):
    matcher = StopMatcher([stop, "unused"])
    texts = [matcher.push(letter) for letter in f"u{stop}"]
    assert "".join(result.text for result in texts) == "u"
