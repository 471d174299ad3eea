"""The merges of a SentencePiece BPE vocabulary, which a GGUF file does not carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def derive_merges(pieces: Sequence[str], scores: Sequence[float], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """List every way to join two known pieces into a third, best first.

    SentencePiece joins the two neighbours whose joint piece has the best score. Hugging Face turns that into a list of
    merges: by the score of the result, ties by the longer left part, then by the longer right part, then by id; for the
    original Gemma 3 vocabulary this gives its tokenizer.json, merge for merge.
    Scores are distinct but for the few pieces that a user added, so that almost nothing needs sorting.
    """
    merges: list[tuple[str, str]] = []
    tied_score, tied_from, num_tied = float("nan"), 0, 0
    for piece_id in sorted(range(len(pieces)), key=scores.__getitem__, reverse=True):
        if scores[piece_id] != tied_score:
            _sort_tied(merges, tied_from, num_tied)
            tied_score, tied_from, num_tied = scores[piece_id], len(merges), 0
        num_tied += 1
        piece = pieces[piece_id]
        for cut in range(len(piece) - 1, 0, -1):  # a million times for a large vocabulary: no call in here
            if (left := piece[:cut]) in vocabulary and (right := piece[cut:]) in vocabulary:
                merges.append((left, right))
    _sort_tied(merges, tied_from, num_tied)
    return merges


def _sort_tied(merges: list[tuple[str, str]], tied_from: int, num_pieces: int) -> None:
    if num_pieces > 1:
        merges[tied_from:] = sorted(merges[tied_from:], key=lambda merge: (-len(merge[0]), -len(merge[1])))
