"""Wheels as packages of models are: with a RECORD of every file."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# If a wheel's code ran, the test would see this file.
TRAP = "import pathlib; pathlib.Path(__file__).with_name('it-ran').touch(); raise SystemExit('the code of a package was run')\n"


def write_wheel(
    folder: Path,
    package: str,
    files: Mapping[str, bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    record: Mapping[str, str] | None = None,
    drop_record: bool = False,
) -> Path:
    """Write a wheel; `record` replaces hashes of its RECORD."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {r}\n" for r in requires
    )
    wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents = {
        f"{name}/__init__.py": TRAP.encode(),
        **files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    rows = [f"{path},{(record or {}).get(path, sha256_row(data))},{len(data)}" for path, data in contents.items()]
    if not drop_record:
        contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in contents.items():
            archive.writestr(member, data)
    return path


def sha256_row(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
