"""Rows of the serving acceptance table on the real engine: what users of other servers suffered, and what ours does."""

from __future__ import annotations

import itertools
import json
import signal
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import openai
import pytest
from tests.acceptance.client import Client, joined
from tests.models.goldens import ROOT, read_tensors
from tests.quant.blocks import random_blocks
from tests.server.serve_process import ServeProcess
from tests.text.conftest import DATA, PRE_TOKENIZERS, Pair
from tests.weights.samples import llama_weights, write_llama

from gristmill import LLM, SamplingParams
from gristmill.core.errors import ModelFileError, PromptTooLong, TemplateError
from gristmill.quant.block_types import SHAPES, BlockType
from gristmill.quant.published import dequantize
from gristmill.text.tokenizer import Tokenizer
from gristmill.weights.gguf import read_gguf

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Say hello."}]
PROMPTS = ["The sea is", "Once upon a time there was", "def fibonacci(n):", "Dear Sir or Madam,"]
BLOCK = 32


def test_a6_a_shortage_of_blocks_aborts_nobody_and_only_what_can_never_fit_is_refused(pressed: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=56, ignore_eos=True)
    outputs = pressed.generate([[100 + i] * 20 for i in range(32)], params, progress=False)
    assert [(o.outputs[0].finish_reason, o.usage.completion_tokens) for o in outputs] == [("length", 56)] * 32
    assert sum(output.usage.preemptions for output in outputs) > 0
    with pytest.raises(PromptTooLong, match=r"(?s)513.*511") as caught:
        pressed.generate([[5] * 513], params, progress=False)
    assert caught.value.http_status == 400


