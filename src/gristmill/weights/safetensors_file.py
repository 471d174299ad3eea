"""Reads the header of a safetensors file, checking all of it before any of it is used.

Source: the safetensors format description (8-byte header length, JSON header, tensors without gaps or overlaps).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from gristmill.core.errors import ModelFileError
from gristmill.quant.block_types import SHAPES, BlockType
from gristmill.weights.mapped_file import MappedFile

MAX_HEADER_BYTES = 32 << 20
MAX_DIMENSIONS = 8
TYPES = {"F32": BlockType.F32, "F16": BlockType.F16, "BF16": BlockType.BF16}
_MEND = "fetch the file again, or take it from another source."


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """A tensor as the header describes it; `type` is the file's own name of it, which may not be one of ours."""

    name: str
    type: str
    shape: tuple[int, ...]
    file: MappedFile
    start: int
    num_bytes: int


def read_safetensors(path: Path) -> dict[str, SafetensorsTensor]:
    """Return every tensor of a file. Raises: ModelFileError naming the tensor."""
    file = MappedFile(path)
    header, body = _header(file)
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, name, entry, body) for name, entry in header.items()}
    _check_places(file, tensors, body)
    return tensors


def _header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """Return the parsed header and where the tensors begin."""
    if len(file) < 8:
        raise _broken(file, f"has {len(file)} bytes, too few for a header")
    (length,) = struct.unpack("<Q", file.data[:8])
    if length > min(MAX_HEADER_BYTES, len(file) - 8):
        raise _broken(
            file, f"has a header of {length:,} bytes; the file has {len(file):,}, and {MAX_HEADER_BYTES:,} are possible"
        )
    try:
        header = json.loads(file.data[8 : 8 + length].decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _broken(file, f"has a header that is not JSON ({str(error)[:100]})") from error
    if not isinstance(header, dict):
        raise _broken(file, "has a header that is no object")
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _tensor(file: MappedFile, name: str, entry: Any, body: int) -> SafetensorsTensor:
    if not isinstance(entry, dict):
        raise _broken(file, f"describes the tensor {name[:200]!r} by no object")
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(kind, str) or not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise _broken(file, f"has no usable dtype and shape for the tensor {name[:200]!r}")
    if not _are_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(file) - body:
        raise _broken(
            file, f"has data_offsets {str(offsets)[:80]} for the tensor {name[:200]!r}; {len(file) - body:,} bytes are there"
        )
    num_bytes = offsets[1] - offsets[0]
    if kind in TYPES and _expected_bytes(kind, shape) != num_bytes:
        raise _broken(file, f"has {num_bytes:,} bytes for the tensor {name[:200]!r} of shape {str(shape)[:80]} in {kind}")
    return SafetensorsTensor(name, kind, tuple(shape), file, body + offsets[0], num_bytes)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _expected_bytes(kind: str, shape: list[int]) -> int:
    num_bytes = SHAPES[TYPES[kind]].num_bytes
    for size in shape:
        num_bytes *= size
    return num_bytes


def _check_places(file: MappedFile, tensors: dict[str, SafetensorsTensor], body: int) -> None:
    at = body
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.num_bytes)):
        if tensor.start != at:
            raise _broken(file, f"has a gap or an overlap before the tensor {tensor.name[:200]!r}")
        at = tensor.start + tensor.num_bytes
    if at != len(file):
        raise _broken(file, f"has {len(file):,} bytes, but its tensors end at {at:,}")


def _broken(file: MappedFile, what: str) -> ModelFileError:
    return ModelFileError(f"{file.path.name} {what}.", _MEND)
