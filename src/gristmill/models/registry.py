"""Finds the file of this folder that serves a configuration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from gristmill import models
from gristmill.core.errors import ModelFileError, UnsupportedArchitecture
from gristmill.models.architecture import Architecture

__all__ = ["Architecture", "architectures", "load_architecture"]

_TASKS = ("ForCausalLM", "ForConditionalGeneration")


def load_architecture(config: Mapping[str, Any]) -> Architecture[Any]:
    """Return the architecture that serves `config` (Hugging Face's config.json).

    Raises: ModelFileError; UnsupportedArchitecture, naming the model's and listing ours.
    """
    known = architectures()
    model_type, classes = config.get("model_type"), config.get("architectures") or []
    if not isinstance(classes, list):
        raise ModelFileError(f"architectures is {classes!r}, not a list of names.", "check config.json.")
    is_generator = not classes or any(str(name).endswith(_TASKS) for name in classes)
    if isinstance(model_type, str) and model_type in known and is_generator:
        return known[model_type]
    name = model_type if is_generator else ", ".join(map(str, classes))
    raise UnsupportedArchitecture(
        f"the model's architecture is {name!r}; supported are {', '.join(sorted(known))}, as generators of text.",
        "choose a model of one of these, or add its file to gristmill/models (see CONTRIBUTING.md).",
    )


def architectures() -> dict[str, Architecture[Any]]:
    """Return every architecture of this folder by model type: each module that has an `ARCHITECTURE`."""
    found: dict[str, Architecture[Any]] = {}
    for module in pkgutil.iter_modules(models.__path__):
        loaded = importlib.import_module(f"{models.__name__}.{module.name}")
        if isinstance(architecture := getattr(loaded, "ARCHITECTURE", None), Architecture):
            found |= dict.fromkeys(architecture.model_types, architecture)
    return found