def test_a9_one_request_may_use_the_whole_context_however_many_slots_there_are(pressed: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    usage = pressed.generate([[5] * 490], params, progress=False)[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (490, 512 - 490)


def test_a10_no_prompt_token_is_dropped_unless_asked(client: Client) -> None:
    for length in (1, 31, 32, 33, 700, 1023):
        assert client.complete([7] * length, max_tokens=1)["usage"]["prompt_tokens"] == length
    chat = {"messages": [{"role": "user", "content": "word " * 1500}]}
    for path, body, num_tokens, param in (
        (COMPLETIONS, {"prompt": [7] * 1024}, "1,024", "prompt"),
        (COMPLETIONS, {"prompt": "x " * 100_000}, "200,000", "prompt"),
        (CHAT, chat, "1,5", "messages"),
    ):
        error = client.refused(path, body)
        assert (error["status"], error["code"], error["param"]) == (400, "context_length_exceeded", param)
        assert num_tokens in error["message"]
        assert "1,023" in error["message"]
    cut = client.complete(list(range(100, 2100)), max_tokens=1, truncate_prompt_tokens=50, return_token_ids=True)
    assert cut["choices"][0]["prompt_token_ids"] == list(range(2050, 2100))


@pytest.mark.parametrize("asked", [24, 25, 10**6, None])
def test_a11_max_tokens_beyond_the_room_is_clamped(client: Client, asked: int | None) -> None:
    chunks = client.stream([7] * 1000, max_tokens=asked or 10**9, ignore_eos=True, stream_options={"include_usage": True})
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert client.complete([7] * 1023, max_tokens=asked or 10**9, ignore_eos=True)["usage"]["completion_tokens"] == 1
    error = client.refused(COMPLETIONS, {"prompt": [7] * 1024, "max_tokens": asked})
    assert error["code"] == "context_length_exceeded"


def test_a12_streams_never_split_a_character(client: Client, smollm2_path: Path) -> None:
    line = "🦜👩‍🚀🇨🇿 Příliš žluťoučký kůň ภาษาไทย 漢字かな\n"
    copied = joined(client.stream(line * 6, max_tokens=60))
    assert "\ufffd" not in copied.rstrip("\ufffd")  # at most the last character is cut off by max_tokens
    assert any(ord(character) > 0x2000 for character in copied)
    tokenizer = Tokenizer.from_gguf(read_gguf(smollm2_path).metadata)
    # Only the pieces of these characters, in random order: whole characters, halves and nonsense, cut everywhere.
    bias = {str(token_id): 60 for token_id in tokenizer.encode(line, add_special_tokens=False)}
    for seed in range(6):
        chunks = client.stream("x", seed=seed, temperature=1, logit_bias=bias, max_tokens=60, return_token_ids=True)
        ids = [token_id for chunk in chunks for token_id in chunk["choices"][0].get("token_ids", ())]
        assert joined(chunks) == b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
        assert len(ids) == 60


def test_a13_nothing_of_a_stop_string_is_sent_and_nothing_else_is_lost(client: Client) -> None:
    whole = client.text(PROMPTS[0], max_tokens=40)
    for begin, length in itertools.product(range(0, 60, 11), (1, 2, 5, 13)):
        stop = whole[begin : begin + length]
        chunks = client.stream(PROMPTS[0], max_tokens=40, stop=[stop, "\x00never"])
        assert joined(chunks) == whole[: whole.index(stop)], stop
        last = chunks[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
        almost = whole[begin : begin + length] + "\x00"
        assert joined(client.stream(PROMPTS[0], max_tokens=40, stop=almost)) == whole


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a14_a_finish_reason_comes_once_for_each_choice_and_last(client: Client, path: str) -> None:
    what: dict[str, Any] = {"prompt": PROMPTS[1]} if path == COMPLETIONS else {"messages": HELLO}
    for fields, reason in (({"max_tokens": 5, "ignore_eos": True}, "length"), ({"max_tokens": 60, "stop": ["e"]}, "stop")):
        choices = [chunk["choices"][0] for chunk in client.chunks(path, **what, n=2, seed=3, **fields)]
        for index in range(2):
            reasons = [choice["finish_reason"] for choice in choices if choice["index"] == index]
            assert reasons == [None] * (len(reasons) - 1) + [reason]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a15_usage_is_one_last_chunk_when_asked_and_none_otherwise(client: Client, path: str) -> None:
    what: dict[str, Any] = {"prompt": PROMPTS[1]} if path == COMPLETIONS else {"messages": HELLO}
    asked = client.chunks(path, **what, max_tokens=4, stream_options={"include_usage": True})
    assert (asked[-1]["choices"], asked[-1]["usage"]["completion_tokens"]) == ([], 4)
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in asked[:-1])
    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        chunks = client.chunks(path, **what, max_tokens=4, **options)
        assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_a16_cached_tokens_are_always_told_and_are_whole_blocks(client: Client) -> None:
    for length in (31, 32, 33, 64, 65, 300):
        prompt = [20_000 + length] * length
        cold, warm = (client.complete(prompt, max_tokens=1)["usage"] for _ in range(2))
        streamed = client.stream(prompt, max_tokens=1, stream_options={"include_usage": True})[-1]["usage"]
        whole_blocks = (length - 1) // BLOCK * BLOCK
        found = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (cold, warm, streamed)]
        assert found == [0, whole_blocks, whole_blocks]


def test_a18_a_client_that_leaves_frees_its_blocks_in_every_phase_and_touches_nobody(client: Client) -> None:
    alone = client.text(PROMPTS[2], max_tokens=120, ignore_eos=True)
    aborted = client.metric('gristmill_requests_total{outcome="abort"}')
    first_tokens = client.metric("gristmill_time_to_first_token_seconds_count")
    running = [client.begin([300 + i] * 8, max_tokens=900, stream=i % 2 == 0) for i in range(4)]
    client.look_until(lambda: client.metric("gristmill_time_to_first_token_seconds_count") == first_tokens + 4)
    queued = [client.begin([400 + i] * 8, max_tokens=900, stream=i % 2 == 0) for i in range(2)]
    client.look_until(lambda: client.metric("gristmill_requests_waiting") == 2)
    for connection in queued:
        connection.close()
    client.look_until(lambda: client.metric("gristmill_requests_waiting") == 0)
    for connection in running[:2]:
        connection.close()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(client.text, PROMPTS[2], max_tokens=120, ignore_eos=True, cache_salt="beside")
        for is_stream in (True, False):
            started = client.metric("gristmill_prompt_tokens_total")
            prefilling = client.begin([500 + is_stream] * 900, max_tokens=100, stream=is_stream)
            client.look_until(lambda before=started: client.metric("gristmill_prompt_tokens_total") >= before + 900)
            prefilling.close()
        for connection in running[2:]:
            connection.close()
        assert beside.result() == alone
    client.look_until(lambda: client.metric("gristmill_requests_running") == 0)
    assert client.metric("gristmill_kv_blocks_used") == 0
    assert client.metric('gristmill_requests_total{outcome="abort"}') == aborted + 8


def test_a20_sigterm_lets_streams_finish_and_refuses_what_is_new(smollm2_path: Path) -> None:
    with ServeProcess(str(smollm2_path), "--max-model-len", "512", "--drain-timeout-s", "3600") as server:
        client = Client(server.url)
        with client.http.stream("POST", COMPLETIONS, json=_long_stream(300)) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            client.look_until(lambda: client.http.get("/ready").status_code == 503)
            refused = client.http.post(COMPLETIONS, json={"prompt": "x"})
            assert (refused.status_code, refused.headers["retry-after"].isdigit()) == (503, True)
            events = [line for line in lines if line.startswith("data: ")]
        client.http.close()
        assert (events[-1], '"finish_reason":"length"' in events[-2]) == ("data: [DONE]", True)
        server.process.communicate()
        assert server.process.returncode == 0


def test_a20_what_outlasts_the_drain_ends_with_an_error_event(smollm2_path: Path) -> None:
    with ServeProcess(str(smollm2_path), "--max-model-len", "2048", "--drain-timeout-s", "0") as server:
        client = Client(server.url)
        with client.http.stream("POST", COMPLETIONS, json=_long_stream(2000)) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            last = [line for line in lines if line.startswith("data: ")][-1]
        client.http.close()
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unavailable"
        server.process.communicate()
        assert server.process.returncode == 0


def _long_stream(max_tokens: int) -> dict[str, Any]:
    return {"prompt": "Tell", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}


MALFORMED: list[bytes | dict[str, Any]] = [
    b"",
    b"null",
    b"[1]",
    b'{"prompt": "x"',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "x", "temperature": 1e999}',
    b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}",
    b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}',
    {"prompt": "\x00" * 10_000_000, "messages": [{"role": "user", "content": "\x00" * 10_000_000}]},
    {"prompt": "x" * 10_000_000, "messages": [{"role": "user", "content": "x" * 10_000_000}]},
    {"prompt": [10**6], "messages": [10**6]},
    {"prompt": [2**62], "messages": {"role": "user"}},
    {"prompt": {"a": 1}, "messages": [[[]]]},
    *({"prompt": "x", "messages": HELLO, **fields} for fields in (
        {"n": 0},
        {"n": 10**9},
        {"seed": "1"},
        {"stop": ["x"] * 17},
        {"logit_bias": {"1": 1e9}},
        {"logit_bias": {"99999999": 1}},
        {"top_p": 0},
        {"stream": "yes"},
        {"stream_options": {"include_usage": True}},
        {"model": 3},
        {"stop_token_ids": [-1]},
        {"min_tokens": 5, "max_tokens": 4},
    )),
]  # fmt: skip


