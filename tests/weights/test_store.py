import multiprocessing
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from gristmill.weights.store import HOME_VARIABLE, Store, default_store


def test_the_store_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_store().home == tmp_path / "own"
    monkeypatch.delenv(HOME_VARIABLE)
    assert default_store().home == tmp_path / "cache" / "gristmill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_store().home == tmp_path / ".cache" / "gristmill"
    assert HOME_VARIABLE == "GRISTMILL_HOME"


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    store, target = Store(tmp_path), tmp_path / "models" / "a" / "1"

    def fail_half_way() -> None:
        with store.building(target) as folder:
            (folder / "half").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert not target.exists()
    with store.building(target) as folder:
        (folder / "whole").touch()
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_beside(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for text in ("one", "two"):
        store.write(tmp_path / "notes" / "a", text)
    assert (tmp_path / "notes" / "a").read_text() == "two"
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["a"]


def _append_under_lock(home: Path, inside: Event, may_leave: Event) -> None:
    with Store(home).locked("model"):
        inside.set()
        may_leave.wait(30)
        with (home / "order").open("a") as file:
            file.write("child\n")


def test_a_lock_keeps_another_process_out(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    inside, may_leave = context.Event(), context.Event()
    child = context.Process(target=_append_under_lock, args=(tmp_path, inside, may_leave))
    child.start()
    assert inside.wait(30)
    with Store(tmp_path).locked("another"):  # other names are free
        may_leave.set()
    with Store(tmp_path).locked("model"), (tmp_path / "order").open("a") as file:
        file.write("parent\n")
    child.join(30)
    assert (tmp_path / "order").read_text().split() == ["child", "parent"]
