"""Tokenizers of real models, and small ones cut from published tokenizer.json files (tools/reduce_tokenizer.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from gristmill.text.tokenizer import Tokenizer
from gristmill.weights.gguf import read_gguf

DATA = Path(__file__).parent.parent / "data"
PRE_TOKENIZERS = {"llama3": "llama-bpe", "qwen3": "qwen2", "gpt4o": "gpt-4o", "deepseek": "deepseek-v3", "llama2": None}


class Pair:
    """An original tokenizer, and the same one as it comes out of a GGUF file.

    Not a dataclass: Hypothesis prints their fields, and these are megabytes.
    """

    def __init__(self, original_json: str, pre: str | None) -> None:
        self.original_json = original_json
        self.original = tokenizers.Tokenizer.from_str(original_json)
        self.metadata: Mapping[str, Any] = as_gguf(json.loads(original_json), pre)
        self.ours = Tokenizer.from_gguf(self.metadata)


def as_gguf(original: Mapping[str, Any], pre: str | None) -> dict[str, Any]:
    """Write a tokenizer.json as llama.cpp's converter would."""
    model = original["model"]
    added = original["added_tokens"]
    size = 1 + max(*model["vocab"].values(), *(token["id"] for token in added))
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [5] * size
    for token, token_id in model["vocab"].items():
        tokens[token_id] = token
        types[token_id] = 6 if pre is None and re.fullmatch("<0x..>", token) else 1
    for token in added:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    if pre is not None:
        merges = [" ".join(merge) for merge in model["merges"]]
        return {**metadata, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": merges}
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model["merges"]):
        ranks.setdefault("".join(merge), rank)
    scores = [-float(ranks.get(token, 10**6)) for token in tokens]
    return {**metadata, "tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores}


@pytest.fixture(scope="session")
def pairs() -> Mapping[str, Pair]:
    folder = DATA / "tokenizers"
    return {name: Pair((folder / f"{name}.json").read_text(encoding="utf-8"), pre) for name, pre in PRE_TOKENIZERS.items()}


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    text = (DATA / "corpus.txt").read_text(encoding="utf-8")
    runs = [space * count + "x" for space in " \n\t" for count in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100)]
    return [text, *text.split("\n"), *runs, "a\r\nb\r\r\n c", "\x00\x01\x7f", ""]


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> Mapping[str, Any]:
    return read_gguf(smollm2_path).metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf(gemma3_path).metadata)


@pytest.fixture(scope="session")
def unigram() -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """A small unigram tokenizer with byte fallback, and the same through GGUF."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((f"<0x{byte:02X}>", -20.0) for byte in range(256))]
    words = [
        "\u2581",
        "\u2581the",
        "\u2581mill",
        "mill",
        "er",
        "s",
        "\u2581grind",
        "i",
        "n",
        "g",
        "in",
        "ing",
        "t",
        "h",
        "e",
        "m",
        "l",
    ]
    pieces += [(word, -1.0 - 0.5 * rank) for rank, word in enumerate(words)]
    original = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2, byte_fallback=True))
    original.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Strip(), tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    original.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    original.add_special_tokens(["<pad>", "</s>", "<unk>"])
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score in pieces],
        "tokenizer.ggml.token_type": [3, 3, 2] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
    }
    return original, Tokenizer.from_gguf(metadata)
