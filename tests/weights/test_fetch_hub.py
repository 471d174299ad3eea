"""The hub, as huggingface_hub's own client sees it: a small server on this machine answers for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.weights.samples import llama_weights, write_folder, write_llama
from tests.weights.web import Page, Site, serve

from gristmill.core.errors import ModelReferenceError
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.fetch_hub import HubReference, fetch_hub, files_to_fetch
from gristmill.weights.progress import silent
from gristmill.weights.references import list_local, resolve
from gristmill.weights.store import Store

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve() as site:
        yield site


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def offer(hub: Site, files: dict[str, bytes], repository: str = "org/name", *, sha256: dict[str, str] | None = None) -> None:
    """Let the hub have a repository; large files are named by their SHA-256, as LFS does."""
    info = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    tree = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in files.items()]
    answers = {f"revision/{revision}": info for revision in ("main", "v1", COMMIT)} | {f"tree/{COMMIT}": tree, "": info}
    for path, answer in answers.items():
        body = json.dumps(answer).encode()
        hub.pages[f"/api/models/{repository}/{path}".rstrip("/")] = Page(body, headers={"Content-Type": "application/json"})
    for name, data in files.items():
        etag = (sha256 or {}).get(name, hashlib.sha256(data).hexdigest())
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{etag}"'}
        hub.pages[f"/{repository}/resolve/{COMMIT}/{name}"] = Page(data, headers=headers)


def fetch(reference: HubReference, hub: Site, store: Store, progress=silent, *, offline: bool = False) -> Path:
    return fetch_hub(reference, store, offline=offline, progress=progress, endpoint=hub.url, cache=store.home / "hub")


def folder_files(tmp_path: Path) -> dict[str, bytes]:
    folder = write_folder(tmp_path / "m", llama_weights())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_fetched_once_and_is_there_offline(hub: Site, store: Store, tmp_path: Path) -> None:
    files = folder_files(tmp_path)
    offer(
        hub,
        {
            **files,
            "tokenizer.json": b"{}",
            "README.md": b"x",
            "consolidated.safetensors": b"x",
            "original/model.safetensors": b"x",
        },
    )
    seen: list[tuple[str, int, int | None]] = []
    path = fetch(HubReference("org/name", None, None), hub, store, lambda *args: seen.append(args))
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (path / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert set(open_checkpoint(path).names()) == set(llama_weights())
    assert seen
    hub.pages.clear()
    hub.requests.clear()
    assert fetch(HubReference("org/name", None, None), hub, store) == path
    assert resolve("hf:org/name", offline=True, store=store) == path
    assert not hub.requests
    assert [(found.reference, found.path, found.format) for found in list_local(store)] == [
        ("hf:org/name", path, "safetensors F32")
    ]


def test_a_named_file_of_a_revision_is_fetched_alone(hub: Site, store: Store, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "tiny.gguf", llama_weights()).read_bytes()
    offer(hub, {"tiny-Q4.gguf": model, "tiny-Q8.gguf": model + b"x"})
    path = fetch(HubReference("org/name", "v1", "tiny-Q4.gguf"), hub, store)
    assert path.read_bytes() == model
    assert not [asked for _, asked, _ in hub.requests if "Q8" in asked]


def test_a_file_that_is_not_what_the_hub_promised_is_refused(hub: Site, store: Store, tmp_path: Path) -> None:
    offer(hub, {"tiny.gguf": b"content"}, sha256={"tiny.gguf": "a" * 64})
    with pytest.raises(ModelReferenceError, match=r"a{64} was promised"):
        fetch(HubReference("org/name", None, "tiny.gguf"), hub, store)
    with pytest.raises(ModelReferenceError, match="is not here"):
        fetch(HubReference("org/name", None, "tiny.gguf"), hub, store, offline=True)


def test_a_repository_that_is_not_there_says_so(hub: Site, store: Store) -> None:
    page = Page(b"{}", 404, {"X-Error-Code": "RepoNotFound"})
    hub.pages["/api/models/org/other"] = hub.pages["/api/models/org/other/revision/main"] = page
    with pytest.raises(ModelReferenceError, match="hf:org/other does not exist"):
        fetch(HubReference("org/other", None, None), hub, store)


def test_a_gated_repository_says_how_to_get_in(hub: Site, store: Store) -> None:
    page = Page(b"{}", 403, {"X-Error-Code": "GatedRepo"})
    hub.pages["/api/models/org/other"] = hub.pages["/api/models/org/other/revision/main"] = page
    with pytest.raises(ModelReferenceError, match="is gated") as caught:
        fetch(HubReference("org/other", None, None), hub, store)
    assert "hf auth login" in caught.value.mend


SPLIT = [f"q8-0000{i}-of-00002.gguf" for i in (1, 2)]
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


@pytest.mark.parametrize(
    ("names", "file", "expected"),
    [
        (["config.json", "model.safetensors", "x.gguf", "pytorch_model.bin"], None, ["config.json", "model.safetensors"]),
        (
            ["config.json", "model.safetensors.index.json", *SHARDS, "consolidated.safetensors"],
            None,
            ["config.json", "model.safetensors.index.json", *SHARDS],
        ),
        (["README.md", "only.gguf", "mmproj-only.gguf"], None, ["only.gguf"]),
        (["a.gguf", *SPLIT], SPLIT[0], SPLIT),
        (SPLIT, None, SPLIT),
        (["a.gguf", "b.gguf"], "b.gguf", ["b.gguf"]),
    ],
)
def test_what_is_fetched_of_a_repository(names: list[str], file: str | None, expected: list[str]) -> None:
    assert sorted(files_to_fetch(names, HubReference("org/name", None, file))) == sorted(expected)


def test_a_choice_between_files_is_left_to_the_person() -> None:
    with pytest.raises(ModelReferenceError, match=r"a\.gguf, b\.gguf"):
        files_to_fetch(["a.gguf", "b.gguf"], HubReference("org/name", None, None))
    with pytest.raises(ModelReferenceError, match=r"no file 'c\.gguf'"):
        files_to_fetch(["a.gguf"], HubReference("org/name", None, "c.gguf"))
    with pytest.raises(ModelReferenceError, match="no GGUF files"):
        files_to_fetch(["pytorch_model.bin"], HubReference("org/name", None, None))
