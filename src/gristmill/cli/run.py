"""`gristmill run MODEL "prompt"`: stream one answer to stdout, its figures to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.flags import read_settings, settings_flags
from gristmill.cli.sampling_flags import read_sampling, sampling_flags
from gristmill.core.errors import InvalidRequest
from gristmill.core.settings import EngineSettings

if TYPE_CHECKING:
    from gristmill.llm import Message


@click.command("run")
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--raw", is_flag=True, help="Continue the text as it is; no chat template.")
@click.option("--system", help="A system message before the prompt.")
@sampling_flags
@settings_flags(EngineSettings)
def command(model: str, prompt: str | None, raw: bool, system: str | None, **flags: Any) -> None:
    """Answer PROMPT (or what stdin gives) with MODEL and stop."""
    sampling = read_sampling(flags)
    settings = read_settings(EngineSettings, flags)
    text = _read_prompt(prompt)
    from gristmill.cli.session import Session

    with Session(model, settings, sampling) as session:
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        as_text = raw or not session.has_template
        turn = session.answer(text if as_text else messages, sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()
        print(turn.figures(), file=sys.stderr)


def _read_prompt(prompt: str | None) -> str:
    text = sys.stdin.read() if prompt is None or prompt == "-" else prompt
    if not text.strip():
        raise InvalidRequest("the prompt is empty.", 'write gristmill run MODEL "your prompt", or give it on stdin.')
    return text
