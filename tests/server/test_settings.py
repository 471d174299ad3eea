"""The server's settings: the key file, and what they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.core.errors import SettingsError
from gristmill.core.settings import ServeSettings
from gristmill.server.settings import server_settings


def test_keys_are_read_one_per_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("  sk-one\n\nsk-two  \n")
    settings = server_settings(ServeSettings(api_key_file=file, host="0.0.0.0", cors_origin=("http://a.example/",)))
    assert settings.api_keys == ("sk-one", "sk-two")
    assert settings.cors_origins == ("http://a.example",)
    assert not settings.is_open_loopback


@pytest.mark.parametrize("content", [b"", b"\n \n", b"one key\n", "kľúč\n".encode(), b"\xff\xfe"])
def test_a_key_file_that_gives_no_usable_key_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match="key"):
        server_settings(ServeSettings(api_key_file=file))


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere"):
        server_settings(ServeSettings(api_key_file=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "origin", ["localhost:3000", "http://a.test/page", "http://A.test", "http://a\r\nb", "http://é.test", ""]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match="--cors-origin"):
        server_settings(ServeSettings(cors_origin=(origin,)))


@pytest.mark.parametrize("origin", ["*", "null", "https://a.test:8443", "http://[::1]:3000", "moz-extension://0a1b-2c"])
def test_an_origin_as_browsers_send_it_is_taken(origin: str) -> None:
    assert server_settings(ServeSettings(cors_origin=(origin,))).cors_origins == (origin,)


def test_every_server_setting_has_its_way_in() -> None:
    asked = ServeSettings(
        port=9000, no_auth=True, metrics_open=True, drain_timeout_s=1.0, sse_comment_s=2.0, body_limit=4096, log_format="json"
    )
    settings = server_settings(asked)
    assert (settings.port, settings.no_auth, settings.metrics_open) == (9000, True, True)
    assert (settings.drain_timeout_s, settings.sse_comment_s, settings.body_limit_bytes) == (1.0, 2.0, 4096)
    assert settings.log_format == "json"
    assert settings.is_open_loopback