def test_a21_malformed_requests_are_refused_and_touch_nobody(client: Client) -> None:
    alone = client.text(PROMPTS[3], max_tokens=200, ignore_eos=True)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(client.text, PROMPTS[3], max_tokens=200, ignore_eos=True)
        for body, path in itertools.product(MALFORMED, (COMPLETIONS, CHAT)):
            assert client.refused(path, body)["message"]
        assert beside.result() == alone
    assert client.http.get("/health").status_code == 200


def test_a22_a_missing_or_failing_template_is_a_400_that_says_what_to_do(base_model: Path, tmp_path: Path) -> None:
    with LLM(str(base_model)) as llm:
        with pytest.raises(TemplateError, match=r"--chat-template") as caught:
            llm.chat(HELLO)
        assert caught.value.http_status == 400
        assert llm.generate("x", progress=False)[0].usage.completion_tokens > 0
    file = tmp_path / "template.jinja"
    file.write_text(
        "{% set text = messages[0].content %}\n{% if text == 'raise' %}\n{{ raise_exception('not so') }}\n"
        "{% elif text == 'escape' %}\n{{ ''.__class__.__mro__[1].__subclasses__() }}\n"
        "{% elif text == 'grow' %}\n{{ 'x' * 10 ** 12 }}\n{% endif %}{{ text }}"
    )
    with LLM(str(base_model), chat_template=file) as llm:
        for text, fact in (("raise", "line 3: not so"), ("escape", "line 5"), ("grow", "line 7")):
            with pytest.raises(TemplateError, match=fact) as caught:
                llm.chat([{"role": "user", "content": text}])
            assert caught.value.http_status == 400
        assert llm.chat(HELLO, SamplingParams(max_tokens=2))[0].usage.completion_tokens > 0


