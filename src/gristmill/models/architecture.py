"""What a model file provides, and the checked numbers that every decoder has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gristmill.core.errors import ModelFileError, UnsupportedArchitecture
from gristmill.graph.builder import Builder
from gristmill.graph.weight_rule import WeightRule

HEAD_DIM_STEP, HEAD_DIM_MAX = 16, 256
MAX_LAYERS = 1024  # no model has a third of it; more is a broken file, and would take long to refuse
_LARGEST = 2**31 - 1
_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Config:
    """The sizes of a decoder; a model file adds what is its own."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    eps: float
    tied_head: bool

    @property
    def head(self) -> str:
        """Name of the weight that makes logits."""
        return "model.embed_tokens.weight" if self.tied_head else "lm_head.weight"


C = TypeVar("C", bound=Config)


@dataclass(frozen=True, slots=True)
class Architecture(Generic[C]):
    """One model family: `model_types` are the values of Hugging Face's `model_type` that it serves.

    `parse` checks a configuration; its `max_model_len` (None: the model's own limit) is what the deployment
    will accept, which longrope must know. `build` asks a builder for the ops. `weight_rules` has an entry for
    each weight that is not simply the stored tensor of its name.
    """

    model_types: tuple[str, ...]
    parse: Callable[[Mapping[str, Any], int | None], C]
    build: Callable[[Builder[Any], C], Any]
    weight_rules: Callable[[C], Mapping[str, WeightRule]]


class Fields:
    """A configuration whose values are checked as they are read; every error names the key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def integer(self, key: str, default: object = _REQUIRED, most: int = _LARGEST) -> int:
        """Return a positive integer up to `most`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise _wrong(key, value, f"an integer from 1 to {most}")
        return value

    def number(self, key: str, default: object = _REQUIRED) -> float:
        """Return a positive finite number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
            raise _wrong(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise _wrong(key, value, "true or false")
        return value

    def expect(self, key: str, default: str, supported: tuple[str, ...]) -> str:
        """Return a text that must be one of `supported`."""
        value = self._get(key, default)
        if value not in supported:
            raise UnsupportedArchitecture(
                f"config.json says {key} = {value!r}; supported here: {', '.join(supported)}.", "choose another model."
            )
        return str(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return a nested mapping; an empty one if there is none."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise _wrong(key, value, "an object")
        return value

    def refuse(self, key: str) -> None:
        """Raise if an option that would change the answer, and is not supported, is on."""
        if value := self.config.get(key):
            raise UnsupportedArchitecture(f"config.json says {key} = {value!r}, which is not supported.", "choose another model.")

    def dtype(self) -> str:
        """Return the type the model is stored in, under either of its keys; empty if the configuration has none."""
        return str(self.config.get("dtype") or self.config.get("torch_dtype") or "")

    def window(self) -> int:
        """Return the sliding window; 0 if there is none."""
        return 0 if self.config.get("sliding_window") is None else self.integer("sliding_window")

    def layer_windows(self, num_layers: int, is_sliding: Callable[[int], bool]) -> tuple[int, ...]:
        """Return each layer's window, from `layer_types` if it is given, else where `is_sliding(layer)`."""
        types, window = self.config.get("layer_types"), self.window()
        if types is None:
            return tuple(window if is_sliding(layer) else 0 for layer in range(num_layers))
        kinds = ("sliding_attention", "full_attention")
        if not isinstance(types, list) or len(types) != num_layers or not all(kind in kinds for kind in types):
            raise _wrong("layer_types", types, f"{num_layers} of sliding_attention or full_attention")
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)

    def decoder(self, *, tied_head: bool = False, eps: float = 1e-6) -> dict[str, Any]:
        """Read the sizes that every decoder has, as keyword arguments of its `Config`; the arguments are defaults."""
        num_heads, hidden_size = self.integer("num_attention_heads"), self.integer("hidden_size")
        num_kv_heads = self.integer("num_key_value_heads", num_heads)
        head_dim = self.integer("head_dim", max(1, hidden_size // num_heads))
        if num_heads % num_kv_heads:
            raise _wrong("num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads = {num_heads}")
        if head_dim % HEAD_DIM_STEP or head_dim > HEAD_DIM_MAX:
            raise UnsupportedArchitecture(
                f"the attention heads are {head_dim} wide; multiples of {HEAD_DIM_STEP} up to {HEAD_DIM_MAX} are supported.",
                "choose another model.",
            )
        return {
            "num_layers": self.integer("num_hidden_layers", most=MAX_LAYERS),
            "hidden_size": hidden_size,
            "intermediate_size": self.integer("intermediate_size"),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "vocab_size": self.integer("vocab_size"),
            "max_position": self.integer("max_position_embeddings"),
            "eps": self.number("rms_norm_eps", eps),
            "tied_head": self.flag("tie_word_embeddings", tied_head),
        }

    def _get(self, key: str, default: object) -> object:
        value = self.config.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelFileError(f"the model's configuration has no {key}.", "check config.json, or the GGUF metadata.")
        return default


def rounded_to_bf16(value: float) -> float:
    """Round to the nearest bf16 (8 significant bits), ties to even."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def _wrong(key: str, value: object, expected: str) -> ModelFileError:
    return ModelFileError(f"the model's configuration has {key} = {value!r}; it must be {expected}.", "check config.json.")
