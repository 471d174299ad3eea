from pathlib import Path

import pytest

from gristmill.core.errors import ModelFileError
from gristmill.weights.mapped_file import MappedFile


def test_bytes_that_were_forgotten_can_still_be_read(tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    (tmp_path / "a").write_bytes(content)
    file = MappedFile(tmp_path / "a")
    part = file.array(5000, 9000)
    file.forget(5000, 9000)
    assert part.tobytes() == content[5000:14000]
    assert not part.flags.writeable


def test_an_array_keeps_the_file_mapped_after_its_owner_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    part = MappedFile(tmp_path / "a").array(0, 7)
    (tmp_path / "a").unlink()
    assert part.tobytes() == b"content"


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="is no file"):
        MappedFile(tmp_path / name)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ModelFileError, match="cannot be read"):
        MappedFile(tmp_path / "empty")
