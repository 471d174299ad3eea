"""How a request wants its tokens chosen. Names, order and definitions are vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from gristmill.core.errors import InvalidRequest

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_CHOICES = 128
SEED_MAX = 2**64 - 1

_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_INTEGERS = ("top_k", "min_tokens", "n")
_INTEGERS_OR_NONE = ("seed", "max_tokens", "logprobs", "truncate_prompt_tokens")
_BOOLEANS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's sampling options; every default is the neutral value.

    Applied in this order: logit_bias and min_tokens, repetition (prompt and output tokens), frequency and
    presence (output tokens), temperature, min_p, top_k, top_p; ties go to the lower token id.
    Raises: InvalidRequest, naming the field, if a value has a wrong type or is out of range.
    """

    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 or -1 = no limit
    top_p: float = 1.0  # 1 = no limit
    min_p: float = 0.0  # 0 = no limit
    seed: int | None = None  # None = a fresh one is drawn and returned
    max_tokens: int | None = 16  # None = until the context ends
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    repetition_penalty: float = 1.0  # 1 = none
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    n: int = 1
    logprobs: int | None = None  # None = none; k = chosen token and the k most likely, of the raw logits
    truncate_prompt_tokens: int | None = None  # keep the last k prompt tokens; -1 = as many as fit

    def __post_init__(self) -> None:
        """Coerce sequences to tuples, NumPy's integers to Python's, and check every type and range."""
        self._check_types()
        object.__setattr__(self, "top_k", max(self.top_k, 0) if self.top_k >= -1 else self.top_k)
        self._check_ranges()

    def _check_types(self) -> None:
        for name in _NUMBERS:
            _number(name, getattr(self, name))
        for name in _INTEGERS:
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in _INTEGERS_OR_NONE:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in _BOOLEANS:
            if not isinstance(getattr(self, name), bool):
                raise _wrong_type(name, getattr(self, name), "True or False")
        stop = (self.stop,) if isinstance(self.stop, str) else _items("stop", self.stop)
        for text in stop:
            if not isinstance(text, str):
                raise _wrong_type("stop", text, "a string")
        object.__setattr__(self, "stop", stop)
        ids = (_integer("stop_token_ids", token_id) for token_id in _items("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "stop_token_ids", tuple(ids))
        if not isinstance(self.logit_bias, Mapping):
            raise _wrong_type("logit_bias", self.logit_bias, "a mapping from token ids to numbers")
        if self.logit_bias:
            biases = {_integer("logit_bias", key): _number("logit_bias", bias) for key, bias in self.logit_bias.items()}
            object.__setattr__(self, "logit_bias", biases)

    def _check_ranges(self) -> None:
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("top_k", self.top_k, 0, 2**31 - 1)
        _within("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("min_tokens", self.min_tokens, 0, 2**31 - 1)
        _within("n", self.n, 1, MAX_CHOICES)
        if self.seed is not None:
            _within("seed", self.seed, -(2**63), SEED_MAX)
        if self.max_tokens is not None:
            _within("max_tokens", self.max_tokens, 0, 2**31 - 1)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if self.truncate_prompt_tokens is not None:
            _within("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, 2**31 - 1)
        _within("number of stop strings", len(self.stop), 0, MAX_STOP_STRINGS, param="stop")
        _within("number of logit_bias entries", len(self.logit_bias), 0, MAX_LOGIT_BIAS, param="logit_bias")
        if any(not text for text in self.stop):
            raise InvalidRequest("a stop string is empty.", "remove it, or give at least one character.", param="stop")
        for token_id, bias in self.logit_bias.items():
            _within(f"logit_bias[{token_id}]", bias, -100.0, 100.0, param="logit_bias")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong_type(name, value, "a number")
    return value  # type: ignore[return-value]


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _wrong_type(name, value, "an integer")
    return int(value)


def _items(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise _wrong_type(name, value, "a list")
    return tuple(value)


def _wrong_type(name: str, value: Any, wanted: str) -> InvalidRequest:
    kind = type(value).__name__
    return InvalidRequest(f"{name} has a value of type {kind}, not {wanted}.", f"give {wanted}, or leave it out.", param=name)


def _within(name: str, value: float, low: float, high: float, *, low_open: bool = False, param: str | None = None) -> None:
    # Comparing an int with a float is exact in Python, whatever the int's size; only NaN needs its own question.
    if value != value or value < low or value > high or (low_open and value == low):
        bracket = "(" if low_open else "["
        raise InvalidRequest(
            f"{name} is {_shown(value)}; it must be in {bracket}{low}, {high}].",
            f"send {name} within that range, or leave it out.",
            param=param or name,
        )


def _shown(value: float) -> str:
    return str(value) if not isinstance(value, int) or abs(value) < 10**30 else "an integer of over 30 digits"
