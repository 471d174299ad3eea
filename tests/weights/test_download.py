import hashlib
from pathlib import Path

import pytest
from tests.weights.web import Page, Site, serve

from gristmill.core.errors import ModelReferenceError
from gristmill.weights.download import download, file_name
from gristmill.weights.progress import silent

BODY = bytes(range(256)) * 4096  # 1 MiB
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def site():
    with serve() as site:
        site.pages["/w/model.whl"] = Page(BODY)
        yield site


def ranges(site: Site) -> list[str | None]:
    return [asked for _, _, asked in site.requests]


def test_a_file_arrives_whole_under_its_name_and_progress_reaches_its_end(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = download(f"{site.url}/w/model.whl", SHA, tmp_path, lambda *args: seen.append(args))
    assert path == tmp_path / "model.whl"
    assert path.read_bytes() == BODY
    assert seen[0] == ("model.whl", 0, len(BODY))
    assert seen[-1] == ("model.whl", len(BODY), len(BODY))
    assert [path.name for path in tmp_path.iterdir()] == ["model.whl"]


def test_a_connection_that_breaks_is_taken_up_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.pages["/w/model.whl"].cut_after = 300_000
    assert download(f"{site.url}/w/model.whl", SHA, tmp_path, silent).read_bytes() == BODY
    assert ranges(site) == [None, "bytes=300000-"]


def test_what_an_earlier_run_left_is_continued(site: Site, tmp_path: Path) -> None:
    (tmp_path / f"{SHA}.part").write_bytes(BODY[:12345])
    assert download(f"{site.url}/w/model.whl", SHA, tmp_path, silent).read_bytes() == BODY
    assert ranges(site) == ["bytes=12345-"]


def test_what_an_earlier_run_completed_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / f"{SHA}.part").write_bytes(BODY)
    assert download(f"{site.url}/w/model.whl", SHA, tmp_path, silent).read_bytes() == BODY
    assert ranges(site) == [f"bytes={len(BODY)}-"]


def test_a_server_without_ranges_sends_it_all_again(site: Site, tmp_path: Path) -> None:
    site.pages["/w/model.whl"].takes_ranges = False
    (tmp_path / f"{SHA}.part").write_bytes(b"garbage")
    assert download(f"{site.url}/w/model.whl", SHA, tmp_path, silent).read_bytes() == BODY


def test_another_content_than_promised_is_deleted_and_both_hashes_named(site: Site, tmp_path: Path) -> None:
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(ModelReferenceError) as caught:
        download(f"{site.url}/w/model.whl", other, tmp_path, silent)
    assert SHA in caught.value.message
    assert other in caught.value.message
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_an_error_with_its_cause(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ModelReferenceError, match="404"):
        download(f"{site.url}/w/other.whl", SHA, tmp_path, silent)
    assert len(site.requests) == 1


def test_a_dead_server_is_an_error_and_what_was_fetched_is_kept(tmp_path: Path) -> None:
    with serve() as site:
        url = site.url
    (tmp_path / f"{SHA}.part").write_bytes(BODY[:99])
    with pytest.raises(ModelReferenceError, match="cannot be fetched"):
        download(f"{url}/w/model.whl", SHA, tmp_path, silent)
    assert (tmp_path / f"{SHA}.part").read_bytes() == BODY[:99]


def test_more_than_the_disk_can_hold_is_refused_before_it_is_fetched(site: Site, tmp_path: Path) -> None:
    site.pages["/w/model.whl"].headers["Content-Length"] = str(1 << 60)
    with pytest.raises(ModelReferenceError, match="the disk has"):
        download(f"{site.url}/w/model.whl", SHA, tmp_path, silent)


def test_a_file_on_this_machine_is_fetched_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "model.whl").write_bytes(BODY)
    path = download((tmp_path / "from" / "model.whl").as_uri(), SHA, tmp_path / "to", silent)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("url", ["ftp://example.org/a.whl", "data:text/plain,x", "//example.org/a"])
def test_other_kinds_of_addresses_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ModelReferenceError, match="no usable address"):
        download(url, SHA, tmp_path, silent)


@pytest.mark.parametrize("sha256", ["", "x" * 64, "../../../etc/passwd", SHA.upper()])
def test_without_a_sha256_nothing_is_fetched(site: Site, tmp_path: Path, sha256: str) -> None:
    with pytest.raises(ModelReferenceError, match="SHA-256"):
        download(f"{site.url}/w/model.whl", sha256, tmp_path, silent)
    assert not site.requests


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://x/a/b-1.0%2Bcpu.whl#sha256=1", "b-1.0+cpu.whl"),
        ("https://x/..%2f..%2fetc%2fpasswd", "passwd"),
        ("https://x/.hidden", "hidden"),
        ("https://x/", "download"),
        ("https://x/a%00b c", "a_b_c"),
    ],
)
def test_names_are_safe(url: str, name: str) -> None:
    assert file_name(url) == name
