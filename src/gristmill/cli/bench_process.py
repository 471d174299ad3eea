"""Speed of a model in this process: the engine and the service, without HTTP."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from gristmill.cli.fetch import fetch
from gristmill.core.errors import SettingsError
from gristmill.core.sampling_params import SamplingParams
from gristmill.core.settings import EngineSettings
from gristmill.llm import LLM


def measure_process(model: str, settings: EngineSettings, options: dict[str, Any]) -> dict[str, Any]:
    """Return tokens per second of prefill, decode and each batch; prompts are random ids, never cached.

    Decode is (n - 1) tokens over the time from the first token to the last; a batch's figure counts its
    output tokens over the wall time of the whole batch, prefill included.
    Raises: SettingsError if a request would be longer than the deployment takes.
    """
    num_in, num_out = options["prompt_tokens"], options["output_tokens"]
    settings = settings.model_copy(update={"max_num_seqs": max(settings.max_num_seqs, *options["batch"]), "prefix_cache": False})
    fetch(model)
    with LLM(model, **settings.model_dump()) as llm:
        _check_fits(max(num_in + num_out, *(p + 1 for p in options["prefill"])), llm.max_model_len)
        bench = _Bench(llm, options["repetitions"])
        figures: dict[str, Any] = {"model": model, "fingerprint": llm.fingerprint, "threads": llm.num_threads}
        for length in options["prefill"]:
            figures[f"prefill {length}, tok/s"] = bench.prefill(length)
        figures["decode, tok/s"] = bench.decode(32, num_out)
        for size in options["batch"]:
            figures[f"batch {size}, tok/s"] = bench.batch(size, num_in, num_out)
    return figures


class _Bench:
    def __init__(self, llm: LLM, repetitions: int) -> None:
        self._llm = llm
        self._repetitions = repetitions
        self._random = random.Random(0)
        self._run(4, 16, 4)  # warm: pages touched, threads started

    def prefill(self, length: int) -> float:
        """Tokens of a prompt per second of the time to its first token."""
        return statistics.median(length / self._run(1, length, 1)[0] for _ in range(self._repetitions))

    def decode(self, num_in: int, num_out: int) -> float:
        """Tokens per second of one stream after its first token."""
        return statistics.median((num_out - 1) / self._run(1, num_in, num_out)[1] for _ in range(self._repetitions))

    def batch(self, size: int, num_in: int, num_out: int) -> float:
        """Output tokens per second of a whole batch, prefill included."""
        return statistics.median(size * num_out / self._run(size, num_in, num_out)[0] for _ in range(self._repetitions))

    def _run(self, size: int, num_in: int, num_out: int) -> tuple[float, float]:
        """Return (wall seconds, seconds of the first request's decode)."""
        vocab_size = self._llm.vocab_size
        prompts = [[self._random.randrange(vocab_size) for _ in range(num_in)] for _ in range(size)]
        params = SamplingParams(temperature=0.0, max_tokens=num_out, ignore_eos=True)
        started = time.perf_counter()
        outputs = self._llm.generate(prompts, params, progress=False)
        return time.perf_counter() - started, outputs[0].metrics.decode_s


def _check_fits(num_tokens: int, max_model_len: int) -> None:
    if num_tokens > max_model_len:
        raise SettingsError(
            f"the benchmark needs {num_tokens:,} tokens a request; the deployment takes {max_model_len:,}.",
            "ask for fewer --prompt-tokens, --prefill or --output-tokens.",
        )
