"""A model and one person who talks with it: what `run` and `chat` share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, TextIO

from gristmill.cli.fetch import fetch
from gristmill.core.errors import GristmillError
from gristmill.core.request import Usage
from gristmill.core.settings import EngineSettings
from gristmill.llm import LLM, Message


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer and its figures."""

    text: str
    usage: Usage
    first_token_s: float

    def figures(self) -> str:
        """Write tokens, rates and the time to the first token in one line."""
        usage = self.usage
        fresh = usage.prompt_tokens - usage.cached_tokens
        prefill = fresh / (usage.prefill_ns / 1e9) if usage.prefill_ns else 0.0
        decode = (usage.completion_tokens - 1) / (usage.decode_ns / 1e9) if usage.decode_ns else 0.0
        cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
        return (
            f"prompt {usage.prompt_tokens} tokens{cached}, {prefill:,.0f} tok/s; answer {usage.completion_tokens} tokens, "
            f"{decode:,.0f} tok/s; first token after {self.first_token_s * 1e3:,.0f} ms"
        )


class Session:
    """A loaded model with the sampling options that the command line gave."""

    def __init__(self, model: str, settings: EngineSettings, sampling: dict[str, Any]) -> None:
        fetch(model)
        self._llm = LLM(model, **settings.model_dump())
        try:
            self._params = self._llm.default_params(**{"max_tokens": None, **sampling})
        except GristmillError:
            self._llm.close()
            raise

    @property
    def has_template(self) -> bool:
        """Tell whether the model can chat."""
        return self._llm.has_chat_template

    def answer(self, prompt: str | list[Message], out: TextIO) -> Turn:
        """Stream the answer to `out`. Ctrl-C (KeyboardInterrupt) cancels it and passes on."""
        started = time.monotonic()
        first_token_s = 0.0
        messages = None if isinstance(prompt, str) else prompt
        text = prompt if isinstance(prompt, str) else None
        with self._llm.stream(text, self._params, messages=messages) as stream:
            for piece in stream:
                first_token_s = first_token_s or time.monotonic() - started
                out.write(piece)
                out.flush()
            result = stream.result
        return Turn(result.outputs[0].text, result.usage, first_token_s)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._llm.close()
