"""The real `openai` client against a real server: whole and streamed answers, errors, cancelling."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.server.conftest import Running, Start

MESSAGES: list[Any] = [{"role": "user", "content": "{Dobrý den, 世界 👩‍👩‍👧}"}]
ANSWER = "Dobrý den, 世界 👩‍👩‍👧"


def test_a_chat_is_answered_with_usage_and_a_fingerprint(shared: Running) -> None:
    answer = shared.client().chat.completions.create(model="copy", messages=MESSAGES)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint == "gm-test"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ANSWER.encode()) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_a_streamed_chat_has_a_role_then_content_then_one_reason(shared: Running) -> None:
    chunks = list(shared.client().chat.completions.create(model="copy", messages=MESSAGES, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk.system_fingerprint for chunk in chunks} == {"gm-test"}
    assert all(chunk.usage is None for chunk in chunks)


def test_a_streamed_usage_is_one_last_chunk_without_choices(shared: Running) -> None:
    options: Any = {"include_usage": True}
    chunks = list(shared.client().chat.completions.create(model="copy", messages=MESSAGES, stream=True, stream_options=options))
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ANSWER.encode()) + 1
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])


def test_completions_take_text_texts_ids_and_lists_of_ids(shared: Running) -> None:
    create = shared.client().completions.create
    for prompt, wanted in (
        ("{ab}", ["ab"]),
        (["{ab}", "{c}"], ["ab", "c"]),
        ([*b"{ab}"], ["ab"]),
        ([[*b"{ab}"], [*b"{c}"]], ["ab", "c"]),
    ):
        answer = create(model="copy", prompt=prompt)  # type: ignore[arg-type]
        assert [choice.text for choice in answer.choices] == wanted
        assert [choice.index for choice in answer.choices] == list(range(len(wanted)))
        streamed = [""] * len(wanted)
        for chunk in create(model="copy", prompt=prompt, stream=True):  # type: ignore[arg-type]
            streamed[chunk.choices[0].index] += chunk.choices[0].text
        assert streamed == wanted


def test_a_completion_has_sixteen_tokens_and_a_chat_goes_on_until_the_context_ends(shared: Running) -> None:
    completion = shared.client().completions.create(model="copy", prompt="endless")
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16
    assert completion.choices[0].finish_reason == "length"
    chat = shared.client().chat.completions.create(model="copy", messages=[{"role": "user", "content": "endless"}])
    assert chat.usage is not None
    assert chat.usage.total_tokens == 512
    assert chat.choices[0].finish_reason == "length"


def test_echo_puts_the_prompt_before_the_answer(shared: Running) -> None:
    create = shared.client().completions.create
    for prompt in ("{ab}", [*b"{ab}"]):
        assert create(model="copy", prompt=prompt, echo=True, max_tokens=2).choices[0].text == "{ab}ab"  # type: ignore[arg-type]
        chunks = create(model="copy", prompt=prompt, echo=True, max_tokens=2, stream=True)  # type: ignore[arg-type]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "{ab}ab"
    assert create(model="copy", prompt="{ab}", echo=True, max_tokens=0).choices[0].text == "{ab}"


def test_chat_logprobs_have_bytes_and_the_most_likely(shared: Running) -> None:
    create = shared.client().chat.completions.create
    messages: list[Any] = [{"role": "user", "content": "{é}"}]
    whole = create(model="copy", messages=messages, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert [entry.token for entry in whole.content] == ["bytes:\\xc3", "bytes:\\xa9", "<|im_end|>"]
    assert [entry.bytes for entry in whole.content][:2] == [[0xC3], [0xA9]]
    assert [len(entry.top_logprobs) for entry in whole.content] == [2, 2, 2]
    streamed = []
    for chunk in create(model="copy", messages=messages, logprobs=True, top_logprobs=2, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert streamed == whole.content


def test_completion_logprobs_have_offsets(shared: Running) -> None:
    logprobs = shared.client().completions.create(model="copy", prompt="{abc}", logprobs=2, max_tokens=3).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "c"]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"a": -0.5, "b": -1.5}


def test_n_choices_of_a_seed_come_back(shared: Running) -> None:
    def texts(**fields: Any) -> list[str]:
        answer = shared.client().chat.completions.create(
            model="copy", messages=[{"role": "user", "content": "x"}], n=4, temperature=1.0, max_tokens=8, **fields
        )
        return [choice.message.content or "" for choice in answer.choices]

    first = texts(seed=7)
    assert len(set(first)) == 4
    assert texts(seed=7) == first
    assert texts(seed=8) != first


def test_a_drawn_seed_is_returned_and_replays_the_answer(shared: Running) -> None:
    create = shared.client().completions.with_raw_response.create
    first = create(model="copy", prompt=["x", "y"], temperature=1.0)
    again = create(model="copy", prompt=["x", "y"], temperature=1.0, seed=int(first.headers["x-gristmill-seed"]))
    assert [choice.text for choice in again.parse().choices] == [choice.text for choice in first.parse().choices]
    assert again.headers["x-gristmill-seed"] == first.headers["x-gristmill-seed"]


def test_a_stop_string_is_reported(shared: Running) -> None:
    choice = shared.client().completions.create(model="copy", prompt="{one two}", stop=[" t"]).choices[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("one", "stop", " t")  # type: ignore[attr-defined]


def test_models_are_listed_and_found(shared: Running) -> None:
    models = shared.client().models
    assert [model.id for model in models.list()] == ["copy"]
    model: Any = models.retrieve("copy")
    assert model.max_model_len == 512
    assert model.default_sampling["temperature"] == 0.0
    with pytest.raises(openai.NotFoundError, match="use one of: copy"):
        models.retrieve("other/model")


def test_errors_arrive_as_the_clients_own_classes(shared: Running) -> None:
    create = shared.client().chat.completions.create
    with pytest.raises(openai.NotFoundError, match="copy"):
        create(model="gpt-9", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="copy", messages=[{"role": "user", "content": "x" * 600}])
    assert caught.value.code == "context_length_exceeded"
    assert "Mend: " in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="copy", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}])
    assert (caught.value.code, caught.value.param) == ("unsupported_field", "tools")
    with pytest.raises(openai.InternalServerError, match="finite"):
        create(model="copy", messages=[{"role": "user", "content": "NaN!"}])


def test_an_error_in_a_stream_raises_in_the_client(shared: Running) -> None:
    stream = shared.client().chat.completions.create(model="copy", messages=[{"role": "user", "content": "NaN!"}], stream=True)
    with pytest.raises(openai.APIError, match="finite"):
        list(stream)


def test_every_base_url_works(shared: Running) -> None:
    for suffix in ("", "/", "/v1", "/v1/"):
        client = shared.client(base_url=shared.url + suffix)
        assert client.completions.create(model="copy", prompt="{ab}").choices[0].text == "ab"
    assert shared.http.get("/v1/models/").status_code == 200


async def test_the_async_client_runs_many_streams_at_once(shared: Running) -> None:
    async with AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0) as client:

        async def one(text: str) -> str:
            stream = await client.chat.completions.create(
                model="copy", messages=[{"role": "user", "content": f"{{{text}}}"}], stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = [f"stream {i} " * (i + 1) for i in range(12)]
        assert await asyncio.gather(*map(one, texts)) == texts


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_is_cancelled_in_every_phase(start: Start, is_stream: bool) -> None:
    running = start({"max_num_seqs": 1})
    deployment = running.deployment
    deployment.executable.hold()
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        tasks = []
        for number in range(2):  # one runs, one is queued
            messages: Any = [{"role": "user", "content": f"{number} " * 30}]
            create = client.chat.completions.create(model="copy", messages=messages, stream=is_stream)
            tasks.append(asyncio.create_task(_consume(create)))
            await asyncio.to_thread(deployment.submitted.acquire)
        for task in reversed(tasks):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(deployment.aborted.acquire)
    deployment.executable.free()
    last = running.client().completions.create(model="copy", prompt="{done}")
    assert last.choices[0].text == "done"
    assert deployment.engine.stats().num_referenced_blocks == 0
    assert deployment.metrics.requests["abort"] == 2


async def _consume(create: Any) -> None:
    answer = await create
    if hasattr(answer, "__aiter__"):
        async for _ in answer:
            pass
