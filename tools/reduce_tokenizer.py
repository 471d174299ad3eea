"""Reduce a published tokenizer.json to what a corpus needs, for the tests of the tokenizers that we build from GGUF.

Usage: python tools/reduce_tokenizer.py TOKENIZER_JSON CORPUS OUT. Keeps all single characters and byte tokens, the tokens
of the corpus, those they are merged from, and the rules around the model as they were published; ids are new. Fails
if the reduced tokenizer cuts the corpus in another way than the whole one.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

ADDED_TOKENS_MAX = 24


def reduce(whole: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """Return `whole` with the vocabulary and merges that `texts` use."""
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    used = {token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).tokens}
    model = whole["model"]
    ranks = {tuple(m.split(" ") if isinstance(m, str) else m): rank for rank, m in enumerate(model["merges"])}
    merges = {merge for token in used for merge in merges_of(token, ranks)}
    added = [a for i, a in enumerate(whole["added_tokens"]) if i < ADDED_TOKENS_MAX or a["content"] in used]
    kept = used | {a["content"] for a in added if a["content"] in model["vocab"]}
    kept |= {part for merge in merges for part in (*merge, "".join(merge))}
    kept |= {t for t in model["vocab"] if is_base(t, byte_fallback=model["byte_fallback"])}
    order = sorted((t for t in kept if t in model["vocab"]), key=model["vocab"].__getitem__)
    vocabulary = {token: token_id for token_id, token in enumerate(order)}
    for token in added:
        token["id"] = vocabulary.get(token["content"], len(vocabulary))
        vocabulary.setdefault(token["content"], token["id"])
    inside = {t: i for t, i in vocabulary.items() if t in model["vocab"]}
    ordered = [list(merge) for merge in sorted(merges, key=ranks.__getitem__)]
    return {**whole, "added_tokens": added, "post_processor": None, "model": {**model, "vocab": inside, "merges": ordered}}


def is_base(token: str, *, byte_fallback: bool) -> bool:
    """Return whether every reduced vocabulary has this token."""
    is_byte = byte_fallback and len(token) == 6 and token.startswith("<0x")
    return is_byte or (len(token) == 1 and (not byte_fallback or token.isascii() or token == "\u2581"))


def merges_of(token: str, ranks: dict[tuple[str, ...], int]) -> list[tuple[str, ...]]:
    """Return the merges that make `token` out of its characters, in the order in which they happen."""
    parts, done = list(token), []
    while len(parts) > 1:
        rank, at = min((ranks.get((a, b), len(ranks)), i) for i, (a, b) in enumerate(pairwise(parts)))
        if rank == len(ranks):
            break
        done.append((parts[at], parts[at + 1]))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return done


def main() -> None:
    """Reduce, check and write."""
    source, corpus, out = (Path(argument) for argument in sys.argv[1:])
    whole = json.loads(source.read_text(encoding="utf-8"))
    text = corpus.read_text(encoding="utf-8")
    texts = [text, *text.split("\n")]
    large = Tokenizer.from_str(json.dumps(whole))
    before = [large.encode(t, add_special_tokens=False).tokens for t in texts]
    reduced = reduce(whole, texts)
    small = Tokenizer.from_str(json.dumps(reduced))
    after = [small.encode(t, add_special_tokens=False).tokens for t in texts]
    differing = [t for t, a, b in zip(texts, before, after, strict=True) if a != b]
    if differing:
        sys.exit(f"the reduced tokenizer cuts {len(differing)} texts in another way, the first is {differing[0]!r}")
    out.write_text(json.dumps(reduced, ensure_ascii=True, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
