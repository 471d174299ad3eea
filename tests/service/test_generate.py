"""The service over the real engine: texts, limits, seeds, choices, stop strings, errors and cancelling."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.service.scripted import IM_END, ScriptedDeployment, scripted_deployment

from gristmill.core.errors import (
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    QueueFull,
    RequestFailed,
    ServerUnavailable,
    TemplateError,
)
from gristmill.core.sampling_params import SamplingParams
from gristmill.service import generate
from gristmill.service.calls import GenerateCall
from gristmill.service.generate import Service
from gristmill.service.generation import Generation
from gristmill.service.stream import Delta


@pytest.fixture
def deployment() -> Iterator[ScriptedDeployment]:
    with scripted_deployment() as made:
        yield made


@pytest.fixture
async def service(deployment: ScriptedDeployment) -> AsyncIterator[Service]:
    made = make_service(deployment)
    yield made
    made.close()


def make_service(deployment: ScriptedDeployment) -> Service:
    return Service({deployment.name: deployment})  # type: ignore[dict-item]


def call(prompt: Any = "{hello}", **params: Any) -> GenerateCall:
    fields = {name: params.pop(name) for name in ("model", "messages", "add_special_tokens", "tenant") if name in params}
    given = {"temperature": 0.0, "max_tokens": 100, **params}
    return GenerateCall(SamplingParams(**given), "r", None if "messages" in fields else prompt, **fields)


async def read(generation: Generation) -> list[Delta]:
    return [delta async for delta in generation]


async def answer(service: Service, *args: Any, **params: Any) -> tuple[str, Delta]:
    deltas = await read(await service.prepare(call(*args, **params)))
    return "".join(delta.text for delta in deltas), deltas[-1]


async def test_the_answer_ends_with_an_end_token_that_is_counted_and_not_shown(service: Service) -> None:
    generation = await service.prepare(call("{hello}"))
    deltas = await read(generation)
    assert "".join(delta.text for delta in deltas) == "hello"
    assert [i for delta in deltas for i in delta.token_ids] == [*b"hello", IM_END]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    usage = generation.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 6, 0)


@pytest.mark.parametrize("text", ["příliš žluťoučký kůň", "ภาษาไทย", "漢字かな交じり", "👩‍👩‍👧‍👦🏽 ok"])
async def test_no_character_is_split_though_every_byte_is_a_token(service: Service, text: str) -> None:
    deltas = await read(await service.prepare(call(f"{{{text}}}", max_tokens=200)))
    assert "".join(delta.text for delta in deltas) == text
    assert not any("\ufffd" in delta.text for delta in deltas)


async def test_a_character_that_never_became_whole_is_flushed_at_the_end(service: Service) -> None:
    text, last = await answer(service, "{x€}", max_tokens=2)
    assert text == "x\ufffd"
    assert last.finish_reason == "length"


async def test_a_stop_string_is_never_shown_and_its_last_token_is_the_last(
    service: Service, deployment: ScriptedDeployment
) -> None:
    generation = await service.prepare(call("{one two three}", stop=(" tw", "zz")))
    deltas = await read(generation)
    assert "".join(delta.text for delta in deltas) == "one"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", " tw")
    assert generation.usage.completion_tokens == len("one tw")
    assert bytes(i for delta in deltas for i in delta.token_ids) == b"one tw"


async def test_a_stop_string_ends_the_engines_request_too(service: Service, deployment: ScriptedDeployment) -> None:
    await answer(service, "endless", stop="z", max_tokens=400)
    await settle(service)
    assert deployment.executable.num_steps < 100
    assert deployment.metrics.requests["stop"] == 2, "a stop string counts as a stop"
    assert deployment.metrics.requests["abort"] == 0


async def test_a_prefix_of_a_stop_string_is_held_back_and_then_given(service: Service) -> None:
    text, last = await answer(service, "{ab abc}", stop="abcd")
    assert (text, last.finish_reason, last.stop_reason) == ("ab abc", "stop", None)


async def test_include_stop_str_shows_it(service: Service) -> None:
    text, _ = await answer(service, "{one two}", stop=" t", include_stop_str_in_output=True)
    assert text == "one t"


async def test_below_min_tokens_a_stop_string_does_not_stop(service: Service) -> None:
    text, last = await answer(service, "{xaxaxa}", stop="a", min_tokens=3)
    assert (text, last.stop_reason) == ("xax", "a")


async def test_a_stop_token_is_reported_and_hidden(service: Service) -> None:
    text, last = await answer(service, "{hello}", stop_token_ids=(ord("l"),))
    assert (text, last.finish_reason, last.stop_reason, last.token_ids) == ("he", "stop", ord("l"), (ord("l"),))
    text, _ = await answer(service, "{hello}", stop_token_ids=(ord("l"),), include_stop_str_in_output=True)
    assert text == "hel"


async def test_max_tokens_is_clamped_to_the_room_and_none_means_all_of_it(service: Service) -> None:
    for max_tokens in (10_000, None):
        generation = await service.prepare(call([1] * 500, max_tokens=max_tokens))
        deltas = await read(generation)
        assert generation.usage.completion_tokens == 12
        assert deltas[-1].finish_reason == "length"


async def test_no_token_wanted_is_an_empty_answer(service: Service) -> None:
    text, last = await answer(service, "{hello}", max_tokens=0)
    assert (text, last.finish_reason, last.token_ids) == ("", "length", ())


async def test_a_prompt_over_the_limit_is_refused_with_both_numbers(service: Service) -> None:
    with pytest.raises(PromptTooLong, match=r"512 tokens.*accepts 511"):
        await service.prepare(call([1] * 512))


async def test_a_text_that_can_never_fit_is_not_tokenized(
    service: Service, deployment: ScriptedDeployment, monkeypatch: Any
) -> None:
    monkeypatch.setattr(deployment, "tokenizer", NoEncoding(deployment.tokenizer.longest_token_chars))
    with pytest.raises(PromptTooLong, match="characters, at least"):
        await service.prepare(call("x" * (512 * deployment.tokenizer.longest_token_chars + 1)))


class NoEncoding:
    vocab_size = 258

    def __init__(self, longest_token_chars: int) -> None:
        self.longest_token_chars = longest_token_chars

    def encode(self, *_: object, **__: object) -> list[int]:
        raise AssertionError("the text was tokenized")


async def test_a_long_text_is_encoded_off_the_loop(service: Service, deployment: ScriptedDeployment, monkeypatch: Any) -> None:
    threads = []
    encode = deployment.tokenizer.encode
    monkeypatch.setattr(
        type(deployment.tokenizer), "encode", lambda self, *a, **k: threads.append(threading.current_thread()) or encode(*a, **k)
    )
    for text in ("{" + "x" * generate.WORKER_CHARS + "}", "{x}"):
        (await service.prepare(call(text, truncate_prompt_tokens=10))).cancel()
    assert threads[0] is not threading.main_thread()
    assert threads[1] is threading.main_thread()


async def test_too_many_long_texts_at_once_are_refused_where_there_is_a_limit(deployment: ScriptedDeployment) -> None:
    service = Service({"copy": deployment}, max_preparing=0)  # type: ignore[dict-item]
    with pytest.raises(QueueFull, match="being prepared"):
        await service.prepare(call("x" * 5000))
    assert (await answer(service, "{short}"))[0] == "short"


async def test_truncation_keeps_the_last_tokens_and_only_when_asked(service: Service) -> None:
    generation = await service.prepare(call("0123456789", truncate_prompt_tokens=4))
    assert generation.prompt_token_ids == [*b"6789"]
    generation.cancel()
    generation = await service.prepare(call("x" * 600, truncate_prompt_tokens=-1, max_tokens=12))
    assert len(generation.prompt_token_ids) == 500
    generation.cancel()


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 258]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "\ud800"}, None),
        ({"logit_bias": {10_000: 1.0}}, "logit_bias"),
        ({"stop_token_ids": (258,)}, "stop_token_ids"),
        ({"min_tokens": 200}, "min_tokens"),
        ({"truncate_prompt_tokens": 0}, "prompt"),
    ],
)
async def test_what_cannot_be_run_is_refused_by_name(service: Service, changes: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await service.prepare(call(**changes))
    assert caught.value.param == param
    assert caught.value.mend


async def test_an_unknown_model_is_refused_with_the_names_served(service: Service) -> None:
    with pytest.raises(ModelNotFound, match=r"'gpt-9'.*\n.*copy"):
        await service.prepare(call(model="gpt-9"))


async def test_messages_go_through_the_template(service: Service) -> None:
    text, _ = await answer(service, messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "{hi}"}])
    assert text == "hi"


async def test_a_model_without_a_template_refuses_messages_and_names_the_flag() -> None:
    with scripted_deployment(template=None) as deployment, pytest.raises(TemplateError, match="--chat-template"):
        await make_service(deployment).prepare(call(messages=[{"role": "user", "content": "x"}]))


async def test_four_choices_differ_and_come_back_the_same_with_their_seed(service: Service) -> None:
    async def texts(**params: Any) -> tuple[int, list[str]]:
        generation = await service.prepare(call("go", temperature=1.0, n=4, max_tokens=8, **params))
        found = [""] * 4
        async for delta in generation:
            found[delta.choice] += delta.text
        assert generation.usage.prompt_tokens == 2
        assert generation.usage.completion_tokens == 32
        return generation.seed, found

    seed, first = await texts()
    assert len(set(first)) == 4
    other_seed, other = await texts()
    assert other_seed != seed
    assert set(other).isdisjoint(first)
    assert await texts(seed=seed) == (seed, first)


async def test_a_negative_seed_is_a_seed(service: Service) -> None:
    generation = await service.prepare(call("go", temperature=1.0, seed=-3, max_tokens=3))
    assert generation.seed == -3
    assert len(await read(generation)) == 3


async def test_several_prompts_are_one_generation(service: Service) -> None:
    generation = await service.prepare_all([call("{one}", n=2), call("{three}", n=2)])
    texts = [""] * 4
    async for delta in generation:
        texts[delta.choice] += delta.text
    assert texts == ["one", "one", "three", "three"]
    assert generation.usage.prompt_tokens == 5 + 7
    assert generation.usage.completion_tokens == 2 * 4 + 2 * 6


async def test_logprobs_go_with_their_tokens(service: Service) -> None:
    deltas = await read(await service.prepare(call("{ab}", logprobs=2)))
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert [entry.token_id for entry in entries] == [*b"ab", IM_END]
    assert all(len(entry.top) == 2 for entry in entries)


async def test_a_cached_prompt_is_reported_and_another_tenant_shares_nothing(service: Service) -> None:
    prompt = "x" * 100

    async def cached(tenant: str) -> int:
        generation = await service.prepare(call(prompt, max_tokens=1, tenant=tenant))
        await read(generation)
        return generation.usage.cached_tokens

    assert [await cached("a"), await cached("a"), await cached("b")] == [0, 96, 0]


async def test_a_full_queue_refuses_and_harms_nobody() -> None:
    with scripted_deployment(max_num_seqs=1, max_waiting_requests=1) as deployment:
        service = make_service(deployment)
        deployment.executable.hold()
        accepted = [await service.prepare(call("{abc}")) for _ in range(2)]
        with pytest.raises(QueueFull):
            await service.prepare(call("{abc}", n=2))
        deployment.executable.free()
        assert ["".join([d.text async for d in generation]) for generation in accepted] == ["abc", "abc"]
        assert service.num_running == 0


async def test_nan_logits_fail_one_request_and_not_the_others(service: Service) -> None:
    bad, good = await service.prepare(call("NaN!")), await service.prepare(call("{fine}"))
    assert "".join([delta.text async for delta in good]) == "fine"
    with pytest.raises(RequestFailed):
        await read(bad)


async def test_an_engine_that_dies_ends_every_request_with_an_error(service: Service, deployment: ScriptedDeployment) -> None:
    deployment.executable.hold()
    generations = [await service.prepare(call("Die!")), await service.prepare(call("{fine}"))]
    deployment.executable.free()
    for generation in generations:
        with pytest.raises(ServerUnavailable, match="the engine died"):
            await read(generation)
    with pytest.raises(ServerUnavailable):
        await service.prepare(call())
    assert not deployment.engine.is_alive


async def settle(service: Service) -> None:
    """Let what was sent to the engine take effect: it takes messages in order, and this one comes last."""
    assert (await answer(service, "{last}"))[0] == "last"


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
async def test_a_cancelled_request_frees_its_blocks_at_the_next_step_and_touches_no_other(phase: str) -> None:
    with scripted_deployment(max_num_seqs=2 if phase != "queued" else 1) as deployment:
        service = make_service(deployment)
        other = await service.prepare(call("{the others go on}"))
        if phase == "queued":
            deployment.executable.hold()
        victim = await service.prepare(call("v" * 400, max_tokens=100))
        if phase == "prefill":
            deployment.executable.hold()
        if phase == "decode":
            await victim.deltas()
        victim.cancel()
        victim.cancel()
        deployment.executable.free()
        assert "".join([delta.text async for delta in other]) == "the others go on"
        assert await read(victim) == []
        assert victim.is_cancelled
        assert service.num_running == 0
        await settle(service)
        assert deployment.engine.stats().num_referenced_blocks == 0


async def test_cancelling_all_with_an_error_gives_what_has_come_and_then_the_error(
    service: Service, deployment: ScriptedDeployment
) -> None:
    deployment.executable.hold()
    generation = await service.prepare(call("endless", max_tokens=400))
    deployment.executable.permit(3)
    text = ""
    while len(text) < 3:
        text += "".join(delta.text for delta in await generation.deltas())
    service.fail_all(ServerUnavailable("the server is stopping.", "wait."))
    with pytest.raises(ServerUnavailable):
        await read(generation)
    deployment.executable.free()


async def test_wake_returns_nothing_and_ends_nothing(service: Service, deployment: ScriptedDeployment) -> None:
    deployment.executable.hold()
    generation = await service.prepare(call("{hello}"))
    asyncio.get_running_loop().call_soon(generation.wake)
    assert await generation.deltas() == []
    assert not generation.is_over
    deployment.executable.free()
    assert "".join([delta.text async for delta in generation]) == "hello"


def test_a_service_serves_one_loop_after_another(deployment: ScriptedDeployment) -> None:
    service = make_service(deployment)
    for _ in range(2):
        assert asyncio.run(answer(service))[0] == "hello"


def test_events_for_a_closed_loop_are_dropped(deployment: ScriptedDeployment) -> None:
    service = make_service(deployment)
    deployment.executable.hold()

    async def begin() -> None:
        await service.prepare(call())

    asyncio.run(begin())
    deployment.executable.free()
    deployment.engine.close(5.0)
    assert deployment.engine.error is None
