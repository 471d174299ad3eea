from __future__ import annotations

from datetime import datetime

import pytest

from gristmill.core.errors import InvalidRequest, TemplateError
from gristmill.text.template import ChatTemplate

USER = {"role": "user", "content": "Hi"}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PARTS = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content | trim }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}{% endfor %}{% endif %};{% endfor %}"
)


def test_smollm2_prompt_is_what_transformers_renders(smollm2_metadata):
    template = ChatTemplate(smollm2_metadata["tokenizer.chat_template"], bos_token="<|im_start|>", eos_token="<|im_end|>")
    assert template.render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_blocks_are_trimmed_as_transformers_trims_them():
    source = "{%- for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend"
    assert ChatTemplate(source).render([USER]) == "Hi\nend"


def test_template_gets_loop_controls_json_dates_and_generation_blocks():
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{{ {'b': '<é>', 'a': [1]} | tojson }}{{ [1] | tojson(indent=2) }}{{ strftime_now('%d %b %Y') }}"
        "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    )
    template = ChatTemplate(source, now=lambda: datetime(2026, 12, 1))
    assert template.render([USER]) == '02{"b": "<é>", "a": [1]}[\n  1\n]01 Dec 2026Hi'


def test_template_gets_tools_documents_and_the_callers_variables():
    source = "{{ tools is none }}{{ documents is none }}{{ enable_thinking }}{{ eos_token }}"
    template = ChatTemplate(source, eos_token="</s>")
    assert template.render([USER], template_kwargs={"enable_thinking": False}) == "TrueTrueFalse</s>"
    assert template.render([USER], tools=[{"type": "function"}]).startswith("False")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "gristmill_count_step"])
def test_reserved_template_variables_are_refused_by_name(name):
    with pytest.raises(InvalidRequest, match=name):
        ChatTemplate(CHATML).render([USER], template_kwargs={name: 1})


def test_parts_are_joined_for_templates_that_expect_strings():
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert "user\na\nb<|im_end|>" in ChatTemplate(CHATML).render([message])


def test_parts_are_kept_for_templates_that_iterate_them():
    template = ChatTemplate(PARTS)
    assert (
        template.render([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
        == "user:[a][b];"
    )
    assert template.render([USER]) == "user:Hi;"


def test_strings_become_parts_for_templates_that_know_only_parts():
    source = "{% for m in messages %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}"
    assert ChatTemplate(source).render([USER]) == "Hi"


def test_list_that_a_template_would_print_is_joined():
    source = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    assert ChatTemplate(source).render([{"role": "user", "content": [{"type": "text", "text": "a"}]}]) == "a"


def test_developer_is_system_where_the_template_does_not_know_it():
    developer = {"role": "developer", "content": "x"}
    assert ChatTemplate("{{ messages[0].role }}").render([developer]) == "system"
    assert ChatTemplate("{% if messages[0].role == 'developer' %}known{% endif %}").render([developer]) == "known"


def test_content_of_an_assistant_may_be_null():
    messages = [USER, {"role": "assistant", "content": None}]
    assert "assistant\n<|im_end|>" in ChatTemplate(CHATML).render(messages)
    keeps = "{% for m in messages %}{% if m.content is none %}none{% else %}{{ m.content }}{% endif %}{% endfor %}"
    assert ChatTemplate(keeps).render(messages) == "Hinone"


def test_tool_messages_and_calls_reach_the_template_with_arguments_as_an_object():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
    ]
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.x }}{% endfor %}"
    source += "{{ m.tool_call_id }}{% endfor %}"
    assert ChatTemplate(source).render(messages) == "1c1"


def test_keys_that_hold_nothing_are_not_there():
    message = {**USER, "tool_calls": None, "name": None}
    assert ChatTemplate("{{ 'tool_calls' in messages[0] }}{{ 'name' in messages[0] }}").render([message]) == "FalseFalse"


