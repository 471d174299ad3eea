"""Barriers, lifetimes and places in the activation arena, all derived from what the ops read and write.

Threads run the list of ops side by side; only a barrier orders them. There are two schedules, since with one
row private buffers need no barriers; memory may be reused only where both allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gristmill.backends.cpu.lowering import Lowered
from gristmill.backends.cpu.plan_ops import Access, Buffer, Gather, PlanOp

ALIGNMENT = 64
# Buffers start at different offsets modulo 4 KiB, so that rows of several do not compete for one cache set.
SKEW = 5 * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Barriers:
    """Whether all threads wait before op i: in steps of many rows, and in steps of one."""

    many: tuple[bool, ...]
    single: tuple[bool, ...]


def barriers(lowered: Lowered) -> Barriers:
    """Find the fewest barriers that order every write against other reads and writes."""
    return Barriers(_barriers(lowered, is_single=False), _barriers(lowered, is_single=True))


def _barriers(lowered: Lowered, *, is_single: bool) -> tuple[bool, ...]:
    result = []
    reads: list[Access] = []
    writes: list[Access] = []
    for op in lowered.ops:
        op_reads = _shared(op.reads(), lowered.buffers, is_single)
        op_writes = _shared(op.writes(), lowered.buffers, is_single)
        waits = isinstance(op, Gather) or _touch(op_reads, writes) or _touch(op_writes, reads + writes)
        if waits:
            reads, writes = [], []
        result.append(waits)
        reads += op_reads
        writes += op_writes
    return tuple(result)


def _shared(accesses: Iterable[Access], buffers: Sequence[Buffer], is_single: bool) -> list[Access]:
    return [a for a in accesses if a.buffer < 0 or not (is_single and buffers[a.buffer].is_private)]


def _touch(some: Sequence[Access], others: Sequence[Access]) -> bool:
    return any(
        a.buffer == b.buffer and a.column_begin < b.column_end and b.column_begin < a.column_end for a in some for b in others
    )


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The ops, first to last inclusive, during which a buffer's bytes must not be used for anything else."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """True if both are alive at some op."""
        return self.first <= other.last and other.first <= self.last


def lifetimes(lowered: Lowered, plan_barriers: Barriers) -> list[Lifetime]:
    """Widen each buffer's first and last use to the barriers around it; the head's ops repeat for each tile."""
    phases = [_phases(plan_barriers.many), _phases(plan_barriers.single)]
    gather = head_begin(lowered.ops)
    uses: dict[int, list[int]] = {}
    for i, op in enumerate(lowered.ops):
        for access in (*op.reads(), *op.writes()):
            uses.setdefault(access.buffer, []).append(i)
    result = []
    for buffer in range(len(lowered.buffers)):
        first, last = min(uses[buffer]), max(uses[buffer])
        if first < gather <= last:
            last = len(lowered.ops) - 1
        starts, ends = zip(*(_around(phase, first, last) for phase in phases), strict=True)
        result.append(Lifetime(min(starts), max(ends)))
    return result


def _phases(waits: Sequence[bool]) -> list[int]:
    phase = 0
    result = []
    for wait in waits:
        phase += wait
        result.append(phase)
    return result


def _around(phases: Sequence[int], first: int, last: int) -> tuple[int, int]:
    start = phases.index(phases[first])
    end = len(phases) - 1 - phases[::-1].index(phases[last])
    return start, end


def place(sizes: Sequence[int], alive: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets such that buffers alive at once do not overlap, and the bytes of the arena; largest first."""
    offsets = [0] * len(sizes)
    placed: list[int] = []
    for buffer in sorted(range(len(sizes)), key=lambda b: (-sizes[b], b)):
        offset = 0
        for other in sorted((o for o in placed if alive[o].overlaps(alive[buffer])), key=lambda o: offsets[o]):
            if offset + sizes[buffer] <= offsets[other]:
                break
            offset = max(offset, offsets[other] + sizes[other])
        offsets[buffer] = offset
        placed.append(buffer)
    total = max((offsets[b] + sizes[b] for b in placed), default=0)
    return offsets, total


def padded(size: int) -> int:
    """Bytes that a buffer of `size` takes in the arena."""
    return -(-size // ALIGNMENT) * ALIGNMENT + SKEW


def head_begin(ops: Sequence[PlanOp]) -> int:
    """The index of the first op that runs once for each tile of logits rows."""
    return next(i for i, op in enumerate(ops) if isinstance(op, Gather))
