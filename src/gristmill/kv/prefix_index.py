"""Which KV blocks hold which beginnings of texts: a chain of hashes, one for each whole block."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]

HASH_BYTES = 16  # 2^64 blocks before a collision is likely; the key is secret, so none can be prepared


class PrefixIndex:
    """Finds the block that holds a given 32 tokens after a given past, and remembers who is computing one.

    A block's hash covers its parent's hash and its tokens; the chain's root covers tenant and cache salt, so
    tenants never share. `root`, `extend` and `chain` touch no state: any thread may call
    them. All else belongs to the engine's thread.
    """

    def __init__(self, block_size_tokens: int, key: bytes | None = None) -> None:
        self.block_size_tokens = block_size_tokens
        self._key = key or secrets.token_bytes(HASH_BYTES)
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._claimant_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        """How many blocks are indexed."""
        return len(self._block_of)

    def root(self, parts: Iterable[str]) -> bytes:
        """Hash what separates caches (tenant, salt) into the parent of every first block."""
        digest = hashlib.blake2b(key=self._key, digest_size=HASH_BYTES)
        for part in parts:
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.digest()

    def extend(self, parent: bytes, tokens: I32) -> bytes:
        """Hash one block: tokens[block_size_tokens] after `parent`."""
        return hashlib.blake2b(parent + tokens.tobytes(), key=self._key, digest_size=HASH_BYTES).digest()

    def chain(self, root: bytes, tokens: I32) -> list[bytes]:
        """Hash every whole block of tokens[n]."""
        size, parent, hashes = self.block_size_tokens, root, []
        for start in range(0, len(tokens) - size + 1, size):
            parent = self.extend(parent, tokens[start : start + size])
            hashes.append(parent)
        return hashes

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks of the longest indexed beginning of `hashes`."""
        blocks = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def insert(self, block_hash: bytes, block: int) -> None:
        """Index a block that is now computed; an equal one that is indexed already stays the one."""
        self._claimant_of.pop(block_hash, None)
        if block_hash not in self._block_of:
            assert block not in self._hash_of, f"block {block} is indexed twice"
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def holds(self, block: int) -> bool:
        """Tell whether a block is indexed."""
        return block in self._hash_of

    def remove(self, block: int) -> None:
        """Forget a block, which is about to be overwritten."""
        del self._block_of[self._hash_of.pop(block)]

    def claim(self, hashes: Iterable[bytes], claimant: int) -> None:
        """Note that `claimant` will compute these blocks; who claimed one first keeps it."""
        for block_hash in hashes:
            self._claimant_of.setdefault(block_hash, claimant)

    def is_claimed(self, block_hash: bytes) -> bool:
        """Tell whether somebody is computing this block."""
        return block_hash in self._claimant_of

    def drop_claims(self, hashes: Iterable[bytes], claimant: int) -> None:
        """Give up what `claimant` has not computed, so that those who wait for it go on."""
        for block_hash in hashes:
            if self._claimant_of.get(block_hash) == claimant:
                del self._claimant_of[block_hash]

    def num_claims(self) -> int:
        """How many blocks are being computed by somebody."""
        return len(self._claimant_of)
