"""Reads GGUF files, version 2 and 3, also split ones. Every number in the file is checked before it is used.

Source: ggml's docs/gguf.md. Memory taken is bounded by the file's length and by MAX_ARRAY_ITEMS.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import ModelFileError
from gristmill.quant.block_types import SHAPES, BlockType
from gristmill.weights.mapped_file import MappedFile
from gristmill.weights.model_files import SPLIT_PART

MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1024
MAX_TEXT_BYTES = 64 << 20
MAX_NESTING = 4
MAX_ENTRIES = 1 << 16  # tensors, and keys
# Sixteen times the largest arrays of published files (merges); more would take more memory than the file is long.
MAX_ARRAY_ITEMS = 1 << 23
_MEND = "fetch the file again, or take it from another source."
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as the file describes it; its bytes are [start, start + num_bytes) of `file`."""

    name: str
    type: BlockType
    shape: tuple[int, ...]  # row-major: the file's dimensions reversed
    file: MappedFile
    start: int
    num_bytes: int

    @property
    def raw(self) -> NDArray[np.uint8]:
        """The stored bytes, in the mapped file."""
        return self.file.array(self.start, self.num_bytes)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata and tensors of a file, or of all parts of a split one."""

    paths: tuple[Path, ...]
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read a GGUF file and, if it is the first of a split set, the others too.

    Raises: ModelFileError naming the key or tensor.
    """
    first = _Reader(path).read()
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return first
    return _with_other_parts(path, first, count)


def _with_other_parts(path: Path, first: GgufFile, count: int) -> GgufFile:
    match = SPLIT_PART.match(path.name)
    if match is None or int(match.group(3)) != count or first.metadata.get("split.no", 0) != 0:
        raise ModelFileError(
            f"{path.name} is one of {count} parts, but not named as the first.", f"open NAME-00001-of-{count:05}.gguf."
        )
    tensors, paths = dict(first.tensors), [path]
    for number in range(2, count + 1):
        part = path.with_name(f"{match.group(1)}-{number:05}-of-{count:05}.gguf")
        if not part.is_file():
            raise ModelFileError(f"part {number} of {count} is missing: {part.name}.", "put all parts in one folder.")
        more = _Reader(part).read().tensors
        if twice := tensors.keys() & more.keys():
            raise ModelFileError(f"the tensor {min(twice)!r} is in two parts.", _MEND)
        tensors |= more
        paths.append(part)
    expected = first.metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise ModelFileError(f"{path.name} has split.tensors.count {expected}, but its parts hold {len(tensors)} tensors.", _MEND)
    return GgufFile(tuple(paths), first.metadata, tensors)


