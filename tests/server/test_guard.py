"""Who may call: every route is listed, and each but the open ones needs a key."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.routing import Route
from tests.server.conftest import Running, Start
from tests.service.scripted import scripted_deployment

from gristmill.core.errors import SettingsError
from gristmill.server.app import create_routes
from gristmill.server.gateway import Gateway
from gristmill.server.lifecycle import Lifecycle
from gristmill.server.settings import ServerSettings
from gristmill.service.generate import Service

KEYS = ("sk-one", "sk-two")
ALLOWED = {"/health", "/ready"}
PAGE = "http://page.example"


def routes() -> list[tuple[str, str]]:
    with scripted_deployment() as deployment:
        gateway = Gateway(Service({"copy": deployment}), ServerSettings(), Lifecycle(), lambda: b"")  # type: ignore[dict-item]
        app = create_routes(gateway)
    found = []
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is of a kind that this test cannot list"
        found += [(method, route.path.replace("{model:path}", "copy")) for method in route.methods or ()]
    return found


def raw_get(url: str, path: str, headers: dict[str, str], method: str = "GET", body: bytes | None = None) -> Any:
    """Send exactly these headers: a client library would put its own Host."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("content-length", str(len(body)))
    connection.endheaders(body)
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


def test_every_route_but_the_probes_needs_a_key(start: Start) -> None:
    running = start(api_keys=KEYS)
    listed = routes()
    assert len(listed) >= 11
    for method, path in listed:
        for form in (path, f"/v1{path}", f"{path}/"):
            status = running.http.request(method, form).status_code
            assert (status != 401) == (path in ALLOWED), f"{method} {form} answered {status}"
    assert running.http.get("/no/such/route").status_code == 401


def test_a_key_opens_and_a_wrong_one_does_not(start: Start) -> None:
    running = start(api_keys=KEYS)
    for key in KEYS:
        assert running.http.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert raw_get(running.url, "/v1/models", {"host": "x", "authorization": f"bearer  {key} "}).status == 200
    for header in ("Bearer sk-on", "Bearer sk-one2", "Bearer ", "Basic sk-one", "sk-one", "Bearer \xff\xfe"):
        response = raw_get(running.url, "/v1/models", {"host": "x", "authorization": header})
        assert response.status == 401
        assert json.loads(response.body)["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


def test_metrics_can_be_opened_alone(start: Start) -> None:
    running = start(api_keys=KEYS, metrics_open=True)
    assert running.http.get("/metrics").status_code == 200
    assert running.http.get("/v1/models").status_code == 401


def test_two_keys_share_no_cached_prompt(start: Start) -> None:
    running = start(api_keys=KEYS)

    def cached(key: str) -> int:
        body = {"prompt": "secret " * 20, "max_tokens": 1}
        answer = running.http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("sk-one"), cached("sk-two"), cached("sk-one"), cached("sk-two")] == [0, 0, 128, 128]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::1"]
)
def test_a_rebound_host_name_is_refused(shared: Running, host: str) -> None:
    assert raw_get(shared.url, "/v1/models", {"host": host}).status == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9999", "[::1]:8080", "127.1.2.3"])
def test_loopback_names_are_answered(shared: Running, host: str) -> None:
    assert raw_get(shared.url, "/v1/models", {"host": host}).status == 200


def test_a_page_of_another_origin_cannot_post(shared: Running) -> None:
    for origin in (PAGE, "null", "http://localhost:3000", "https://127.0.0.1.evil.example"):
        headers = {"origin": origin, "content-type": "text/plain"}
        response = shared.http.post("/v1/completions", content=b'{"prompt":"x"}', headers=headers)
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "origin_refused"
        assert "access-control-allow-origin" not in response.headers
    same = shared.http.post("/v1/completions", json={"prompt": "{x}"}, headers={"origin": shared.url})
    assert same.status_code == 200


def test_a_preflight_of_an_unlisted_origin_is_refused(shared: Running) -> None:
    headers = {"origin": PAGE, "access-control-request-method": "POST"}
    assert shared.http.options("/v1/completions", headers=headers).status_code == 403


def test_an_added_origin_is_answered_with_its_preflight(start: Start) -> None:
    running = start(cors_origins=(PAGE,))
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, x-stainless-os",
    }
    preflight = running.http.options("/v1/chat/completions", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert preflight.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    answer = running.http.post("/v1/completions", json={"prompt": "{x}"}, headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["vary"] == "Origin"
    assert "x-gristmill-seed" in answer.headers["access-control-expose-headers"]
    assert running.http.get("/v1/models", headers={"origin": "http://other.example"}).status_code == 403


def test_with_keys_only_a_listed_origin_may_read_and_the_preflight_needs_no_key(start: Start) -> None:
    running = start(api_keys=KEYS, cors_origins=(PAGE,))
    asked = {"origin": PAGE, "access-control-request-method": "POST"}
    assert running.http.options("/v1/completions", headers=asked).status_code == 204
    key = {"authorization": "Bearer sk-one"}
    assert running.http.get("/v1/models", headers={"origin": PAGE, **key}).headers["access-control-allow-origin"] == PAGE
    other = running.http.get("/v1/models", headers={"origin": "http://other.example", **key})
    assert "access-control-allow-origin" not in other.headers
    refused = running.http.get("/v1/models", headers={"origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org", ""])
def test_an_address_that_others_reach_needs_keys_or_the_operators_word(host: str) -> None:
    with pytest.raises(SettingsError, match="--api-key-file"):
        ServerSettings(host=host)
    ServerSettings(host=host, api_keys=KEYS)
    ServerSettings(host=host, no_auth=True)


def test_a_star_never_goes_with_keys() -> None:
    with pytest.raises(SettingsError, match="--cors-origin"):
        ServerSettings(api_keys=KEYS, cors_origins=("*",))
    ServerSettings(cors_origins=("*",))