@pytest.mark.parametrize(
    ("messages", "fact"),
    [
        ([], "empty"),
        (["x"], r"messages\[0\] is not an object"),
        ([{"content": "x"}], "role is None"),
        ([{"role": "robot", "content": "x"}], "'robot'"),
        ([{"role": "user"}], "content is missing"),
        ([{"role": "user", "content": 7}], "neither a text nor a list"),
        ([USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], r"messages\[1\].*'image_url'"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "'input_audio'"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\] is of type None"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "text is not a string"),
    ],
)
def test_messages_that_cannot_be_rendered_are_refused_by_place(messages, fact):
    with pytest.raises(InvalidRequest, match=fact):
        ChatTemplate(CHATML).render(messages)


def test_messages_of_the_caller_are_left_as_they_were():
    messages = [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]
    ChatTemplate(PARTS).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]


@pytest.mark.parametrize(("content", "end"), [("Once ", "Once "), ("Once\n", "Once\n"), ("", "assistant\n")])
def test_continued_message_ends_the_prompt_with_its_own_text(content, end):
    messages = [USER, {"role": "assistant", "content": content}]
    text = ChatTemplate(CHATML).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith(end)
    assert "GRISTMILL" not in text


def test_continued_message_is_trimmed_where_the_template_trims():
    messages = [USER, {"role": "assistant", "content": "Once "}]
    text = ChatTemplate(PARTS).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "user:Hi;assistant:Once"


def test_prompt_cannot_be_both_continued_and_begun_anew():
    with pytest.raises(InvalidRequest, match="both true"):
        ChatTemplate(CHATML).render([USER], add_generation_prompt=True, continue_final_message=True)


def test_message_without_text_or_not_shown_cannot_be_continued():
    keeps = "{% for m in messages %}{% if m.content is none %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(InvalidRequest, match="no text"):
        ChatTemplate(keeps).render(
            [USER, {"role": "assistant", "content": None}], add_generation_prompt=False, continue_final_message=True
        )
    with pytest.raises(TemplateError, match="does not show"):
        ChatTemplate("{{ messages[0].role }}").render([USER], add_generation_prompt=False, continue_final_message=True)


def test_model_without_a_template_names_the_flag():
    template = ChatTemplate(None)
    with pytest.raises(TemplateError) as caught:
        template.render([USER])
    assert "--chat-template FILE" in caught.value.mend
    assert template.closing_text() == ""


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        ("ok\n{% for x in y", "at line 2"),
        ("a\n{{ messages[0].foo.bar }}", "at line 2.*foo"),
        ("\n\n{{ raise_exception('no system role') }}", "at line 3: no system role"),
        ("\n{{ ''.__class__.__mro__ }}", "at line 2.*unsafe"),
        ("{{ messages.append(1) }}", "at line 1.*unsafe"),
        ("{{ messages[0].content + 1 }}", "at line 1"),
        ("{{ 1 / 0 }}", "at line 1.*zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}\n{{ f() }}", "recursion"),
        ("{{ range(10**9) | list }}", "Range too big"),
        ("{{ 'a' * 10**9 }}", "over 33,554,432 characters"),
        ("{{ [1] * 10**9 }}", "over 33,554,432 characters"),
        ("{{ 2 ** 1000000 }}", "power"),
        ("{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "over 33,554,432"),
        ("{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}", "over 33,554,432"),
        ("{% for i in range(99999) %}{{ 'abcdefghij' * 1000 }}{% endfor %}", "over 33,554,432 characters"),
        ("\n{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "at line 2.*101,000 steps"),
        ("{" * 1000 + "x", "failed"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "failed"),
    ],
)
def test_what_a_template_must_not_do_is_an_error_of_the_request_with_the_line(source, fact):
    with pytest.raises(TemplateError, match=fact) as caught:
        ChatTemplate(source).render([USER])
    assert caught.value.http_status == 400


def test_sums_and_products_of_ordinary_size_are_computed():
    assert ChatTemplate("{{ 1000000 * 1000000 }}{{ 'ab' * 2 }}{{ 2 ** 10 }}{{ 'a' + 'b' }}{{ 1 ~ 'x' }}{{ 1.5 * 2 }}").render(
        [USER]
    ) == ("1000000000000abab1024ab1x3.0")
