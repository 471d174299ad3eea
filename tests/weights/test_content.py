import hashlib
from pathlib import Path

from gristmill.weights import content
from gristmill.weights.content import content_id
from gristmill.weights.store import Store


def test_one_files_id_is_its_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    assert content_id([tmp_path / "a"], Store(tmp_path / "store")) == hashlib.sha256(b"weights").hexdigest()


def test_several_files_ids_depend_on_names_and_contents(tmp_path: Path) -> None:
    store, a, b = Store(tmp_path / "store"), tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"1")
    b.write_bytes(b"2")
    both = content_id([a, b], store)
    assert both == content_id([a, b], store)
    assert len({both, content_id([b, a], store), content_id([a], store)}) == 3


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path: Path, monkeypatch) -> None:
    reads = []
    digest = hashlib.file_digest
    monkeypatch.setattr(content.hashlib, "file_digest", lambda file, kind: reads.append(file.name) or digest(file, kind))
    store, path = Store(tmp_path / "store"), tmp_path / "a"
    path.write_bytes(b"old")
    first = content_id([path], store)
    assert content_id([path], store) == first
    assert len(reads) == 1
    path.write_bytes(b"newer")
    assert content_id([path], store) == hashlib.sha256(b"newer").hexdigest()
    assert len(reads) == 2


def test_a_store_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where a folder should be")
    (tmp_path / "a").write_bytes(b"x")
    assert content_id([tmp_path / "a"], Store(tmp_path / "store")) == hashlib.sha256(b"x").hexdigest()
