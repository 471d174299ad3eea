"""Token ids to text while they are generated, in constant time per token."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence

from gristmill.text.tokenizer import Tokenizer

_INCOMPLETE_BYTES_MAX = 3  # a UTF-8 character has at most four bytes


class IncrementalDetokenizer:
    """Gives out whole characters only.

    All that `push` and `flush` return, joined, is `Tokenizer.decode` of all ids pushed, as they continue `prompt_ids`:
    bytes with which the prompt broke off inside a character count as the first of the answer. One per sequence.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        tail = self._tail(prompt_ids)
        self._pending = tail[utf_8_decode(tail, "replace", False)[1] :]
        # Only the first space of a whole text is the tokenizer's own; after a prompt's text a space is a space.
        self._drops_space = tokenizer.strips_leading_space and not tail

    def push(self, ids: Iterable[int]) -> str:
        """Return the characters that `ids` complete, possibly none."""
        data = self._pending
        for token_id in ids:
            if token_id not in self._skipped:
                data += self._token_bytes(token_id)
        if self._drops_space and data:
            data = data.removeprefix(b" ")
            self._drops_space = False
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD if the last character never became whole."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """Return the prompt's last bytes, enough to hold any character that it breaks off."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if token_id not in self._skipped:
                tail = self._token_bytes(token_id) + tail
            if len(tail) >= _INCOMPLETE_BYTES_MAX:
                break
        return tail
