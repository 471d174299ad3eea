"""The line of a request: ids, tokens, times, how it ended, and nothing of what was said."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.server.conftest import Running

from gristmill.server.log import _JsonFormatter, _TextFormatter


@pytest.fixture
def lines(shared: Running, caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    caplog.set_level(logging.INFO, logger="gristmill.access")

    def written() -> list[logging.LogRecord]:
        shared.settle()
        return [record for record in caplog.records if record.name == "gristmill.access"]

    return written


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return record.fields  # type: ignore[attr-defined, no-any-return]


def test_each_answer_has_one_line_with_its_figures_and_none_of_its_text(shared: Running, lines: Any) -> None:
    body = {"prompt": "{tell nobody}", "seed": 3}
    shared.http.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    shared.http.get("/health")
    shared.http.get("/v1/models")
    answer, models = lines()
    found = fields(answer)
    assert {"queue_ms", "prefill_ms", "decode_ms", "wall_ms", "preemptions"} <= set(found)
    assert (found["id"], found["status"], found["finish"], found["model"], found["seed"]) == ("mine", 200, "stop", "copy", 3)
    assert (found["prompt_tokens"], found["completion_tokens"], found["cached_tokens"]) == (13, 12, 0)
    assert "tell nobody" not in _JsonFormatter().format(answer) + _TextFormatter().format(answer)
    assert fields(models)["path"] == "/models"


def test_a_failure_is_named_in_the_line(shared: Running, lines: Any) -> None:
    shared.http.post("/v1/completions", json={"prompt": "NaN!"})
    shared.http.post("/v1/completions", content=b"{")
    failed, malformed = lines()
    assert (fields(failed)["finish"], fields(failed)["status"]) == ("request_failed", 500)
    assert fields(malformed)["status"] == 400


def test_a_line_is_json_or_words_whatever_the_path_holds() -> None:
    record = logging.LogRecord("gristmill.access", logging.INFO, "", 0, "request", (), None)
    record.fields = {"path": '/x y"\nz', "status": 404}  # type: ignore[attr-defined]
    parsed = json.loads(_JsonFormatter().format(record))
    assert (parsed["event"], parsed["path"], parsed["status"]) == ("request", '/x y"\nz', 404)
    text = _TextFormatter().format(record)
    assert text.endswith('request path="/x y\\"\\nz" status=404')
    assert "\n" not in text