class _Reader:
    """One file, read from front to back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = MappedFile(path)
        self._data = self._file.data
        self._at = 0
        self._num_items = 0

    def read(self) -> GgufFile:
        if self._data[:4] != b"GGUF":
            raise self._broken(f"does not begin with GGUF but with {bytes(self._data[:4])!r}")
        self._at = 4
        version = self._number("<I", "version")
        if version in (2 << 24, 3 << 24):
            raise self._broken("is a big-endian file, which is not supported")
        if version not in (2, 3):
            raise self._broken(f"has version {version}; 2 and 3 are supported")
        num_tensors = self._count("the number of tensors", 24, MAX_ENTRIES)
        num_keys = self._count("the number of keys", 13, MAX_ENTRIES)
        metadata = self._metadata(num_keys)
        return GgufFile((self._path,), metadata, self._tensors(num_tensors, metadata))

    def _metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string("a key")
            if key in metadata:
                raise self._broken(f"has the key {key!r} twice")
            metadata[key] = self._value(self._number("<I", f"the type of {key!r}"), key, 0)
        return metadata

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind == _STRING:
            return self._string(repr(key), MAX_TEXT_BYTES)
        if kind == _ARRAY:
            return self._array(key, depth)
        if kind not in _SCALARS:
            raise self._broken(f"has type {kind} for the key {key!r}, which is unknown")
        value = self._number(_SCALARS[kind], repr(key))
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str, depth: int) -> list[Any]:
        if depth >= MAX_NESTING:
            raise self._broken(f"nests arrays deeper than {MAX_NESTING} in the key {key!r}")
        kind = self._number("<I", f"the type of {key!r}")
        if kind in _SCALARS:
            item = np.dtype(_SCALARS[kind])
            count = self._array_len(key, item.itemsize)
            values = np.frombuffer(self._take(count * item.itemsize, repr(key)), item)
            items: list[Any] = (values.astype(bool) if kind == _BOOL else values).tolist()
            return items
        count = self._array_len(key, 8)
        if kind == _STRING:
            return self._strings(count, key)
        return [self._value(kind, key, depth + 1) for _ in range(count)]

    def _array_len(self, key: str, least_bytes: int) -> int:
        count = self._count(f"the length of {key!r}", least_bytes)
        self._num_items += count
        if self._num_items > MAX_ARRAY_ITEMS:
            raise self._broken(f"has over {MAX_ARRAY_ITEMS:,} array items with the key {key!r}")
        return count

    def _strings(self, count: int, key: str) -> list[str]:
        """Read many strings; a vocabulary has a quarter of a million."""
        data, at, size = self._data, self._at, len(self._data)
        unpack = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(count):
            if at + 8 > size:
                raise self._short(repr(key))
            length = unpack(data, at)[0]
            at += 8
            if length > size - at:
                raise self._short(repr(key))
            strings.append(data[at : at + length].decode("utf-8", "replace"))
            at += length
        self._at = at
        return strings

    def _tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, GgufTensor]:
        described = [self._describe() for _ in range(count)]
        alignment = metadata.get("general.alignment", 32)
        if (
            not isinstance(alignment, int)
            or isinstance(alignment, bool)
            or not 0 < alignment <= 1 << 20
            or alignment & (alignment - 1)
        ):
            raise self._broken(f"has general.alignment {alignment!r}; it must be a power of two")
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, kind, shape, offset in described:
            if name in tensors:
                raise self._broken(f"has the tensor {name!r} twice")
            if offset % alignment:
                raise self._broken(f"has the tensor {name!r} at {offset}, which is no multiple of {alignment}")
            tensors[name] = self._tensor(name, kind, shape, base + offset)
        return tensors

    def _describe(self) -> tuple[str, BlockType, tuple[int, ...], int]:
        name = self._string("a tensor's name")
        num_dimensions = self._number("<I", f"the dimensions of {name!r}")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._broken(f"has {num_dimensions} dimensions for the tensor {name!r}; 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(self._number("<Q", f"the shape of {name!r}") for _ in range(num_dimensions))[::-1]
        if 0 in shape:
            raise self._broken(f"has the shape {shape} for the tensor {name!r}")
        number = self._number("<I", f"the type of {name!r}")
        if number not in SHAPES:
            known = ", ".join(kind.name for kind in SHAPES)
            raise ModelFileError(
                f"{self._path.name} has type {number} for the tensor {name!r}; supported are {known}.",
                "take another quantization.",
            )
        kind = BlockType(number)
        if shape[-1] % SHAPES[kind].width:
            raise self._broken(
                f"has rows of {shape[-1]} for the tensor {name!r}; {kind.name} needs multiples of {SHAPES[kind].width}"
            )
        return name, kind, shape, self._number("<Q", f"the offset of {name!r}")

    def _tensor(self, name: str, kind: BlockType, shape: tuple[int, ...], start: int) -> GgufTensor:
        num_bytes = SHAPES[kind].num_bytes
        for size in (*shape[:-1], shape[-1] // SHAPES[kind].width):
            num_bytes *= size
        if start + num_bytes > len(self._data):
            raise self._broken(
                f"ends at {len(self._data):,}, inside of the tensor {name!r}, which needs {num_bytes:,} bytes from {start:,} on"
            )
        return GgufTensor(name, kind, shape, self._file, start, num_bytes)

    def _string(self, what: str, limit: int = MAX_NAME_BYTES) -> str:
        length = self._number("<Q", what)
        if length > limit:
            raise self._broken(f"has {length:,} bytes for {what}; {limit:,} at most are possible")
        return self._take(length, what).decode("utf-8", "replace")

    def _count(self, what: str, least_bytes: int, limit: int = MAX_ARRAY_ITEMS) -> int:
        count: int = self._number("<Q", what)
        if count > limit or count * least_bytes > len(self._data) - self._at:
            raise self._broken(
                f"has {count:,} for {what}; the file can hold {(len(self._data) - self._at) // least_bytes:,}, we {limit:,}"
            )
        return count

    def _number(self, layout: str, what: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout), what))[0]

    def _take(self, count: int, what: str) -> bytes:
        if count > len(self._data) - self._at:
            raise self._short(what)
        start = self._at
        self._at += count
        return self._data[start : self._at]

    def _short(self, what: str) -> ModelFileError:
        return self._broken(f"ends at {len(self._data):,} bytes, inside of {what}")

    def _broken(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self._path.name} {what}.", _MEND)
