"""The real `gristmill serve` on the real default model, through the real client, from start to SIGTERM."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.server.serve_process import ServeProcess

ENDLESS = {"ignore_eos": True}
MESSAGES = [{"role": "user", "content": "Name a colour."}]


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(str(smollm2_path), "--max-model-len", "1024", "--max-num-seqs", "8") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def _get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


def _metric(server: ServeProcess, name: str) -> float:
    lines = _get(f"{server.url}/metrics").splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name) and not line.startswith("#"))


def _is_ready(server: ServeProcess) -> bool:
    try:
        return bool(_get(f"{server.url}/ready"))
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return False


def _gone(server: ServeProcess) -> bool:
    return _metric(server, "gristmill_requests_running") == 0 and _metric(server, "gristmill_requests_waiting") == 0


def test_it_prints_what_it_resolved_and_how_to_call_it(server: ServeProcess) -> None:
    text = "\n".join(server.lines)
    for part in (
        "weights +",
        "end tokens <|im_end|>",
        "defaults",
        "curl http://127.0.0.1:",
        "from openai import OpenAI",
        "context 1,024",
    ):
        assert part in text


def test_with_keys_what_it_prints_has_the_place_for_one(smollm2_path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with ServeProcess(str(smollm2_path), "--api-key-file", str(keys), "--max-model-len", "128") as server:
        text = "\n".join(server.lines)
    assert "-H 'Authorization: Bearer KEY'" in text
    assert 'api_key="KEY"' in text
    assert "secret" not in text


def test_for_a_model_without_a_template_it_prints_how_to_complete(gemma3_path: Path) -> None:
    with ServeProcess(str(gemma3_path), "--max-model-len", "128", "--max-num-seqs", "4") as server:
        text = "\n".join(server.lines)
        printed = re.search(r"curl (\S+) .*\\\n.*'(\{.*\})'", text)
        assert printed is not None
        url, body = printed.groups()
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), {"content-type": "application/json"})) as reply:
            answer = json.load(reply)
    assert answer["choices"][0]["text"]
    assert "client.completions.create" in text


def test_probes_and_models_answer(server: ServeProcess, client: openai.OpenAI) -> None:
    assert _get(f"{server.url}/health")
    assert _get(f"{server.url}/ready")
    assert [model.id for model in client.models.list()] == ["m"]
    assert "default_sampling" in _get(f"{server.url}/v1/models/m")


def test_a_stream_equals_the_whole_answer_and_its_seed_replays_it(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, max_tokens=24)
    seed = int(raw.headers["x-gristmill-seed"])
    whole = raw.parse()
    chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=24, seed=seed, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[0].system_fingerprint == whole.system_fingerprint


def test_choices_of_one_seed_differ_and_repeat(client: openai.OpenAI) -> None:
    first, again = (client.completions.create(model="m", prompt="I like", n=4, seed=1, max_tokens=10) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 4
    assert [choice.text for choice in again.choices] == texts


async def test_the_async_client_streams_the_bytes_of_the_sync_one(server: ServeProcess, client: openai.OpenAI) -> None:
    def fields(number: int) -> dict[str, Any]:
        return {"model": "m", "prompt": f"Chapter {number}:", "max_tokens": 16, "seed": number}

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:

        async def text(number: int) -> str:
            stream = await made.completions.create(**fields(number), stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        texts = await asyncio.gather(*map(text, range(6)))
    assert texts == [client.completions.create(**fields(number)).choices[0].text for number in range(6)]


def test_chat_logprobs_have_the_bytes_of_the_answer(client: openai.OpenAI) -> None:
    fields = {"model": "m", "messages": MESSAGES, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(**fields).choices[0]  # type: ignore[call-overload]
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    assert all(token.logprob == token.top_logprobs[0].logprob for token in tokens)


def test_tokenize_counts_what_a_completion_counts(server: ServeProcess, client: openai.OpenAI) -> None:
    body = json.dumps({"prompt": "Hello, world"}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/tokenize", body)) as answer:
        counted = json.load(answer)
    usage = client.completions.create(model="m", prompt="Hello, world", max_tokens=1).usage
    assert usage is not None
    assert (counted["count"], counted["max_model_len"]) == (usage.prompt_tokens, 1024)
    assert len(counted["tokens"]) == usage.prompt_tokens


def test_metrics_count_what_was_generated(server: ServeProcess, client: openai.OpenAI) -> None:
    before = _metric(server, "gristmill_generated_tokens_total")
    client.completions.create(model="m", prompt=[11] * 10, max_tokens=7, extra_body=ENDLESS)
    assert _metric(server, "gristmill_generated_tokens_total") == before + 7


def test_logprobs_come_with_tokens_and_offsets(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="m", prompt="One two", max_tokens=4, temperature=0, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == answer.choices[0].text
    assert len(logprobs.token_logprobs or []) == 4


def test_wrong_names_and_long_prompts_are_told_with_the_facts(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="m"):
        client.completions.create(model="gpt-9", prompt="x")
    with pytest.raises(openai.BadRequestError, match=r"1,?500") as caught:
        client.completions.create(model="m", prompt=[5] * 1500)
    assert caught.value.code == "context_length_exceeded"
    assert "1,02" in caught.value.message


def test_a_client_that_leaves_is_cancelled_and_others_keep_their_bytes(server: ServeProcess, client: openai.OpenAI) -> None:
    def ask() -> str:
        return client.completions.create(model="m", prompt="The sea", max_tokens=60, temperature=0).choices[0].text

    alone = ask()
    with ThreadPoolExecutor(1) as other:
        stream = client.completions.create(
            model="m", prompt="A long story", max_tokens=900, temperature=0, stream=True, extra_body=ENDLESS
        )
        next(iter(stream))
        beside = other.submit(ask)
        stream.close()
        assert beside.result() == alone
    while not _gone(server):  # each look at /metrics is a request: the loop waits on the server, not on a clock
        pass
    assert _metric(server, "gristmill_kv_blocks_used") == 0


def test_a_busy_port_is_refused_with_the_mend(server: ServeProcess, smollm2_path: Path) -> None:
    port = server.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "gristmill", "serve", str(smollm2_path), "--port", port]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert port in result.stderr
    assert "Mend:" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_open_address_without_keys_is_refused(smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "gristmill", "serve", str(smollm2_path), "--host", "0.0.0.0", "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "--api-key-file" in result.stderr
    assert "Traceback" not in result.stderr


def test_sigterm_finishes_what_runs_refuses_what_is_new_and_exits_with_0(smollm2_path: Path) -> None:
    with ServeProcess(str(smollm2_path), "--max-model-len", "512") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(model="m", prompt="Tell", max_tokens=300, stream=True, extra_body=ENDLESS)
        chunks = iter(stream)
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        rest = list(chunks)
        assert rest[-1].choices[0].finish_reason == "length"
        client.close()
        server.process.communicate()
        assert server.process.returncode == 0
    host, port = server.url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port))):
        pass


def test_a_second_signal_ends_a_server_that_still_drains(smollm2_path: Path) -> None:
    with ServeProcess(str(smollm2_path), "--max-model-len", "4096", "--drain-timeout-s", "3600") as server:
        body = json.dumps({"prompt": "Tell", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/completions", body)) as stream:
            assert stream.readline().startswith(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            while _is_ready(server):
                pass
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(http.client.IncompleteRead):
                stream.read()
        server.process.communicate()
        assert server.process.returncode == 0


def test_a_killed_server_can_be_started_again_and_gives_the_same_bytes(smollm2_path: Path) -> None:
    texts = []
    for _ in range(2):
        with ServeProcess(str(smollm2_path), "--max-model-len", "256") as server:
            body = json.dumps({"model": "m", "prompt": "Rain", "max_tokens": 16, "seed": 5}).encode()
            request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                texts.append(json.load(answer)["choices"][0]["text"])
            server.process.kill()
    assert texts[0] == texts[1]
