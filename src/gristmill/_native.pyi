"""The native module: kernels, thread pool, KV memory and plans. Built from native/."""

import numpy as np
from numpy.typing import NDArray

from gristmill.backends.base import Batch

Bytes = NDArray[np.uint8]
I32 = NDArray[np.int32]
Place = tuple[int, int]  # buffer, first column
Waits = tuple[bool, bool]  # a barrier before the op: in steps of many rows, in steps of one
Segment = tuple[int, Bytes, Bytes | None, int, Place]  # format, weight, bias, output channels, y

def cpu_model() -> str: ...
def compiled_tiers() -> list[str]:
    """Kernel tiers of this build, slowest first."""

def missing_features(tier: str) -> list[str]:
    """What this CPU lacks for `tier`; empty = it runs here."""

def available_memory_bytes() -> int:
    """What can be allocated without swapping or being killed, control groups considered."""

def aligned_empty(num_bytes: int) -> Bytes:
    """Zeroed memory on huge pages, 64-byte aligned; small arrays share pages."""

def pack(type: int, source: Bytes, n: int, k: int, packed: Bytes, row_ids: NDArray[np.int64] | None = None) -> int:
    """Pack published rows into layout B32, in `packed` of exactly Format.packed_bytes; the GIL is released.

    `row_ids` [n]: which source row is output channel i. Returns how many scales and minimums fp16 could not
    hold to its full precision. Raises: ValueError for sizes that do not fit together.
    """

def attention_partial_bytes(
    *, num_heads: int, head_dim: int, window: int, max_num_seqs: int, max_model_len: int, num_threads: int
) -> int:
    """Scratch that the attention of one shape needs at most."""

def quantized_bytes(tier: str, num_rows: int, k: int) -> int: ...
def sample_scratch_bytes(tier: str, vocab_size: int) -> int: ...

class ThreadPool:
    """The threads that run steps; the caller of a step is one of them."""

    def __init__(self, num_threads: int) -> None: ...
    @property
    def size(self) -> int: ...

class KvArena:
    """The KV cache's memory: address space for all blocks, committed slab by slab."""

    def __init__(self, *, num_layers: int, num_kv_heads: int, head_dim: int, num_blocks: int, reserve_bytes: int) -> None: ...
    @property
    def num_committed_blocks(self) -> int: ...
    @property
    def is_short_of_memory(self) -> bool: ...
    @property
    def blocks_per_slab(self) -> int: ...
    def request_blocks(self, count: int) -> None: ...
    def commit_now(self, count: int) -> bool: ...
    def release(self) -> None: ...
    def copy_blocks(self, source_ids: I32, target_ids: I32) -> None: ...

class Plan:
    """A model as a flat list of ops; ops are appended in order, then `step` runs them."""

    def __init__(
        self,
        *,
        pool: ThreadPool,
        kv: KvArena,
        tier: str,
        max_step_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int,
        tile_rows: int,
        arena_bytes: int,
    ) -> None: ...
    def add_buffer(self, *, offset: int, width: int, private_stride: int) -> int: ...
    def embed(self, waits: Waits, *, format: int, weight: Bytes, vocab: int, width: int, scale: float, out: Place) -> None: ...
    def norm(
        self,
        waits: Waits,
        *,
        x: Place,
        weight: Bytes,
        eps: float,
        width: int,
        head_dim: int,
        out: Place | None,
        quantized: int,
    ) -> None: ...
    def quantize(self, waits: Waits, *, x: Place, width: int, quantized: int) -> None: ...
    def act_mul(
        self, waits: Waits, *, gate: Place, up: Place, width: int, kind: int, out: Place | None, quantized: int
    ) -> None: ...
    def linear(
        self, waits: Waits, *, x: Place | None, quantized: int, k: int, accumulate: bool, segments: list[Segment]
    ) -> None: ...
    def rope_table(self, waits: Waits, *, inv_freq: list[float], attention_factor: float, cos: Place, sin: Place) -> None: ...
    def rope_store(
        self,
        waits: Waits,
        *,
        q: Place,
        k: Place,
        v: Place,
        cos: Place | None,
        sin: Place | None,
        half: int,
        layer: int,
        num_heads: int,
    ) -> None: ...
    def attend(
        self,
        waits: Waits,
        *,
        q: Place,
        out: Place,
        layer: int,
        num_heads: int,
        scale: float,
        window: int,
        softcap: float,
    ) -> None: ...
    def add(self, waits: Waits, *, x: Place, y: Place, out: Place, width: int) -> None: ...
    def softcap(self, waits: Waits, *, x: Place, out: Place, width: int, cap: float) -> None: ...
    def gather(self, waits: Waits, *, x: Place, out: Place, width: int) -> None: ...
    def sample(self, waits: Waits, *, logits: Place, vocab: int) -> None: ...
    def step(
        self,
        batch: Batch,
        *,
        token_ids: I32,
        is_finite: NDArray[np.bool_],
        logprobs: NDArray[np.float32],
        top_ids: I32,
        top_logprobs: NDArray[np.float32],
    ) -> int:
        """Run one step into the arrays given and return its nanoseconds. Raises: ValueError for a bad batch."""

    def release(self) -> None: ...