def test_a23_ids_from_gguf_are_those_of_the_original_tokenizer(client: Client, smollm2_path: Path) -> None:
    corpus = (DATA / "corpus.txt").read_text(encoding="utf-8")
    for name, pre in PRE_TOKENIZERS.items():
        pair = Pair((DATA / "tokenizers" / f"{name}.json").read_text(encoding="utf-8"), pre)
        for line in corpus.split("\n"):
            assert pair.ours.encode(line, add_special_tokens=False) == pair.original.encode(line, add_special_tokens=False).ids
    ids = client.tokenize(corpus)
    assert ids == Tokenizer.from_gguf(read_gguf(smollm2_path).metadata).encode(corpus, add_special_tokens=True)
    assert client.http.post("/detokenize", json={"tokens": ids}).json()["prompt"] == corpus


def test_a24_block_types_are_read_bit_equal_and_logits_are_near_a_float_reference(pressed: LLM, smollm2_path: Path) -> None:
    for kind in (kind for kind in BlockType if SHAPES[kind].format.is_quantized):
        raw = random_blocks(kind, 4, 512)
        expected = gguf.quants.dequantize(raw.reshape(4, -1), gguf.GGMLQuantizationType(int(kind)))
        assert np.array_equal(dequantize(kind, raw, 4, 512).view(np.uint32), expected.view(np.uint32)), kind
    golden = {key: values for key, (_, values) in read_tensors(ROOT / "smollm2-135m" / "story.safetensors")[0].items()}
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=10)
    choice = pressed.generate(golden["prompt_ids"].tolist(), params, progress=False)[0].outputs[0]
    assert choice.logprobs is not None
    reference = dict(zip(golden["top_ids"].tolist(), golden["top_logits"].tolist(), strict=True))
    shared = [(logprob, reference[token_id]) for token_id, logprob in choice.logprobs[0].top if token_id in reference]
    offsets = [logit - logprob for logprob, logit in shared]  # one number, but for the activations' rounding to 8 bits
    assert len(shared) >= 8
    assert choice.token_ids[0] == golden["greedy_ids"][0]
    assert max(offsets) - min(offsets) < 0.02 * golden["max_abs_logit"][0]


def test_a25_greedy_output_depends_on_nothing_but_the_prompt(client: Client, pressed: LLM) -> None:
    prompts = [client.tokenize(prompt) * 12 for prompt in PROMPTS]
    fields = {"max_tokens": 48, "ignore_eos": True}
    alone = [client.text(prompt, **fields, cache_salt="alone") for prompt in prompts]
    warm = [client.complete(prompt, **fields, cache_salt="alone") for prompt in prompts]
    assert all(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for answer in warm)
    assert [answer["choices"][0]["text"] for answer in warm] == alone
    batch = prompts + [[1000 + i] * (1 + i) for i in range(28)]
    outputs = pressed.generate(batch, SamplingParams(temperature=0.0, **fields), progress=False)
    assert sum(output.usage.preemptions for output in outputs) > 0
    assert [output.outputs[0].text for output in outputs[:4]] == alone


def test_a26_four_choices_differ_and_come_back_whatever_runs_beside(client: Client, pressed: LLM) -> None:
    fields = {"n": 4, "temperature": 1.0, "max_tokens": 24, "seed": 11}
    first = [choice["text"] for choice in client.complete(PROMPTS[1], **fields)["choices"]]
    assert len(set(first)) == 4
    with ThreadPoolExecutor(4) as pool:
        beside = [pool.submit(client.text, prompt, max_tokens=60, ignore_eos=True) for prompt in PROMPTS]
        again = [choice["text"] for choice in client.complete(PROMPTS[1], **fields)["choices"]]
        assert all(future.result() for future in beside)
    assert again == first
    assert [choice.text for choice in pressed.generate(PROMPTS[1], SamplingParams(**fields), progress=False)[0].outputs] == first
    other = client.http.post(COMPLETIONS, json={"prompt": PROMPTS[1], "max_tokens": 24})
    replayed = client.text(PROMPTS[1], max_tokens=24, temperature=1, seed=int(other.headers["x-gristmill-seed"]))
    assert replayed == other.json()["choices"][0]["text"]


