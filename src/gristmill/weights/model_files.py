"""Finds the model in a folder: a GGUF file, the first of a split set, or the folder itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gristmill.core.errors import ModelReferenceError

SPLIT_PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")  # name, number of the part (from 1), number of parts
_SHOWN_NAMES = 20


def pick_model(folder: Path, file: str | None) -> Path:
    """Return the model of a folder, `file` if it is named. Raises: ModelReferenceError listing what is there."""
    if file is None and (folder / "config.json").is_file():
        return folder
    names = sorted(path.name for path in folder.glob("*.gguf"))
    if file is not None and file not in names:
        raise _choose(f"{folder.name} has no GGUF file {file!r}", names)
    return folder / (file or only_gguf(names, folder.name))


def gguf_models(names: Iterable[str]) -> list[str]:
    """Return the models among the names of GGUF files, sorted; a split set is its first part."""
    return [name for name in sorted(names) if (match := SPLIT_PART.match(name)) is None or int(match.group(2)) == 1]


def only_gguf(names: Iterable[str], where: str) -> str:
    """Return the one model among the names of GGUF files. Raises: ModelReferenceError listing them if there are more, or none."""
    models = gguf_models(names)
    if len(models) != 1:
        raise _choose(f"{where} has {len(models) or 'no'} GGUF files", models)
    return models[0]


def parts_of(name: str, names: Iterable[str]) -> list[str]:
    """Return the names of all parts of the split set that `name` is the first of, or `name` alone."""
    match = SPLIT_PART.match(name)
    if match is None:
        return [name]
    base, count = match.group(1), match.group(3)
    return sorted(
        other for other in names if (part := SPLIT_PART.match(other)) and part.group(1) == base and part.group(3) == count
    )


def _choose(what: str, names: list[str]) -> ModelReferenceError:
    if not names:
        return ModelReferenceError(
            f"{what}.", "name a folder or a package with a GGUF file, or with config.json and safetensors."
        )
    shown = ", ".join(names[:_SHOWN_NAMES]) + (" …" if len(names) > _SHOWN_NAMES else "")
    return ModelReferenceError(
        f"{what}; these are there: {shown}.", f"name one of them after a colon, like REFERENCE:{names[0]}."
    )
