"""What each token of a vocabulary contributes to the output, as bytes.

Decoding by bytes makes a stream of tokens decodable in constant time per token, and exact: a character that is spread over
several tokens appears when its last byte has come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import decoders

from gristmill.core.errors import ModelFileError

SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's mapping of printable characters to the bytes they stand for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTES = _byte_of_character()


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; a token with any other character (an added one) is its own text."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """Return the bytes of a SentencePiece token: `<0xE4>` is one byte, the space mark is a space."""
    match = _BYTE_TOKEN.match(token)
    return bytes([int(match.group(1), 16)]) if match else token.replace(SPACE_MARK, " ").encode()


class TokenBytes:
    """The bytes of each token, worked out when a token is first seen."""

    def __init__(self, tokens: Sequence[str], decoder: decoders.Decoder | None) -> None:
        """Read from `decoder` how tokens become text.

        Raises: ModelFileError if it is of a kind that has no bytes per token.
        """
        self._tokens = tokens
        self._known: dict[int, bytes] = {}
        steps = _steps(decoder)
        kinds = {step["type"] for step in steps}
        self._is_byte_level = "ByteLevel" in kinds
        self.strips_leading_space = "Strip" in kinds or any(step.get("prepend_scheme", "never") != "never" for step in steps)
        if not self._is_byte_level and not kinds & {"ByteFallback", "Metaspace"}:
            raise ModelFileError(
                f"the tokenizer's decoder is {sorted(kinds) or 'missing'}, which is not supported.",
                "use a model with a byte-level or a SentencePiece tokenizer.",
            )

    def __getitem__(self, token_id: int) -> bytes:
        """Return the token's bytes; an id without a token (padding of the vocabulary) has none."""
        known = self._known.get(token_id)
        if known is None:
            token = self._tokens[token_id] if 0 <= token_id < len(self._tokens) else ""
            known = byte_level_bytes(token) if self._is_byte_level else sentencepiece_bytes(token)
            self._known[token_id] = known
        return known


def _steps(decoder: decoders.Decoder | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())  # the library's own serialization: it has no other view of a decoder's parts
    steps: list[Mapping[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps
