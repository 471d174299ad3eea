import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.weights.samples import write_raw_safetensors

from gristmill.core.errors import ModelFileError
from gristmill.weights.safetensors_file import MAX_HEADER_BYTES, read_safetensors


def entry(kind: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}


def refusal(path: Path, header: Any, body: bytes = bytes(16)) -> str:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    with pytest.raises(ModelFileError) as caught:
        read_safetensors(write_raw_safetensors(path / "a.safetensors", data, body))
    assert caught.value.mend
    return caught.value.message


def test_what_the_published_library_writes_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "a": rng.normal(size=(3, 5)).astype(np.float32),
        "b": rng.normal(size=7).astype(np.float16),
        "c": np.zeros((0, 4), np.float32),
    }
    save_file(arrays, tmp_path / "a.safetensors", {"format": "pt"})
    tensors = read_safetensors(tmp_path / "a.safetensors")
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = tensors[name]
        raw = tensor.file.array(tensor.start, tensor.num_bytes)
        assert tensor.shape == array.shape
        assert np.array_equal(raw.view(array.dtype).reshape(array.shape), array)


@pytest.mark.parametrize(
    "entries",
    [
        {"t": entry(offsets=(0, 99))},
        {"t": entry(offsets=(16, 0))},
        {"t": entry(offsets=(-1, 15))},
        {"t": entry(offsets=(0, 8))},
        {"t": entry(offsets=(0,))},
        {"t": entry(offsets=(0, 1 << 80))},
        {"t": entry(offsets=(0.0, 16.0))},
        {"t": entry(offsets="0,16")},
        {"t": entry(shape=(1 << 62, 1 << 62))},
        {"t": entry(shape=(-2, -2))},
        {"t": entry(shape=(True, 4))},
        {"t": entry(shape=(1,) * 9)},
        {"t": entry(shape=None)},
        {"t": entry(kind=7)},
        {"t": {}},
        {"t": 5},
        {"t": None},
        {"a": entry(shape=(2,), offsets=(0, 8)), "t": entry(shape=(3,), offsets=(4, 16))},  # an overlap
        {"a": entry(shape=(1,), offsets=(0, 4)), "t": entry(shape=(2,), offsets=(8, 16))},  # a gap
    ],
)
def test_an_absurd_entry_names_its_tensor(tmp_path: Path, entries: dict[str, Any]) -> None:
    assert "tensor 't'" in refusal(tmp_path, entries)


def test_bytes_that_no_tensor_owns_are_refused(tmp_path: Path) -> None:
    assert "tensors end at" in refusal(tmp_path, {"t": entry()}, bytes(17))


@pytest.mark.parametrize(
    "header", [b"", b"{", b"[]", b"nonsense", b"\xff\xfe", b'{"a":' * 100_000, b'{"a":' + b"9" * 5000 + b"}"]
)
def test_a_header_that_is_no_json_object_is_refused(tmp_path: Path, header: bytes) -> None:
    assert "header" in refusal(tmp_path, header)


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry())
    assert "twice" in refusal(tmp_path, f'{{"t":{one},"t":{one}}}'.encode())


@pytest.mark.parametrize("length", [1, 1 << 20, MAX_HEADER_BYTES + 1, (1 << 64) - 1])
def test_a_header_longer_than_the_file_is_refused_before_it_is_read(tmp_path: Path, length: int) -> None:
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", length))
    with pytest.raises(ModelFileError, match="header"):
        read_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 7])
def test_a_file_too_short_for_a_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError):
        read_safetensors(tmp_path / "a.safetensors")
