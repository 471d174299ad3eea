"""Philox-4x32-10: the counter-based generator behind every random choice, one definition for all backends.

A draw depends on (seed, choice, position, draw) and on nothing else, so a token never depends on what ran
beside it, on the order of requests or on an earlier preemption. Source: Salmon, Moraes, Dror, Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    key      k0 = seed mod 2^32, k1 = seed div 2^32          (seed is u64)
    counter  c0 = choice, c1 = position, c2 = draw, c3 = 0   (u32 each)
    round    (c0, c1, c2, c3) <- (hi(M1 * c2) ^ c1 ^ k0, lo(M1 * c2), hi(M0 * c0) ^ c3 ^ k1, lo(M0 * c0))
             ten times; k0 += W0 and k1 += W1 (mod 2^32) between rounds
    result   the four words c0 .. c3

`position` is the index, in prompt + output, of the token that is being chosen; `draw` is 0 for choosing it.
"""

from __future__ import annotations

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10

Words = tuple[int, int, int, int]


def philox(key: tuple[int, int], counter: Words) -> Words:
    """Return the four 32-bit words that belong to `key` and `counter`."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_NUM_ROUNDS):
        product0, product1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def random_u64(seed: int, choice: int, position: int, draw: int = 0) -> int:
    """Return the 64-bit integer of one draw: word 0 is its low half, word 1 its high half."""
    words = philox((seed & _MASK, (seed >> 32) & _MASK), (choice, position, draw, 0))
    return words[0] | words[1] << 32
