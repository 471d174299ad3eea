"""The block pool: order, references, eviction, and random traces against a model of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.kv.block_pool import BlockPool
from gristmill.kv.prefix_index import PrefixIndex

SIZE = 4


def _pool(num_blocks: int, committed: int | None = None) -> tuple[BlockPool, PrefixIndex]:
    index = PrefixIndex(SIZE)
    pool = BlockPool(num_blocks, index)
    pool.commit(num_blocks if committed is None else committed)
    return pool, index


def test_blocks_come_lowest_first_in_ascending_runs() -> None:
    pool, _ = _pool(8)
    first = pool.allocate(3)
    second = pool.allocate(2)
    assert (first, second) == ([0, 1, 2], [3, 4])
    pool.release(first)
    assert pool.allocate(4) == [0, 1, 2, 5]


def test_only_committed_blocks_are_handed_out() -> None:
    pool, _ = _pool(8, committed=2)
    assert pool.num_available == 2
    pool.allocate(2)
    with pytest.raises(AssertionError):
        pool.allocate(1)
    pool.commit(5)
    assert pool.allocate(3) == [2, 3, 4]


def test_an_unreferenced_indexed_block_stays_until_it_is_needed() -> None:
    pool, index = _pool(2)
    block = pool.allocate(1)
    index.insert(b"x", block[0])
    pool.release(block)
    assert index.match([b"x"]) == block
    assert pool.allocate(1) == [1], "a fresh block is taken before a cached one"
    assert pool.num_cached == pool.num_available == 1
    assert pool.allocate(1) == block
    assert index.match([b"x"]) == []


def test_the_least_recently_used_and_the_end_of_a_text_are_evicted_first() -> None:
    pool, index = _pool(5)
    old, new = pool.allocate(2), pool.allocate(3)
    for block in (*old, *new):
        index.insert(bytes([block]), block)
    pool.release(new)
    pool.acquire(old)
    pool.release(old)
    pool.release(old)
    assert pool.allocate(5) == [4, 3, 2, 1, 0]


def test_an_adopted_block_is_not_evicted() -> None:
    pool, index = _pool(2)
    blocks = pool.allocate(2)
    for block in blocks:
        index.insert(bytes([block]), block)
    pool.release(blocks)
    assert pool.num_cached_among(blocks) == 2
    pool.acquire(index.match([bytes([0])]))
    assert pool.num_cached_among(blocks) == 1
    assert pool.allocate(1) == [1]
    assert pool.num_available == 0


def test_a_block_freed_twice_is_our_own_mistake() -> None:
    pool, _ = _pool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError):
        pool.release(blocks)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_traces_neither_leak_nor_share_wrongly(data: st.DataObject) -> None:
    num_blocks = data.draw(st.integers(1, 12))
    pool, index = _pool(num_blocks, committed=data.draw(st.integers(0, num_blocks)))
    held: list[list[int]] = []
    named: dict[bytes, int] = {}  # what the index was told last
    for number in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(["allocate", "release", "insert", "adopt", "commit"]))
        if action == "allocate" and pool.num_available:
            taken = pool.allocate(data.draw(st.integers(1, pool.num_available)))
            assert not set(taken) & {block for blocks in held for block in blocks}
            named = {name: block for name, block in named.items() if block not in taken}
            held.append(taken)
        elif action == "release" and held:
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif action == "insert" and held:
            block = data.draw(st.sampled_from(data.draw(st.sampled_from(held))))
            if not index.holds(block):
                named[str(number).encode()] = block
                index.insert(str(number).encode(), block)
        elif action == "adopt" and named:
            name = data.draw(st.sampled_from(sorted(named)))
            assert index.match([name]) == [named[name]]
            pool.acquire([named[name]])
            held.append([named[name]])
        elif action == "commit":
            pool.commit(data.draw(st.integers(pool.num_committed, num_blocks)))
        distinct = {block for blocks in held for block in blocks}
        assert pool.num_referenced == len(distinct)
        assert pool.num_available == pool.num_committed - len(distinct)
        assert all(pool.references(block) == sum(blocks.count(block) for blocks in held) for block in range(num_blocks))
        assert len(index) == len(named)
    for blocks in held:
        pool.release(blocks)
    assert pool.num_referenced == 0
    assert sorted(pool.allocate(pool.num_available)) == list(range(pool.num_committed))
    assert len(index) == 0


def test_hashes_of_blocks_are_of_whole_blocks_only() -> None:
    index = PrefixIndex(SIZE)
    tokens = np.arange(11, dtype=np.int32)
    assert len(index.chain(index.root(()), tokens)) == 2