def test_a27_the_models_own_defaults_are_shown_and_a_request_value_wins(base_model: Path) -> None:
    with ServeProcess(str(base_model)) as server:
        client = Client(server.url)
        assert any(line.startswith("defaults") and "temperature=0.5" in line and "top_k=1" in line for line in server.lines)
        shown = client.http.get("/v1/models").json()["data"][0]["default_sampling"]
        assert (shown["temperature"], shown["top_k"], shown["top_p"]) == (0.5, 1, 1.0)
        fields = {"prompt": "abc", "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
        ids = [
            tuple(client.http.post(COMPLETIONS, json={**fields, **more}).json()["choices"][0]["token_ids"])
            for more in ({}, {"seed": 1}, {"temperature": 0}, {"top_k": 0, "temperature": 5, "seed": 1})
        ]
        client.http.close()
        assert ids[0] == ids[1] == ids[2] != ids[3]
        assert server.stop() == 0


def test_a32_temperature_0_is_greedy(client: Client) -> None:
    answers = [client.complete(PROMPTS[0], max_tokens=12, temperature=zero, seed=seed, logprobs=1) for zero, seed in
               ((0, 1), (0.0, 2), (0, None))]  # fmt: skip
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    logprobs = answers[0]["choices"][0]["logprobs"]
    assert all(
        chosen == max(top.values()) for chosen, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    )


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_a33_every_form_of_the_base_url_works(client: Client, end: str) -> None:
    with openai.OpenAI(base_url=client.url + end, api_key="none", max_retries=0) as official:
        assert [model.id for model in official.models.list()] == ["m"]
        answer = official.chat.completions.create(model="m", messages=HELLO, max_tokens=2)  # type: ignore[arg-type]
        assert answer.choices[0].finish_reason == "length"
    for path in ("/completions", "/completions/", "/v1/completions/"):
        assert client.http.post(path, json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_a34_broken_model_files_are_refused_by_what_is_wrong(smollm2_path: Path, tmp_path: Path) -> None:
    with smollm2_path.open("rb") as file:
        head = file.read(8 << 20)
    size = smollm2_path.stat().st_size
    name = b"blk.7.ffn_down.weight"
    at = head.index(name) + len(name)
    huge = struct.pack("<Q", 2**63)
    cases = {
        "truncated": (head, len(head), "weight"),
        "bad magic": (b"GGUX" + head[4:], size, "GGUF"),
        "absurd count of tensors": (head[:8] + huge + head[16:], size, "9,223,372,036,854,775,808|9223372036854775808"),
        "absurd count of keys": (head[:16] + huge + head[24:], size, "9,223,372,036,854,775,808|9223372036854775808"),
        "overflowing offset": (head[: at + 24] + huge + head[at + 32 :], size, name.decode()),
        "wrong shape": (head[: at + 4] + struct.pack("<Q", 2**40) + head[at + 12 :], size, name.decode()),
    }
    for case, (data, length, fact) in cases.items():
        path = tmp_path / f"{case}.gguf"
        path.write_bytes(data)
        with path.open("r+b") as file:
            file.truncate(length)
        _refused(path, fact)
    weights = llama_weights()
    missing, wrong = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
    without = {key: value for key, value in weights.items() if key != missing}
    _refused(write_llama(tmp_path / "missing.gguf", without), r"blk\.0\.ffn_up\.weight|up_proj")
    changed = {**weights, wrong: np.ones(63, np.float32)}
    _refused(write_llama(tmp_path / "shape.gguf", changed), r"output_norm\.weight|model\.norm\.weight")
    command = [sys.executable, "-m", "gristmill", "serve", str(tmp_path / "overflowing offset.gguf"), "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, "Traceback" in result.stderr, name.decode() in result.stderr) == (1, False, True)


def _refused(path: Path, fact: str) -> None:
    with pytest.raises(ModelFileError, match=fact) as caught:
        LLM(str(path))
    assert caught.value.mend
