"""Flags, made from the fields of a settings class: one source for flag, help and range."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from gristmill.core.settings import EngineSettings, resolve_settings

S = TypeVar("S", bound=EngineSettings)
F = TypeVar("F", bound=Callable[..., Any])


def settings_flags(kind: type[EngineSettings]) -> Callable[[F], F]:
    """Decorate a command with one option for each field of `kind`, and `--config`."""

    def decorate(command: F) -> F:
        for name, field in reversed(kind.model_fields.items()):
            flag = "--" + name.replace("_", "-")
            shown = f"{field.description} [default: {_shown(field.default)}]"
            command = click.option(flag, name, help=shown, **_kind_of_option(name, field.default, field.annotation))(command)
        path = click.Path(path_type=Path, dir_okay=False)
        return click.option("--config", type=path, help="A TOML file of these settings; flags win over it.")(command)

    return decorate


def read_settings(kind: type[S], flags: dict[str, Any]) -> S:
    """Merge the file of `--config`, the environment and the flags. Raises: SettingsError."""
    file = flags.pop("config", None)
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    return resolve_settings(kind, given, os.environ, file)


def _kind_of_option(name: str, default: object, annotation: object) -> dict[str, Any]:
    if name == "prefix_cache":
        return {"type": click.Choice(["on", "off"]), "default": None}
    if isinstance(default, bool):
        return {"is_flag": True, "default": None}
    if isinstance(default, tuple):
        return {"multiple": True, "metavar": "URL"}
    return {"default": None, "metavar": _choices(annotation) or "VALUE"}


def _choices(annotation: object) -> str:
    """Write the values of a field that has a fixed few; the settings refuse others, whichever way they came."""
    texts = get_args(annotation)
    return f"[{'|'.join(texts)}]" if texts and all(isinstance(text, str) for text in texts) else ""


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default in (None, ()) else str(default)
