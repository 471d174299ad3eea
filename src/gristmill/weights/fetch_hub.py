"""Models of the Hugging Face hub: fetched by huggingface_hub into its own cache, remembered by us once they are whole."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.core.errors import ModelReferenceError
from gristmill.weights.download import file_sha256
from gristmill.weights.local_models import read_hub_record
from gristmill.weights.model_files import only_gguf, parts_of
from gristmill.weights.progress import Progress
from gristmill.weights.safetensors_folder import INDEX_NAME, SIDE_FILES
from gristmill.weights.store import Store

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubReference:
    """`hf:org/name[@revision][:file]`."""

    repository: str
    revision: str | None
    file: str | None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repository}{revision}{f':{self.file}' if self.file else ''}"


def fetch_hub(
    reference: HubReference,
    store: Store,
    *,
    offline: bool,
    progress: Progress,
    endpoint: str | None = None,
    cache: Path | None = None,
) -> Path:
    """Return a model of the hub, fetching it if it is not here. `endpoint` and `cache` default to huggingface_hub's.

    Raises: ModelReferenceError if it names nothing, needs a login, or cannot be fetched.
    """
    record = _record_path(reference, store)
    if known := read_hub_record(record):
        return known[1]
    if offline:
        raise ModelReferenceError(f"{reference} is not here.", f"fetch it while online: gristmill pull {reference}.")
    with store.locked(str(reference)):
        if known := read_hub_record(record):
            return known[1]
        try:
            path = _fetch(reference, progress, endpoint, cache)
        except ModelReferenceError:
            raise
        except Exception as error:  # the library passes on errors of several HTTP stacks
            raise _failed(reference, error) from error
        store.write(record, json.dumps({"reference": str(reference), "path": str(path)}))
    return path


def files_to_fetch(names: Sequence[str], reference: HubReference) -> list[str]:
    """Choose among a repository's files: the one named, else the safetensors model, else its only GGUF file.

    Raises: ModelReferenceError listing the GGUF files if there is a choice to make.
    """
    if reference.file is not None:
        if reference.file not in names:
            raise ModelReferenceError(
                f"{reference.repository} has no file {reference.file!r}.", "look at the repository's files."
            )
        return parts_of(reference.file, names)
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.endswith(".safetensors")]
    if "config.json" in top and weights:
        return [name for name in top if name in (*SIDE_FILES, INDEX_NAME)] + _weight_files(top, weights)
    ggufs = [name for name in names if name.endswith(".gguf") and not Path(name).name.startswith("mmproj")]
    return parts_of(only_gguf(ggufs, str(reference)), names)


def _weight_files(top: list[str], weights: list[str]) -> list[str]:
    """Leave out second copies of the weights in other formats (consolidated.safetensors)."""
    if INDEX_NAME in top:
        return [name for name in weights if re.fullmatch(r"model-\d+-of-\d+\.safetensors", name)] or weights
    return ["model.safetensors"] if "model.safetensors" in weights else weights


def _fetch(reference: HubReference, progress: Progress, endpoint: str | None, cache: Path | None) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi(endpoint=endpoint).model_info(reference.repository, revision=reference.revision)
    wanted = files_to_fetch([entry.rfilename for entry in info.siblings or ()], reference)
    folder = Path(
        snapshot_download(
            reference.repository,
            revision=info.sha,
            allow_patterns=[re.sub(r"([\[\]*?])", r"[\1]", name) for name in wanted],
            tqdm_class=_bar_class(reference.repository, progress),
            endpoint=endpoint,
            cache_dir=cache,
        )
    )
    for name in wanted:
        _check(folder / name)
    return folder if reference.file is None and "config.json" in wanted else folder / wanted[0]


def _check(path: Path) -> None:
    """Compare a large file with the SHA-256 that the hub names it by, which its client does not."""
    expected = path.resolve().name
    if _SHA256.fullmatch(expected) and (found := file_sha256(path)) != expected:
        path.resolve().unlink()
        raise ModelReferenceError(
            f"{path.name} has the SHA-256 {found}, but {expected} was promised; it was deleted.", "fetch it again."
        )


def _bar_class(name: str, progress: Progress) -> Any:
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        """Reports to `progress` what tqdm would draw."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            options = {**kwargs, "file": io.StringIO(), "disable": False, "leave": False}
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]

        def display(self, *args: Any, **kwargs: Any) -> None:
            if self.unit == "B":
                progress(name, int(self.n), None if self.total is None else int(self.total))

    return Bar


def _record_path(reference: HubReference, store: Store) -> Path:
    tail = re.sub(r"[^\w.-]", "_", f"{reference.revision or 'main'}{f'--{reference.file}' if reference.file else ''}")
    return store.models / "hf" / reference.repository.replace("/", "--") / f"{tail}.json"


def _failed(reference: HubReference, error: Exception) -> ModelReferenceError:
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return ModelReferenceError(f"{reference} is gated.", "accept its terms on the hub, then log in: hf auth login.")
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return ModelReferenceError(
            f"{reference} does not exist, or you may not see it.", "check its name, or log in: hf auth login."
        )
    return ModelReferenceError(f"{reference} cannot be fetched: {str(error)[:300]} ({kind}).", "check the network and try again.")
