"""The sampling flags that `run` and `chat` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gristmill.core.sampling_params import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max-tokens", int, "Most tokens of the answer. [default: until the context ends]"),
    ("temperature", float, "0 = always the likeliest token. [default: the model's]"),
    ("top-k", int, "Choose among the k likeliest; 0 = no limit. [default: the model's]"),
    ("top-p", float, "Choose among the likeliest that sum to p; 1 = no limit. [default: the model's]"),
    ("min-p", float, "Drop what is less likely than this share of the likeliest; 0 = none. [default: the model's]"),
    ("repetition-penalty", float, "Over 1 makes tokens seen before less likely. [default: the model's]"),
    ("seed", int, "The same seed gives the same answer. [default: a fresh one]"),
)


def sampling_flags(command: F) -> F:
    """Decorate a command with the sampling options."""
    for name, kind, text in reversed(_FLAGS):
        command = click.option(f"--{name}", type=kind, default=None, help=text)(command)
    return click.option("--stop", multiple=True, help="Stop at this text; may be given several times.")(command)


def read_sampling(flags: dict[str, Any]) -> dict[str, Any]:
    """Take the sampling flags out of `flags` and return those that were given. Raises: InvalidRequest."""
    given = {name.replace("-", "_"): flags.pop(name.replace("-", "_")) for name, _, _ in _FLAGS}
    given["stop"] = tuple(flags.pop("stop")) or None
    given = {key: value for key, value in given.items() if value is not None}
    SamplingParams(**given)  # refused here, before a model is loaded
    return given
