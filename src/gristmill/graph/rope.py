"""Rotary frequencies: from a model's configuration to what backends apply.

The kinds are Hugging Face's: default, linear, llama3, yarn, longrope; and gguf_factors, the explicit divisors
that a GGUF file carries in `rope_freqs.weight`. Any other kind is refused by name. All in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gristmill.core.errors import ModelFileError, UnsupportedArchitecture
from gristmill.graph.builder import RopeScaling

Frequencies = list[float]
DEFAULT_THETA = 10_000.0
_LARGEST = 1e300
_ALIASES = {"su": "longrope"}


def frequencies(config: Mapping[str, Any], head_dim: int, max_model_len: int | None = None) -> RopeScaling:
    """Compute the frequencies for heads of `head_dim` columns.

    `config` has Hugging Face's shape: `rope_theta`, `partial_rotary_factor` and `rope_scaling` beside the rest,
    or all of them inside `rope_parameters`. longrope takes its long factors, for every position, if
    `max_model_len` (None: the model's own limit) exceeds the original context.
    Raises: UnsupportedArchitecture for a kind that is not ours, ModelFileError for a missing or absurd value.
    """
    parameters = rope_parameters(config)
    kind = str(parameters.get("rope_type", parameters.get("type", "default")))
    scale = _KINDS.get(_ALIASES.get(kind, kind))
    if scale is None:
        raise UnsupportedArchitecture(
            f"the model's rope kind is {kind!r}; supported are {', '.join(sorted(_KINDS))}.",
            "choose a model with one of these.",
        )
    rotated = int(min(head_dim * _number(parameters, "partial_rotary_factor", 1.0), 2.0 * head_dim))
    if rotated <= 0 or rotated > head_dim or rotated % 2:
        raise ModelFileError(
            f"partial_rotary_factor rotates {rotated} of {head_dim} columns, which is not an even number within the head.",
            "check config.json.",
        )
    if max_model_len is not None:
        parameters["max_model_len"] = max_model_len
    theta = _number(parameters, "rope_theta", DEFAULT_THETA)
    try:
        inv_freq, attention_factor = scale([theta ** (-2 * i / rotated) for i in range(rotated // 2)], parameters)
        are_finite = all(map(math.isfinite, (*inv_freq, attention_factor)))
    except (ArithmeticError, ValueError):  # Absurd values overflow, divide by zero or leave a logarithm's domain.
        are_finite = False
    if not are_finite:
        raise ModelFileError("the rope parameters give frequencies that are not finite.", "check config.json.")
    return RopeScaling(tuple(inv_freq), attention_factor)


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Gather what concerns rope into one flat dictionary, whichever of the two shapes the configuration has."""
    parameters: dict[str, Any] = {}
    for key in ("rope_theta", "partial_rotary_factor", "max_position_embeddings"):
        if config.get(key) is not None:
            parameters[key] = config[key]
    for key in ("rope_scaling", "rope_parameters"):
        nested = {} if config.get(key) is None else config[key]
        if not isinstance(nested, Mapping):
            raise ModelFileError(f"the model's configuration has {key} = {nested!r}, not an object.", "check config.json.")
        parameters |= nested
    if config.get("original_max_position_embeddings") is not None:
        parameters["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    parameters.setdefault("original_max_position_embeddings", parameters.get("max_position_embeddings"))
    return parameters


def _default(base: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    return base, 1.0


def _linear(base: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    factor = _number(parameters, "factor")
    return [f / factor for f in base], 1.0


def _gguf_factors(base: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    return _divided(base, _factors(parameters, "factors", len(base))), 1.0


def _llama3(base: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    """Keep short waves, divide long ones, blend between. Source: Llama 3.1's reference code."""
    original = _number(parameters, "original_max_position_embeddings")
    low, high = _number(parameters, "low_freq_factor"), _number(parameters, "high_freq_factor")
    factor = _number(parameters, "factor")
    if high <= low:
        raise ModelFileError(f"high_freq_factor {high} is not above low_freq_factor {low}.", "check config.json.")

    def scaled(f: float) -> float:
        blend = _clip((original * f / (2 * math.pi) - low) / (high - low))
        return (1 - blend) * f / factor + blend * f

    return [scaled(f) for f in base], 1.0


def _yarn(base: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    """Blend by how often a dimension turns within the original context. Source: Peng et al. 2023, YaRN."""
    rotated, theta = 2 * len(base), _number(parameters, "rope_theta", DEFAULT_THETA)
    original = _number(parameters, "original_max_position_embeddings")
    factor = _number(parameters, "factor", _number(parameters, "max_position_embeddings", original) / original)

    def dimension(turns: float) -> float:
        return rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(_number(parameters, "beta_fast", 32.0))
    high = dimension(_number(parameters, "beta_slow", 1.0))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    width = high - low if high != low else 0.001
    ramp = [_clip((i - low) / width) for i in range(len(base))]
    return [f / factor * r + f * (1 - r) for f, r in zip(base, ramp, strict=True)], _yarn_attention(parameters, factor)


def _yarn_attention(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return _number(parameters, "attention_factor")

    def strength(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return strength(_number(parameters, "mscale")) / strength(_number(parameters, "mscale_all_dim"))
    return strength(1.0)


def _longrope(base: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    """Divide by one of two lists of factors. Source: Ding et al. 2024, LongRoPE; Phi-3's configuration."""
    original = _number(parameters, "original_max_position_embeddings")
    longest = _number(parameters, "max_position_embeddings", original)
    is_long = _number(parameters, "max_model_len", longest) > original
    divisors = _factors(parameters, "long_factor" if is_long else "short_factor", len(base))
    if parameters.get("attention_factor") is not None:
        return _divided(base, divisors), _number(parameters, "attention_factor")
    factor = _number(parameters, "factor", longest / original)
    attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return _divided(base, divisors), attention_factor


_KINDS: Mapping[str, Callable[[Frequencies, Mapping[str, Any]], tuple[Frequencies, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "gguf_factors": _gguf_factors,
}


def _number(parameters: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = parameters.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
        raise ModelFileError(f"the rope parameter {key} is {value!r}, not a positive number.", "check config.json.")
    return float(value)


def _factors(parameters: Mapping[str, Any], key: str, count: int) -> Frequencies:
    values = parameters.get(key)
    if not isinstance(values, Sequence) or len(values) != count:
        found = len(values) if isinstance(values, Sequence) else "no"
        raise ModelFileError(f"the rope parameter {key} has {found} factors; {count} are needed.", "check config.json.")
    return [_number({key: value}, key) for value in values]


def _divided(base: Frequencies, divisors: Frequencies) -> Frequencies:
    return [f / divisor for f, divisor in zip(base, divisors, strict=True)]


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)
