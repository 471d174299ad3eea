"""Bytes, as people write and read them; nanoseconds, as we count time."""

from __future__ import annotations

import re

from gristmill.core.errors import SettingsError

NS_PER_S = 1e9

_BYTE_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "kib": 2**10, "m": 10**6, "mb": 10**6, "mib": 2**20}
_BYTE_UNITS |= {"g": 10**9, "gb": 10**9, "gib": 2**30, "t": 10**12, "tb": 10**12, "tib": 2**40}
_BYTES = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*$")


def parse_bytes(text: str, name: str) -> int:
    """Read `512MiB`, `2GB`, `1.5g` or a plain count as a number of bytes.

    Raises: SettingsError naming the setting `name`.
    """
    match = _BYTES.match(text)
    if match is None or match.group(2).lower() not in _BYTE_UNITS:
        raise SettingsError(f"{name} is {text!r}, which is not a number of bytes.", "write it like 512MiB, 2GB or 1073741824.")
    return int(float(match.group(1)) * _BYTE_UNITS[match.group(2).lower()])


def format_bytes(count: int) -> str:
    """Write a number of bytes with three significant digits, in powers of ten: `1.23 GB`."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{count} B"
