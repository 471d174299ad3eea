import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.weights.samples import llama_weights, write_llama

from gristmill.core.errors import ModelFileError
from gristmill.quant.block_types import BlockType
from gristmill.weights.gguf import MAX_NAME_BYTES, read_gguf

STRING, ARRAY, U32, U64, F32 = 8, 9, 4, 10, 6


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """`shape` as it lies in the file: the first dimension varies fastest."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def write(
    path: Path,
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    body: bytes = b"",
    *,
    version: int = 3,
    **counts: int,
) -> Path:
    header = b"GGUF" + struct.pack("<IQQ", version, counts.get("num_tensors", len(tensors)), counts.get("num_keys", len(keys)))
    header += b"".join(keys) + b"".join(tensors)
    path.write_bytes(header + bytes(-len(header) % 32) + body)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_gguf(path)
    assert caught.value.mend
    return caught.value.message


def test_a_real_file_reads_as_the_gguf_package_reads_it(smollm2_path: Path) -> None:
    ours, theirs = read_gguf(smollm2_path), gguf.GGUFReader(smollm2_path)
    assert list(ours.tensors) == [other.name for other in theirs.tensors]
    for other in theirs.tensors:
        mine = ours.tensors[other.name]
        assert mine.type.name == other.tensor_type.name
        assert mine.shape == tuple(int(size) for size in reversed(other.shape))
        assert np.array_equal(mine.raw, other.data.reshape(-1).view(np.uint8))
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert ours.metadata[name] == field.contents()


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read(tmp_path: Path, version: int) -> None:
    body = np.arange(6, dtype=np.float32).tobytes()
    path = write(tmp_path / "a.gguf", (key("a.b", U32, struct.pack("<I", 7)),), (tensor("t", (3, 2)),), body, version=version)
    file = read_gguf(path)
    assert file.metadata == {"a.b": 7}
    assert file.tensors["t"].shape == (2, 3)
    assert file.tensors["t"].raw.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    for name, value, add in (
        ("u8", 200, writer.add_uint8),
        ("i8", -3, writer.add_int8),
        ("u16", 60_000, writer.add_uint16),
        ("i16", -300, writer.add_int16),
        ("i32", -70_000, writer.add_int32),
        ("u64", 1 << 40, writer.add_uint64),
        ("i64", -(1 << 40), writer.add_int64),
        ("f64", 1e-200, writer.add_float64),
        ("bool", True, writer.add_bool),
        ("text", "naïve 🙂", writer.add_string),
        ("numbers", [1, 2, 3], writer.add_array),
        ("flags", [True, False], writer.add_array),
        ("texts", ["a", "", "🙂"], writer.add_array),
        ("nested", [[1, 2], [3]], writer.add_array),
    ):
        add(f"x.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = read_gguf(tmp_path / "a.gguf").metadata
    assert found["x.u8"] == 200
    assert found["x.i8"] == -3
    assert found["x.u16"] == 60_000
    assert found["x.i64"] == -(1 << 40)
    assert found["x.f64"] == 1e-200
    assert found["x.bool"] is True
    assert found["x.text"] == "naïve 🙂"
    assert found["x.flags"] == [True, False]
    assert found["x.texts"] == ["a", "", "🙂"]
    assert found["x.nested"] == [[1, 2], [3]]


def test_a_split_model_is_one_model(tmp_path: Path) -> None:
    weights = llama_weights()
    write_llama(tmp_path / "whole.gguf", weights)
    write_llama(tmp_path / "parts.gguf", weights, split=4)
    whole = read_gguf(tmp_path / "whole.gguf")
    parts = read_gguf(tmp_path / "parts-00001-of-00003.gguf")
    assert [path.name for path in parts.paths] == [f"parts-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert parts.tensors.keys() == whole.tensors.keys()
    assert all(np.array_equal(parts.tensors[name].raw, other.raw) for name, other in whole.tensors.items())


def test_a_missing_part_and_a_part_opened_alone_are_named(tmp_path: Path) -> None:
    write_llama(tmp_path / "parts.gguf", llama_weights(), split=4)
    assert "not named as the first" in refusal(tmp_path / "parts-00002-of-00003.gguf")
    (tmp_path / "parts-00003-of-00003.gguf").unlink()
    assert "parts-00003-of-00003.gguf" in refusal(tmp_path / "parts-00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"GGUF", "inside of version"),
        (b"ELF\x7f" * 9, "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 0), "the number of tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "the number of keys"),
    ],
)
def test_a_file_that_is_no_gguf_says_why(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    assert said in refusal(tmp_path / "a.gguf")


def test_a_path_that_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.gguf")
    assert "no file" in refusal(tmp_path / "pipe.gguf")
    assert "no file" in refusal(tmp_path / "missing.gguf")
    assert "no file" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ((key("a.key", 99, b""),), "type 99 for the key 'a.key'"),
        ((key("a.key", U32, b"\0\0\0\0"),) * 2, "the key 'a.key' twice"),
        ((key("a.key", STRING, struct.pack("<Q", 1 << 62)),), "for 'a.key'"),
        ((struct.pack("<Q", MAX_NAME_BYTES + 1) + b"x" * 2000,), "for a key"),
        ((key("a.key", ARRAY, struct.pack("<IQ", U64, 1 << 61)),), "the length of 'a.key'"),
        ((key("a.key", ARRAY, struct.pack("<IQ", STRING, 1 << 40)),), "the length of 'a.key'"),
        ((key("a.key", ARRAY, struct.pack("<IQ", STRING, 2) + text("x") + struct.pack("<Q", 1 << 63)),), "inside of 'a.key'"),
        ((key("a.key", ARRAY, struct.pack("<IQ", ARRAY, 1) * 40),), "nests arrays deeper"),
        ((key("a.key", ARRAY, struct.pack("<IQ", 77, 1) + bytes(64)),), "type 77"),
        ((key("general.alignment", U32, struct.pack("<I", 0)),), "general.alignment 0"),
        ((key("general.alignment", U32, struct.pack("<I", 48)),), "general.alignment 48"),
        ((key("general.alignment", STRING, text("x")),), "general.alignment 'x'"),
    ],
)
def test_an_absurd_key_is_named(tmp_path: Path, keys: tuple[bytes, ...], said: str) -> None:
    assert said in refusal(write(tmp_path / "a.gguf", keys))


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (tensor("t", ()), "0 dimensions for the tensor 't'"),
        (tensor("t", (1, 1, 1, 1, 1)), "5 dimensions for the tensor 't'"),
        (tensor("t", (4, 0)), "the shape (0, 4) for the tensor 't'"),
        (tensor("t", (4,), kind=99), "type 99 for the tensor 't'"),
        (tensor("t", (4,), kind=4), "type 4 for the tensor 't'"),  # a type that was withdrawn
        (tensor("t", (33,), kind=BlockType.Q4_0), "rows of 33 for the tensor 't'"),
        (tensor("t", (1 << 63, 1 << 63)), "inside of the tensor 't'"),
        (tensor("t", (4,), offset=(1 << 64) - 32), "inside of the tensor 't'"),
        (tensor("t", (1000,)), "inside of the tensor 't'"),
        (tensor("t", (4,), offset=3), "no multiple of 32"),
        (tensor("t", (4,)) + tensor("t", (4,)), "the tensor 't' twice"),
    ],
)
def test_an_absurd_tensor_is_named(tmp_path: Path, described: bytes, said: str) -> None:
    count = 2 if described.count(text("t")) == 2 else 1
    assert said in refusal(write(tmp_path / "a.gguf", (), (described,), bytes(64), num_tensors=count))


def test_a_file_cut_short_anywhere_in_its_header_is_refused(tmp_path: Path) -> None:
    whole = write_llama(tmp_path / "a.gguf", llama_weights(), extra={"tokenizer.ggml.tokens": ["a", "b"]}).read_bytes()
    (tmp_path / "b.gguf").write_bytes(whole)
    start = min(entry.start for entry in read_gguf(tmp_path / "b.gguf").tensors.values())
    for length in range(0, start, 7):
        (tmp_path / "b.gguf").write_bytes(whole[:length])
        assert refusal(tmp_path / "b.gguf")
