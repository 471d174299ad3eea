"""The HTTP surface, byte for byte where it matters: SSE, headers, shapes, routes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.conftest import Running, Start

CHAT = "/v1/chat/completions"


def chat(content: str = "{hello}", **fields: Any) -> dict[str, Any]:
    return {"model": "copy", "messages": [{"role": "user", "content": content}], **fields}


def events(text: str) -> list[str]:
    assert text.endswith("\n\n")
    return text.removesuffix("\n\n").split("\n\n")


def test_a_stream_is_events_a_comment_with_the_times_and_done(shared: Running) -> None:
    response = shared.http.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    *chunks, comment, done = events(response.text)
    assert done == "data: [DONE]"
    assert comment.startswith(": gristmill queue_ms=")
    assert "decode_ms=" in comment
    parsed = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    assert parsed[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert parsed[1]["choices"][0] == {"index": 0, "delta": {"content": "h"}, "logprobs": None, "finish_reason": None}
    assert parsed[-2]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"]["completion_tokens"] == 6
    assert all(chunk["usage"] is None for chunk in parsed[:-1])


def test_text_is_escaped_in_the_template(shared: Running) -> None:
    text = 'a "quote" \\ back\n\ttab \x01 \u2028 \U0001f600 </script>'
    response = shared.http.post(CHAT, json=chat(f"{{{text}}}", stream=True))
    chunks = [json.loads(event.removeprefix("data: ")) for event in events(response.text)[:-2]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


def test_a_failed_stream_ends_with_its_error_and_no_done(shared: Running) -> None:
    response = shared.http.post(CHAT, json=chat("NaN!", stream=True))
    last = events(response.text)[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_failed"
    assert "[DONE]" not in response.text


def test_a_silent_stream_gets_a_comment(start: Start) -> None:
    running = start(sse_comment_s=0.05)
    running.deployment.executable.hold()
    with running.http.stream("POST", CHAT, json=chat(stream=True)) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": still working"
        running.deployment.executable.free()
        rest = "\n".join(lines)
    assert "data: [DONE]" in rest


def test_headers_keep_the_id_and_give_seed_times_and_ignored_fields(shared: Running) -> None:
    response = shared.http.post(
        CHAT, json=chat(seed=5, frobnicate=1, user="u", null_field=None), headers={"x-request-id": "mine-1"}
    )
    headers = response.headers
    assert headers["x-request-id"] == "mine-1"
    assert headers["x-gristmill-seed"] == "5"
    assert headers["x-gristmill-ignored"] == "frobnicate"
    for name in ("queue", "prefill", "decode"):
        assert float(headers[f"x-gristmill-{name}-ms"]) >= 0
    plain = shared.http.post(CHAT, json=chat())
    assert "x-gristmill-ignored" not in plain.headers
    assert plain.headers["x-request-id"].startswith("req-")


def test_ignored_names_cannot_split_the_header(shared: Running) -> None:
    fields = {f"x{i}\r\nset-cookie: é": 1 for i in range(40)}
    response = shared.http.post(CHAT, json=chat(**fields))
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    assert response.headers["x-gristmill-ignored"].endswith(", ...")


@pytest.mark.parametrize("bad", ["a b", "é", "x" * 200, ""])
def test_a_request_id_that_no_log_should_hold_is_replaced(shared: Running, bad: str) -> None:
    response = shared.http.get("/v1/models", headers={"x-request-id": bad.encode()})
    assert response.headers["x-request-id"].startswith("req-")


def test_whole_answers_have_the_shape_of_openai(shared: Running) -> None:
    answer = shared.http.post(CHAT, json=chat("{hi}")).json()
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    completion = shared.http.post("/completions", json={"prompt": "{hi}", "return_token_ids": True}).json()
    assert completion["object"] == "text_completion"
    assert completion["choices"][0]["token_ids"] == [*b"hi", 257]
    assert completion["choices"][0]["prompt_token_ids"] == [*b"{hi}"]


def test_cached_tokens_are_whole_blocks_when_warm(shared: Running) -> None:
    body = {"prompt": "warm " * 20, "max_tokens": 1}
    cached = [
        shared.http.post("/v1/completions", json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in "ab"
    ]
    assert cached == [0, 96]


def test_tokenize_and_detokenize_have_vllms_shapes(shared: Running) -> None:
    answer = shared.http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert answer == {"count": 3, "max_model_len": 512, "tokens": [*"hé".encode()], "token_strs": ["h", "Ã", "©"]}
    assert shared.http.post("/v1/tokenize", json={"prompt": "x"}).json()["token_strs"] is None
    messages = chat("hi")["messages"]
    ids = shared.http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    text = shared.http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    without = shared.http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert ids[: len(without)] == without
    assert len(without) < len(ids)
    assert shared.http.post("/detokenize", json={"tokens": [999]}).json()["error"]["param"] == "tokens"
    info = shared.http.get("/tokenizer_info").json()
    assert (info["vocab_size"], info["end_tokens"]) == (258, ["<|im_end|>"])


def test_a_long_text_may_be_counted_though_it_could_not_be_answered(shared: Running) -> None:
    assert shared.http.post("/tokenize", json={"prompt": "x" * 100_000}).json()["count"] == 100_000


def test_probes_and_version(shared: Running) -> None:
    assert shared.http.get("/health").json() == {"status": "alive"}
    assert shared.http.get("/ready").json() == {"status": "ready"}
    assert set(shared.http.get("/version").json()) == {"version"}
    metrics = shared.http.get("/metrics").text
    for name in ("gristmill_requests_running", "gristmill_requests_waiting", "gristmill_generated_tokens_total"):
        assert name in metrics


def test_unknown_routes_and_methods_are_errors_in_openais_shape(shared: Running) -> None:
    missing = shared.http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    wrong = shared.http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    assert shared.http.head("/v1/models").status_code in (200, 405)


def test_a_dead_engine_makes_health_503_and_the_exit_code_1(start: Start) -> None:
    running = start()
    response = running.http.post(CHAT, json=chat("Die!"))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "unavailable"
    assert running.join() == 1


def test_the_default_of_the_model_holds_until_a_request_says_otherwise(start: Start) -> None:
    running = start({"defaults": {"temperature": 1.0, "top_k": 5}})
    assert running.http.get("/v1/models").json()["data"][0]["default_sampling"] == {"temperature": 1.0, "top_k": 5, "top_p": 1.0}
    texts = {running.http.post("/completions", json={"prompt": "x"}).json()["choices"][0]["text"] for _ in range(4)}
    assert len(texts) == 4
    greedy = [
        running.http.post("/completions", json={"prompt": "x", "temperature": 0}).json()["choices"][0]["text"] for _ in "ab"
    ]
    assert greedy == ["abcdefghijklmnop"] * 2


def test_a_model_without_a_template_completes_and_refuses_chats(start: Start) -> None:
    running = start({"template": None})
    refused = running.http.post(CHAT, json=chat())
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "template_error")
    assert "--chat-template" in refused.json()["error"]["message"]
    assert running.http.post("/completions", json={"prompt": "{x}"}).status_code == 200


def test_a_template_that_refuses_is_a_400_with_the_line(shared: Running) -> None:
    body = {"model": "copy", "messages": [{"role": "tool", "content": "x"}]}
    error = shared.http.post(CHAT, json=body).json()["error"]
    assert error["code"] == "template_error"
    assert "line 1: no tools here" in error["message"]


def test_a_full_queue_is_a_429_with_retry_after_and_the_accepted_finish(start: Start) -> None:
    running = start({"max_num_seqs": 1, "max_waiting_requests": 1})
    running.deployment.executable.hold()
    body = {"prompt": ["{a}", "{b}"]}
    with running.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as accepted:
        refused = running.http.post("/v1/completions", json=body)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"
        running.deployment.executable.free()
        assert "[DONE]" in accepted.read().decode()


def test_continue_final_message_goes_on_inside_the_answer(shared: Running) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{well}"}]
    body = {"messages": messages, "continue_final_message": True, "return_token_ids": True}
    answer = shared.http.post(CHAT, json=body).json()
    assert answer["choices"][0]["message"]["content"] == "well"
    assert bytes(answer["prompt_token_ids"][-6:]) == b"{well}"
    both = shared.http.post(CHAT, json={**body, "add_generation_prompt": True}).json()
    assert both["error"]["param"] == "continue_final_message"


def test_a_fault_of_ours_is_a_500_in_openais_shape_and_is_logged(start: Start, monkeypatch: Any, caplog: Any) -> None:
    running = start()
    monkeypatch.setattr(running.deployment, "fingerprint", object())  # cannot be written as JSON
    response = running.http.post(CHAT, json=chat("endless"))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    running.settle()
    assert any(record.exc_info for record in caplog.records if record.name == "gristmill.server")
    assert running.deployment.aborted.acquire(timeout=20), "what was started for it goes on"
