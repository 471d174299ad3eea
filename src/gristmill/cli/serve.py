"""`gristmill serve [MODEL]`: the HTTP server."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.fetch import fetch
from gristmill.cli.flags import read_settings, settings_flags
from gristmill.core.settings import ServeSettings

if TYPE_CHECKING:
    from gristmill.repository.deployment import Deployment

DEFAULT_MODEL = "smollm2-135m"


@click.command("serve")
@click.argument("model", default=DEFAULT_MODEL)
@settings_flags(ServeSettings)
def command(model: str, **flags: Any) -> None:
    """Serve MODEL (a path, hf:org/name, pypi:package or an alias) with the OpenAI API."""
    started = time.monotonic()
    settings = read_settings(ServeSettings, flags)
    from gristmill.server.run import serve

    def announce(url: str, deployment: Deployment) -> None:
        key = "none" if settings.api_key_file is None else "KEY"
        show = _how_to_complete if deployment.template is None else _how_to_chat
        print("\n".join([*deployment.resolved.lines(), *show(url, deployment.name, key)]), flush=True)
        print(f"ready after {time.monotonic() - started:.1f} s", flush=True)

    sys.exit(serve(model, settings, fetch, announce))


def _how_to_chat(url: str, name: str, key: str) -> list[str]:
    messages = '[{"role": "user", "content": "Why is the sky blue?"}]'
    python = [
        f"messages = {messages}",
        f'answer = client.chat.completions.create(model="{name}", messages=messages)',
        "print(answer.choices[0].message.content)",
    ]
    return _how_to_call(url, name, key, "chat/completions", f'"messages": {messages}', python)


def _how_to_complete(url: str, name: str, key: str) -> list[str]:
    """Show what a base model can do: without a chat template a chat would be refused."""
    prompt = '"The sky is blue because"'
    python = [
        f'answer = client.completions.create(model="{name}", prompt={prompt}, max_tokens=64)',
        "print(answer.choices[0].text)",
    ]
    return _how_to_call(url, name, key, "completions", f'"prompt": {prompt}, "max_tokens": 64', python)


def _how_to_call(url: str, name: str, key: str, route: str, fields: str, python: list[str]) -> list[str]:
    key_header = "" if key == "none" else f"-H 'Authorization: Bearer {key}' "
    python = ["from openai import OpenAI", f'client = OpenAI(base_url="{url}/v1", api_key="{key}")', *python]
    return [
        "",
        f"serving {name} on {url}",
        "",
        f"  curl {url}/v1/{route} -H 'Content-Type: application/json' {key_header}\\",
        f'    -d \'{{"model": "{name}", {fields}}}\'',
        "",
        *(f"  {line}" for line in python),
        "",
    ]
