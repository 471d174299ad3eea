"""The merges of a SentencePiece BPE vocabulary, which a GGUF file does not carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby


def derive_merges(pieces: Sequence[str], scores: Sequence[float], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """List every way to join two known pieces into a third, best first.

    SentencePiece joins the two neighbours whose joint piece has the best score. Hugging Face turns that into a list of
    merges: by the score of the result, ties by the longer left part, then by the longer right part, then by id; for the
    original Gemma 3 vocabulary this gives its tokenizer.json, merge for merge.
    Scores are distinct but for the few pieces that a user added, so that almost no group needs sorting.
    """
    merges: list[tuple[str, str]] = []
    by_score = sorted(range(len(pieces)), key=scores.__getitem__, reverse=True)
    for _, ids in groupby(by_score, key=scores.__getitem__):
        first, *rest = ids
        if not rest:
            _append_splits(pieces[first], vocabulary, merges)
            continue
        tied: list[tuple[str, str]] = []
        for piece_id in (first, *rest):
            _append_splits(pieces[piece_id], vocabulary, tied)
        tied.sort(key=lambda merge: (-len(merge[0]), -len(merge[1])))
        merges += tied
    return merges


def _append_splits(piece: str, vocabulary: Mapping[str, int], merges: list[tuple[str, str]]) -> None:
    for cut in range(len(piece) - 1, 0, -1):
        left = piece[:cut]
        if left in vocabulary:
            right = piece[cut:]
            if right in vocabulary:
                merges.append((left, right))
