"""How long a chunk may be."""

from __future__ import annotations

from gristmill.engine.pace import FIRST_CHUNK_TOKENS, LEAST_CHUNK_TOKENS, Pace

MS = 1_000_000


def test_without_decodes_or_a_target_nothing_is_cut() -> None:
    assert Pace(10 * MS).chunk_tokens(0, 500) == 500
    assert Pace(0).chunk_tokens(8, 500) == 500


def test_the_first_chunk_beside_decodes_is_cautious() -> None:
    assert Pace(10 * MS).chunk_tokens(1, 500) == FIRST_CHUNK_TOKENS
    assert Pace(10 * MS).chunk_tokens(1, 20) == 20


def test_the_chunk_is_what_fits_beside_the_decodes() -> None:
    pace = Pace(10 * MS)
    for _ in range(30):
        pace.learn(4, 0, 2 * MS)
        pace.learn(4, 100, 7 * MS)
    assert pace.chunk_tokens(4, 500) == 160


def test_a_slower_machine_gets_shorter_chunks_and_never_none() -> None:
    pace = Pace(10 * MS)
    pace.learn(4, 0, 2 * MS)
    lengths = []
    for step_ns in (7 * MS, 14 * MS, 28 * MS, 10_000 * MS):
        for _ in range(30):
            pace.learn(4, 100, step_ns)
        lengths.append(pace.chunk_tokens(4, 500))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == LEAST_CHUNK_TOKENS


def test_short_chunks_teach_nothing() -> None:
    pace = Pace(10 * MS)
    pace.learn(0, 3, 9 * MS)
    assert pace.chunk_tokens(1, 500) == FIRST_CHUNK_TOKENS
