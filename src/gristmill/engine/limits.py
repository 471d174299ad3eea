"""What an engine may take on: resolved from the settings, never changed."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.backends.base import BLOCK_SIZE_TOKENS


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of one engine."""

    max_num_seqs: int  # sequences that run at once
    max_step_tokens: int  # tokens computed in one step
    target_step_ns: int  # a chunk beside decoding sequences is cut to this; 0 = no cap
    max_model_len: int  # tokens of one request, prompt and answer together
    num_blocks: int  # KV blocks of the address space
    prefix_cache: bool = True
    max_waiting_requests: int = 4096
    max_waiting_tokens: int = 4_194_304

    @property
    def max_running(self) -> int:
        """Most sequences that run: each of them must get its token in every step."""
        return min(self.max_num_seqs, self.max_step_tokens)

    @property
    def max_sequence_len(self) -> int:
        """Most tokens of one sequence: the context, or all the KV there is."""
        return min(self.max_model_len, self.num_blocks * BLOCK_SIZE_TOKENS)
