"""What one step computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gristmill.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt, or of what is recomputed after a preemption."""

    sequence: Sequence
    num_tokens: int
    is_last: bool  # it reaches the last known token, so a token is sampled


@dataclass(slots=True)
class Schedule:
    """The sequences of a step: first those that compute one token and sample the next, then the chunks."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source block, target block), before the step
    is_dense: bool = False  # every running sequence decodes, and nothing else happens: rows 0 .. n - 1

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to compute."""
        return not self.decodes and not self.chunks

    @property
    def num_chunk_tokens(self) -> int:
        """How many tokens the chunks have together."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    def sampled(self) -> list[Sequence]:
        """Return the sequences that get a token, in the order of the batch's logits rows."""
        return self.decodes + [chunk.sequence for chunk in self.chunks if chunk.is_last]
