"""How many prompt tokens fit into a step of the target length beside decoding sequences."""

from __future__ import annotations

FIRST_CHUNK_TOKENS = 64  # before any prefill was seen
LEAST_CHUNK_TOKENS = 16  # so that a prompt always moves on, however slow the machine
LEAST_SAMPLE_TOKENS = 16  # shorter chunks say little about the time of a token
WEIGHT_OF_NEWEST = 0.25  # in the running averages: a step that was disturbed is forgotten after a dozen


class Pace:
    """Learns from each step's device time; says how long the next chunk may be."""

    def __init__(self, target_step_ns: int) -> None:
        self._target_step_ns = target_step_ns
        self._ns_per_token = 0.0  # of a chunk; 0 = not known yet
        self._decode_ns = 0.0  # of a step that only decodes

    def chunk_tokens(self, num_decodes: int, most: int) -> int:
        """Return how many prompt tokens the next step may compute, `most` at most.

        Nobody waits for a step without decoding sequences, so it is not cut.
        """
        if num_decodes == 0 or self._target_step_ns == 0:
            return most
        if self._ns_per_token == 0.0:
            return min(most, FIRST_CHUNK_TOKENS)
        fitting = int((self._target_step_ns - self._decode_ns) / self._ns_per_token)
        return min(most, max(fitting, LEAST_CHUNK_TOKENS))

    def learn(self, num_decodes: int, num_chunk_tokens: int, device_ns: int) -> None:
        """Take in what a step has computed and how long that took."""
        if num_chunk_tokens == 0:
            self._decode_ns = _average(self._decode_ns, device_ns)
        elif num_chunk_tokens >= LEAST_SAMPLE_TOKENS:
            beside_ns = self._decode_ns if num_decodes > 0 else 0.0
            # The decodes' share is an estimate; a chunk never costs less than its share by count.
            least_ns = device_ns * num_chunk_tokens / (num_chunk_tokens + num_decodes) / 2
            self._ns_per_token = _average(self._ns_per_token, max(device_ns - beside_ns, least_ns, 1.0) / num_chunk_tokens)


def _average(old: float, new: float) -> float:
    return new if old == 0.0 else old + WEIGHT_OF_NEWEST * (new - old)
