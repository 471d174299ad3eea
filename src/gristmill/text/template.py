"""Chat messages to the text of a prompt, by the model's own template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from gristmill.core.errors import InvalidRequest, TemplateError
from gristmill.text.messages import Message, TemplateTraits, normalize
from gristmill.text.sandbox import RESERVED_NAMES, compile_template, render_bounded

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}) | RESERVED_NAMES
# Ends in a space, so that a template that trims messages can be told from one that does not. Source: Transformers.
_CUT = "GRISTMILL_CUTS_THE_FINAL_MESSAGE_HERE "
_PROBE = "gristmill-probe"
_PRINTED_PARTS = ("'type': 'text'", '"type": "text"')  # what a template shows that prints the list instead of reading it
_MEND = "send messages that the model's template accepts, or start the server with --chat-template FILE."


class ChatTemplate:
    """A compiled template. Immutable; safe to use from any thread.

    A template that is missing (`source` None) or broken is an error of each chat request, not of the model: it can still
    complete texts. `problem` has that error.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `source` and find out what it understands."""
        self.source = source
        self.problem: TemplateError | None = None
        self._variables = {"bos_token": bos_token, "eos_token": eos_token}
        self._template: jinja2.Template | None = None
        if source is None:
            self.problem = TemplateError("this model has no chat template.", "start the server with --chat-template FILE.")
            return
        try:
            self._template = compile_template(source, now)
        except Exception as error:  # a template may hold anything; Jinja's compiler recurses, and overflows
            self.problem = _template_error(error)
            return
        self.traits = self._probe_traits(source)

    def render(
        self,
        messages: Sequence[Any],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt.

        `continue_final_message` ends it inside the last message, for the model to go on with.
        Raises: InvalidRequest for messages that no template can render; TemplateError, with the line, for what this one refuses.
        """
        if self.problem is not None:
            raise TemplateError(self.problem.message, self.problem.mend)
        variables = self._checked(template_kwargs or {})
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt are both true; a prompt ends in one place.",
                "send add_generation_prompt: false with continue_final_message: true.",
                param="continue_final_message",
            )
        shown = normalize(messages, self.traits)
        final = _mark_final(shown[-1]) if continue_final_message else ""
        variables |= {"tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            text = self._run(shown, variables)
        except Exception as error:  # a template can raise whatever Python can
            raise _template_error(error) from error
        return _cut_final(text, final) if continue_final_message else text

    def closing_text(self) -> str:
        """Return what follows an assistant's message, or nothing if the template does not show one."""
        turns = [_turn("user", "x"), _turn("assistant", _PROBE)]
        return self._probe(turns).rpartition(_PROBE)[2] if self.problem is None else ""

    def _run(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        assert self._template is not None, "a template with a problem does not run"
        return render_bounded(self._template, {**variables, "messages": messages})

    def _checked(self, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        for name in template_kwargs:
            if not isinstance(name, str) or name in _RESERVED:
                raise InvalidRequest(
                    f"chat_template_kwargs has {name!r}, which is not the template's to take.",
                    "remove it, or send it as a field of the request.",
                    param="chat_template_kwargs",
                )
        return {**self._variables, **template_kwargs}

    def _probe_traits(self, source: str) -> TemplateTraits:
        parts = [{"type": "text", "text": _PROBE}]
        as_text = self._probe([_turn("user", _PROBE)])
        as_parts = self._probe([_turn("user", parts)])
        as_null = self._probe([_turn("user", "x"), {"role": "assistant", "content": None}, _turn("user", _PROBE)])
        takes_parts = _PROBE in as_parts and not any(printed in as_parts for printed in _PRINTED_PARTS)
        return TemplateTraits(
            takes_text=_PROBE in as_text or not takes_parts,
            takes_parts=takes_parts,
            takes_null=_PROBE in as_null and "None" not in as_null,
            knows_developer="developer" in source,
        )

    def _probe(self, messages: Sequence[Message]) -> str:
        variables = {**self._variables, "tools": None, "documents": None, "add_generation_prompt": False}
        try:
            return self._run(messages, variables)
        except Exception:  # a template that refuses a probe has answered it
            return ""


def _turn(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def _mark_final(message: Message) -> str:
    """Append the mark to the last text of the final message, in place, and return that text."""
    content = message["content"]
    if isinstance(content, list) and content:
        text: str = content[-1]["text"]
        content[-1] = {"type": "text", "text": text + _CUT}
        return text
    if not isinstance(content, str):
        raise InvalidRequest(
            "continue_final_message is true, and the last message has no text.",
            "end messages with the text to go on with.",
            param="messages",
        )
    message["content"] = content + _CUT
    return content


def _cut_final(text: str, final: str) -> str:
    cut = text.rfind(_CUT.strip())
    if cut < 0 or final.strip() not in text[:cut]:
        raise TemplateError("the chat template does not show the final message, so that it cannot be continued.", _MEND)
    return text[:cut] if text.startswith(_CUT, cut) else text[:cut].rstrip()


def _template_error(error: Exception) -> TemplateError:
    line = _line(error)
    at = "" if line is None else f" at line {line}"
    reason = str(error) or type(error).__name__
    return TemplateError(f"the chat template failed{at}: {reason}{'' if reason.endswith('.') else '.'}", _MEND)


def _line(error: BaseException) -> int | None:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.lineno
    line = None
    trace = error.__traceback__
    while trace is not None:  # the innermost frame of the template's own code
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
