"""The prefix index: who shares with whom, and who waits for whom."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kv.prefix_index import PrefixIndex

SIZE = 4
TOKENS = np.arange(12, dtype=np.int32)


def test_a_hash_depends_on_all_that_came_before() -> None:
    index = PrefixIndex(SIZE)
    chain = index.chain(index.root(()), TOKENS)
    changed = TOKENS.copy()
    changed[0] = 99
    other = index.chain(index.root(()), changed)
    assert not set(chain) & set(other)
    assert index.chain(index.root(()), TOKENS[:8]) == chain[:2]


def test_tenants_and_salts_do_not_share() -> None:
    index = PrefixIndex(SIZE)
    roots = {index.root(parts) for parts in (("a", ""), ("", "a"), ("a", "b"), ("ab", ""), ("", "ab"), ("", ""), ())}
    assert len(roots) == 7
    assert index.root(("a", "b")) == index.root(("a", "b"))
    index.root(("\ud800",))


def test_two_processes_hash_differently() -> None:
    assert PrefixIndex(SIZE).root(()) != PrefixIndex(SIZE).root(())


def test_the_longest_beginning_is_found() -> None:
    index = PrefixIndex(SIZE)
    chain = index.chain(index.root(()), TOKENS)
    index.insert(chain[0], 5)
    index.insert(chain[2], 7)
    assert index.match(chain) == [5]
    index.insert(chain[1], 6)
    assert index.match(chain) == [5, 6, 7]
    index.remove(6)
    assert index.match(chain) == [5]
    assert not index.holds(6)


def test_the_first_of_two_equal_blocks_stays_the_one() -> None:
    index = PrefixIndex(SIZE)
    index.insert(b"x", 1)
    index.insert(b"x", 2)
    assert index.match([b"x"]) == [1]
    assert not index.holds(2)


def test_claims_end_when_the_block_is_there_or_the_claimant_leaves() -> None:
    index = PrefixIndex(SIZE)
    index.claim([b"x", b"y"], 1)
    index.claim([b"y", b"z"], 2)
    index.insert(b"x", 0)
    assert not index.is_claimed(b"x")
    index.drop_claims([b"x", b"y", b"z"], 2)
    assert index.is_claimed(b"y")
    assert not index.is_claimed(b"z")
    index.drop_claims([b"x", b"y"], 1)
    assert index.num_claims() == 0


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_two_texts_share_exactly_their_equal_whole_blocks(first: list[int], second: list[int]) -> None:
    index = PrefixIndex(2)
    root = index.root(())
    chains = [index.chain(root, np.array(tokens, np.int32)) for tokens in (first, second)]
    for block, block_hash in enumerate(chains[0]):
        index.insert(block_hash, block)
    shared = len(index.match(chains[1]))
    most = min(len(first), len(second)) // 2
    expected = max((n for n in range(most + 1) if first[: 2 * n] == second[: 2 * n]), default=0)
    assert shared == expected
