from __future__ import annotations

from gristmill.text.merges import derive_merges


def merges_of(scored: dict[str, float]) -> list[tuple[str, str]]:
    return derive_merges(list(scored), list(scored.values()), {piece: i for i, piece in enumerate(scored)})


def test_merges_are_ordered_by_the_score_of_what_they_make():
    assert merges_of({"a": -9.0, "b": -9.5, "ab": -2.0, "ba": -1.0}) == [("b", "a"), ("a", "b")]


def test_ways_to_make_one_piece_are_ordered_by_the_longer_left_part():
    scored = {"a": -9.0, "aa": -3.0, "aaa": -2.0}
    assert merges_of(scored) == [("aa", "a"), ("a", "aa"), ("a", "a")]


def test_ties_are_ordered_by_both_lengths_then_by_id():
    scored = {"x": -5.0, "y": -6.0, "xx": 0.0, "yy": 0.0, "xxx": 0.0}
    assert merges_of(scored) == [("xx", "x"), ("x", "xx"), ("x", "x"), ("y", "y")]


def test_parts_that_are_not_in_the_vocabulary_make_no_merge():
    assert merges_of({"a": 0.0, "abc": 1.0}) == []
