"""Stop strings in a stream of text, however it is split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """What may be sent now; `matched` is the stop string that ended the text, if one did.

    `consumed` counts the characters of the pushed text up to the end of the match: all of them without one.
    """

    text: str
    matched: str | None
    consumed: int


class StopMatcher:
    """Holds back exactly the longest end of the text that a stop string could begin with.

    The match that ends first wins, of those that end together the longest: so that the result does not depend on how the
    text is split. Nothing of a matched stop string is given out, unless `include`.
    """

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        assert all(stop), "an empty stop string matches everywhere; SamplingParams refuses it"
        # Longest first: of matches that end together the first found wins.
        self._strings = [_StopString(text) for text in sorted(set(stop), key=len, reverse=True)]
        self._include = include
        self._held = ""
        self._is_done = False

    def push(self, text: str) -> StopResult:
        """Take the next characters. After a match there is nothing more to give: do not push again."""
        assert not self._is_done, "a stop string has already ended this text"
        best: _StopString | None = None
        end = len(text) + 1
        for string in self._strings:
            string_end = string.advance(text)
            if 0 < string_end < end:
                best, end = string, string_end
        if best is not None:
            return self._matched(best, text, end)
        whole = self._held + text
        num_held = max((string.num_matched for string in self._strings), default=0)
        cut = len(whole) - num_held
        self._held = whole[cut:]
        return StopResult(whole[:cut], None, len(text))

    def flush(self) -> str:
        """Return what was held back, when the text has ended without a match."""
        held, self._held = self._held, ""
        return held

    def _matched(self, string: _StopString, text: str, end: int) -> StopResult:
        whole = self._held + text[:end]
        self._held = ""
        self._is_done = True
        given = whole if self._include else whole[: len(whole) - len(string.text)]
        return StopResult(given, string.text, end)


class _StopString:
    """One stop string and how much of it the text's end matches.

    Source: Knuth, Morris & Pratt 1977. The failure table grows only as far as a text has ever matched, so that a stop
    string of megabytes costs nothing.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        self._fallback = [0, 0]  # [k]: the longest proper prefix that is also a suffix of the first k characters

    def advance(self, text: str) -> int:
        """Return how many characters of `text` it takes to complete the string for the first time, or 0."""
        position = 0
        while position < len(text):
            if self.num_matched == 0:  # jump to the next place where it can begin
                position = text.find(self.text[0], position)
                if position < 0:
                    return 0
            self._take(text[position])
            position += 1
            if self.num_matched == len(self.text):
                return position
        return 0

    def _take(self, character: str) -> None:
        while self.num_matched and self.text[self.num_matched] != character:
            self.num_matched = self._fallback[self.num_matched]
        if self.text[self.num_matched] == character:
            self.num_matched += 1
            self._extend()

    def _extend(self) -> None:
        length = self.num_matched
        if length < len(self._fallback):
            return
        border = self._fallback[length - 1]
        while border and self.text[border] != self.text[length - 1]:
            border = self._fallback[border]
        self._fallback.append(border + 1 if self.text[border] == self.text[length - 1] else 0)
