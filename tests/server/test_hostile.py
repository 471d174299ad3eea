"""Hostile bodies: always a 4xx in OpenAI's shape, never a 5xx, and the next request is answered."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.server.conftest import Running, Start

GOOD: dict[str, Any] = {"model": "copy", "prompt": "{ok}", "max_tokens": 4}
GOOD_CHAT: dict[str, Any] = {"model": "copy", "messages": [{"role": "user", "content": "{ok}"}], "max_tokens": 4}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

MALFORMED = {
    "empty": b"",
    "not json": b"{",
    "not an object": b"[1, 2]",
    "a string": b'"x"',
    "null": b"null",
    "nan": b'{"prompt": "x", "temperature": NaN}',
    "infinity": b'{"prompt": "x", "top_p": Infinity}',
    "overflowing float": b'{"prompt": "x", "temperature": 1e999}',
    "huge integer": b'{"prompt": "x", "max_tokens": ' + b"9" * 400 + b"}",
    "very long integer": b'{"prompt": "x", "seed": ' + b"1" * 100_000 + b"}",
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "reversed surrogates": b'{"prompt": "\\udc00\\ud800"}',
    "not utf-8": b'{"prompt": "\xff\xfe"}',
    "deep lists": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "trailing text": b'{"prompt": "x"} and more',
    "a null byte outside": b'{"prompt": "x"}\x00',
    "ten megabytes": json.dumps({"prompt": "x" * 10_000_000}).encode(),
    "a million ids": json.dumps({"prompt": [1] * 1_000_000}).encode(),
    "a million stops": json.dumps({"prompt": "x", "stop": ["a"] * 1_000_000}).encode(),
    "a million wrong stops": json.dumps({"prompt": "x", "stop": [1] * 1_000_000}).encode(),
    "many biases": json.dumps({"prompt": "x", "logit_bias": {str(i): 1 for i in range(100_000)}}).encode(),
    "too many prompts": json.dumps({"prompt": ["x"] * 100_000}).encode(),
}

WRONG_FIELDS: list[dict[str, Any]] = [
    {"model": 3},
    {"model": ["copy"]},
    {"stream": "yes"},
    {"stream_options": {"include_usage": True}},
    {"stream_options": 3, "stream": True},
    {"temperature": "hot"},
    {"temperature": -1},
    {"temperature": True},
    {"top_p": 0},
    {"top_p": 1.5},
    {"top_k": -5},
    {"top_k": 1.5},
    {"min_p": 2},
    {"n": 0},
    {"n": 1000},
    {"seed": "x"},
    {"seed": 2**65},
    {"max_tokens": -1},
    {"max_tokens": "many"},
    {"max_tokens": 10**300},
    {"min_tokens": 5},
    {"stop": [""]},
    {"stop": ""},
    {"stop": ["x"] * 17},
    {"stop": {"a": 1}},
    {"stop_token_ids": [10**12]},
    {"stop_token_ids": ["x"]},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"1": "x"}},
    {"logit_bias": {"1": 1000}},
    {"logit_bias": {"1": True}},
    {"logit_bias": {"999999": 1}},
    {"logit_bias": {"-1": 1}},
    {"logit_bias": [1]},
    {"presence_penalty": 3},
    {"frequency_penalty": -3},
    {"repetition_penalty": 0},
    {"ignore_eos": 1},
    {"truncate_prompt_tokens": -2},
    {"truncate_prompt_tokens": 0},
    {"cache_salt": 1},
    {"response_format": {"type": "json_object"}},
    {"guided_json": {}},
    {"prompt_logprobs": 0},
]
WRONG_PROMPTS: list[Any] = [
    None,
    "",
    [],
    [""],
    [[]],
    [1, "x"],
    [[1], "x"],
    ["x", 1],
    {"a": 1},
    3,
    True,
    [True],
    [1.5],
    [-1],
    [2**70],
    [[1], [-1]],
]
WRONG_CHATS: list[dict[str, Any]] = [
    {"messages": None},
    {"messages": []},
    {"messages": "hello"},
    {"messages": [1]},
    {"messages": [[]]},
    {"messages": [{}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": 3}]},
    {"messages": [{"role": "user", "content": {"text": "x"}}]},
    {"messages": [{"role": "robot", "content": "x"}]},
    {"messages": [{"role": ["user"], "content": "x"}]},
    {"messages": [{"role": {"a": 1}, "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
    {"messages": [{"role": "user", "content": [[]]}]},
    {"messages": [{"role": "assistant", "content": "x", "tool_calls": 7}, {"role": "user", "content": "x"}]},
    {"messages": [{"role": "user", "content": "x" * 10_000_000}]},
    {"messages": [{"role": "user", "content": "x"}] * 100_000},
    {"tools": [{"type": "function"}]},
    {"tool_choice": "auto"},
    {"functions": [{}]},
    {"response_format": {"type": "json_schema"}},
    {"response_format": "text"},
    {"modalities": ["text", "audio"]},
    {"audio": {"voice": "x"}},
    {"prediction": {"type": "content"}},
    {"reasoning_effort": "high"},
    {"logprobs": 3},
    {"top_logprobs": 3},
    {"logprobs": True, "top_logprobs": 21},
    {"logprobs": True, "top_logprobs": -1},
    {"max_tokens": 0},
    {"max_completion_tokens": 0},
    {"chat_template": "{{ 1 }}"},
    {"chat_template_kwargs": {"messages": []}},
    {"chat_template_kwargs": 3},
    {"echo": True},
]


def check_refused(response: Any) -> None:
    assert 400 <= response.status_code < 500, f"{response.status_code}: {response.text[:300]}"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Mend: " in error["message"]
    assert len(error["message"]) < 1000
    assert error["type"].endswith("_error")


def check_alive(running: Running) -> None:
    answer = running.http.post(COMPLETIONS, json=GOOD).json()
    assert answer["choices"][0]["text"] == "ok"


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_body_is_refused(shared: Running, name: str) -> None:
    for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
        if (
            name
            in ("ten megabytes", "a million stops", "a million wrong stops", "many biases", "huge integer", "nan", "infinity")
            and path == "/tokenize"
        ):
            continue  # a fine prompt there, beside fields that it does not know
        if name in ("overflowing float", "very long integer") and path == "/tokenize":
            continue
        check_refused(shared.http.post(path, content=MALFORMED[name]))
    check_alive(shared)


@pytest.mark.parametrize("fields", WRONG_FIELDS, ids=lambda fields: json.dumps(fields)[:40])
def test_a_wrong_field_is_refused_by_both_routes_by_its_name(shared: Running, fields: dict[str, Any]) -> None:
    for path, good in ((COMPLETIONS, GOOD), (CHAT, GOOD_CHAT)):
        response = shared.http.post(path, json={**good, **fields})
        check_refused(response)
        assert response.json()["error"]["param"] in (*fields, "prompt")


@pytest.mark.parametrize("prompt", WRONG_PROMPTS, ids=repr)
def test_a_wrong_prompt_is_refused(shared: Running, prompt: Any) -> None:
    check_refused(shared.http.post(COMPLETIONS, json={**GOOD, "prompt": prompt}))


@pytest.mark.parametrize("fields", WRONG_CHATS, ids=lambda fields: json.dumps(fields)[:40])
def test_a_wrong_chat_is_refused(shared: Running, fields: dict[str, Any]) -> None:
    check_refused(shared.http.post(CHAT, json={**GOOD_CHAT, **fields}))
    check_alive(shared)


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": "x"},
        {"best_of": 2},
        {"echo": True, "logprobs": 1},
        {"logprobs": 21},
        {"logprobs": True},
        {"use_beam_search": True},
    ],
    ids=repr,
)
def test_what_completions_cannot_do_is_refused(shared: Running, fields: dict[str, Any]) -> None:
    check_refused(shared.http.post(COMPLETIONS, json={**GOOD, **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "parallel_tool_calls": True},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]},
        {"tools": None, "functions": None, "logit_bias": None, "stop": None, "seed": None, "n": None, "temperature": None},
        {"temperature": 0, "top_p": 1, "presence_penalty": 0, "logit_bias": {}},
        {"max_tokens": 10**9},
        {"messages": [{"role": "user", "content": "a\u0000b {ok}", "name": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "{o"}, {"type": "text", "text": "k}"}]}]},
        {"messages": [{"role": "assistant", "content": None}, {"role": "developer", "content": "{ok}"}]},
    ],
    ids=repr,
)
def test_what_is_legal_is_answered(shared: Running, fields: dict[str, Any]) -> None:
    response = shared.http.post(CHAT, json={**GOOD_CHAT, **fields})
    assert response.status_code == 200, response.text
    assert "x-gristmill-ignored" not in response.headers


def test_a_body_over_the_limit_is_refused_before_and_while_it_comes(start: Start) -> None:
    running = start(body_limit_bytes=10_000)
    declared = running.http.post(COMPLETIONS, content=b"x" * 10_001)
    assert (declared.status_code, declared.json()["error"]["code"]) == (413, "body_too_large")
    chunked = running.http.post(COMPLETIONS, content=(b"x" * 1000 for _ in range(20)))
    assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "body_too_large")
    check_alive(running)


def junk(source: random.Random, depth: int = 0) -> Any:
    """Any JSON value, with a taste for the ends of what is possible."""
    simple = [None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 1e308, 0.5, "", "x", "\u0000", "{ok}", "𝕏" * 50, "x" * 5000]
    kind = source.randrange(6 if depth < 3 else 4)
    if kind < 4:
        return source.choice(simple)
    if kind == 4:
        return [junk(source, depth + 1) for _ in range(source.randrange(4))]
    return {
        source.choice(["type", "role", "content", "text", "x", ""]): junk(source, depth + 1) for _ in range(source.randrange(4))
    }


def mutated(source: random.Random, good: dict[str, Any]) -> bytes:
    names = [*good, "temperature", "top_p", "top_k", "n", "stop", "logit_bias", "stream", "stream_options", "max_tokens", "seed"]
    names += ["logprobs", "top_logprobs", "tools", "messages", "prompt", "echo", "stop_token_ids", "min_tokens", "cache_salt"]
    names += ["truncate_prompt_tokens", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "unheard_of"]
    body = {**good, **{source.choice(names): junk(source) for _ in range(source.randrange(1, 4))}}
    data = bytearray(json.dumps(body, ensure_ascii=source.random() < 0.5).encode())
    if source.random() < 0.3:
        for _ in range(source.randrange(1, 6)):
            data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data[: source.randrange(len(data))]) if source.random() < 0.1 else bytes(data)


def test_mutated_bodies_never_make_a_5xx(shared: Running) -> None:
    source = random.Random(20)
    statuses: dict[int, int] = {}
    for number in range(600):
        path, good = source.choice(
            [(COMPLETIONS, GOOD), (CHAT, GOOD_CHAT), ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})]
        )
        body = mutated(source, good)
        response = shared.http.post(path, content=body)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        assert response.status_code < 500, f"{number}: {body[:500]!r}: {response.text[:300]}"
        if response.status_code != 200:
            check_refused(response)
    assert statuses[200] > 20
    assert statuses[400] > 100
    check_alive(shared)
