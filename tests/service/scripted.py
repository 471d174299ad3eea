"""A deployment whose model says what the prompt tells it to: the real engine over an executable that copies.

The tokenizer has one token per byte. The answer to a prompt with `{text}` in it is that text and an end token; any
other prompt gets the alphabet for ever. With a temperature, letters are drawn from (seed, choice, position).
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill.backends.base import BLOCK_SIZE_TOKENS, Batch, StepOutput
from gristmill.core.clock import MonotonicClock
from gristmill.core.request import TokenEvent
from gristmill.engine.handle import Engine
from gristmill.engine.limits import EngineLimits
from gristmill.metrics.engine_metrics import EngineMetrics
from gristmill.text.template import ChatTemplate
from gristmill.text.tokenizer import Tokenizer

IM_START, IM_END = 256, 257
VOCAB_SIZE = 258
NAN_TEXT, DEATH_TEXT = b"NaN!", b"Die!"  # in a prompt: logits that are not finite; an engine that dies
CHATML = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ANSWER_HEAD = b"<|im_end|>\n<|im_start|>assistant\n"


class CopyExecutable:
    """Remembers the token of every KV slot, so that it can read a whole context back. `hold()` stops it."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_steps = 0
        self.is_closed = False
        self._tokens = np.zeros(num_blocks * BLOCK_SIZE_TOKENS, np.int32)
        self._committed = 0
        self._permits = threading.Semaphore(0)
        self._is_held = False

    def hold(self) -> None:
        """From now on each step needs a permit."""
        self._is_held = True

    def permit(self, steps: int = 1) -> None:
        """Let so many steps happen."""
        self._permits.release(steps)

    def free(self) -> None:
        """No step needs a permit any more."""
        self._is_held = False
        self._permits.release()

    def submit(self, batch: Batch) -> StepOutput:
        if self._is_held:
            self._permits.acquire()
        self._tokens[batch.slot_mapping[0]] = batch.token_ids
        self.num_steps += 1
        ends = (batch.query_start[1:] - 1).tolist()
        contexts = [self._context(batch, ends.index(row)) for row in batch.logits_rows.tolist()]
        if any(DEATH_TEXT in context for context in contexts):
            raise RuntimeError("the device is gone")
        columns = batch.sampling
        draws = zip(columns.temperature, columns.seed, columns.choice, columns.position, strict=True)
        tokens = [next_token(context, *draw) for context, draw in zip(contexts, draws, strict=True)]
        num_top = max(0, int(columns.num_logprobs.max(initial=-1)))
        return StepOutput(
            np.array(tokens, np.int32),
            np.array([NAN_TEXT not in context for context in contexts], np.bool_),
            np.full(len(tokens), -0.5, np.float32),
            np.array([[(token + k) % VOCAB_SIZE for k in range(num_top)] for token in tokens], np.int32).reshape(
                len(tokens), num_top
            ),
            np.tile(-0.5 - np.arange(num_top, dtype=np.float32), (len(tokens), 1)),
            1000,
        )

    def collect(self, ticket: StepOutput) -> StepOutput:
        return ticket

    def num_committed_blocks(self) -> int:
        return self._committed

    def request_blocks(self, count: int) -> None:
        self._committed = max(self._committed, count)

    def copy_blocks(self, source_ids: np.ndarray, target_ids: np.ndarray) -> None:
        blocks = self._tokens.reshape(-1, BLOCK_SIZE_TOKENS)
        blocks[target_ids] = blocks[source_ids]

    def fingerprint(self) -> str:
        return "copy"

    def close(self) -> None:
        self.is_closed = True

    def _context(self, batch: Batch, sequence: int) -> bytes:
        blocks = self._tokens.reshape(-1, BLOCK_SIZE_TOKENS)[batch.block_tables[0][sequence]]
        ids = blocks.reshape(-1)[: batch.context_len[sequence]].tolist()
        return b"".join(token_bytes(i) for i in ids)


def token_bytes(token_id: int) -> bytes:
    return bytes([token_id]) if token_id < 256 else {IM_START: b"<|im_start|>", IM_END: b"<|im_end|>"}[token_id]


def next_token(context: bytes, temperature: float, seed: int, choice: int, position: int) -> int:
    if temperature > 0:
        return random.Random(f"{seed}/{choice}/{position}").randrange(ord("a"), ord("z") + 1)
    begin, end = context.find(b"{"), context.find(b"}")
    if begin < 0 or end < 0:
        return ord("a") + int(position) % 26
    said = len(context[end + 1 :].removeprefix(ANSWER_HEAD))
    text = context[begin + 1 : end]
    return text[said] if said < len(text) else IM_END


def byte_tokenizer() -> Tokenizer:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}
    added = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for i, text in ((IM_START, "<|im_start|>"), (IM_END, "<|im_end|>"))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": False}
    pipeline = {"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level, "model": model}
    return Tokenizer.from_huggingface(json.dumps(pipeline), {"eos_token": "<|im_end|>"}, {}, {})


@dataclass
class ScriptedDeployment:
    """What the service needs of a `repository.deployment.Deployment`, around the copying executable."""

    name: str = "copy"
    max_model_len: int = 512
    max_num_seqs: int = 32
    max_waiting_requests: int = 64
    defaults: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.0})
    template: ChatTemplate | None = field(default_factory=lambda: ChatTemplate(CHATML))
    fingerprint: str = "gm-test"

    def __post_init__(self) -> None:
        self.tokenizer = byte_tokenizer()
        self.end_token_ids = frozenset({IM_END})
        self.metrics = EngineMetrics()
        num_blocks = self.max_num_seqs * -(-self.max_model_len // BLOCK_SIZE_TOKENS) + 1
        self.executable = CopyExecutable(num_blocks)
        limits = EngineLimits(
            max_num_seqs=self.max_num_seqs,
            max_step_tokens=256,
            target_step_ns=0,
            max_model_len=self.max_model_len,
            num_blocks=num_blocks,
            max_waiting_requests=self.max_waiting_requests,
        )
        self._listener: Callable[[list[TokenEvent]], None] = lambda events: None
        self.engine = Engine(self.executable, limits, MonotonicClock(), lambda events: self._listener(events), self.metrics)
        self.submitted = self._counted("submit")
        self.aborted = self._counted("abort")
        self.engine.start()

    def _counted(self, name: str) -> threading.Semaphore:
        """Count the calls of one of the engine's methods, so that a test can wait for them."""
        count, method = threading.Semaphore(0), getattr(self.engine, name)

        def counted(*arguments: Any) -> None:
            method(*arguments)
            count.release()

        setattr(self.engine, name, counted)
        return count

    def listen(self, listener: Callable[[list[TokenEvent]], None]) -> None:
        self._listener = listener

    def close(self) -> None:
        self.executable.free()
        self.engine.close(5.0)


@contextmanager
def scripted_deployment(**fields: Any) -> Iterator[ScriptedDeployment]:
    deployment = ScriptedDeployment(**fields)
    try:
        yield deployment
    finally:
        deployment.close()
