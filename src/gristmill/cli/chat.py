"""`gristmill chat MODEL`: an interactive conversation."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.flags import read_settings, settings_flags
from gristmill.cli.sampling_flags import read_sampling, sampling_flags
from gristmill.core.errors import GristmillError, TemplateError
from gristmill.core.settings import EngineSettings

if TYPE_CHECKING:
    from gristmill.cli.session import Session

HELP = "/reset forgets, /system TEXT sets the system message, /save FILE writes it all, /exit leaves; Ctrl-C stops an answer."


@click.command("chat")
@click.argument("model")
@click.option("--system", help="A system message before the conversation.")
@sampling_flags
@settings_flags(EngineSettings)
def command(model: str, system: str | None, **flags: Any) -> None:
    """Talk with MODEL. /reset, /system TEXT, /save FILE, /exit; Ctrl-C stops an answer, not the program."""
    sampling = read_sampling(flags)
    settings = read_settings(EngineSettings, flags)
    from gristmill.cli.session import Session

    with Session(model, settings, sampling) as session:
        if not session.has_template:
            raise TemplateError(f"{model} has no chat template.", "use gristmill run, or give --chat-template FILE.")
        print(HELP, file=sys.stderr)
        Conversation(session, system).loop()


class Conversation:
    """The history of a chat and the commands that act on it."""

    def __init__(self, session: Session, system: str | None) -> None:
        self._session = session
        self._system = system
        self._messages: list[dict[str, str]] = []

    def loop(self) -> None:
        """Read lines until the input ends or /exit is said."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        while (line := self._read_line()) is not None:
            try:
                if not self._take(line):
                    return
            except KeyboardInterrupt:  # Ctrl-C just before or after an answer
                print()

    def _take(self, line: str) -> bool:
        """Obey a command or answer a question; False ends the conversation."""
        if line.startswith("/"):
            return self._obey(line)
        if line.strip():
            self._say(line)
        return True

    def _read_line(self) -> str | None:
        try:
            return input("> ")
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()
            return ""

    def _obey(self, line: str) -> bool:
        word, _, rest = line.partition(" ")
        if word in ("/exit", "/quit"):
            return False
        if word == "/reset":
            self._messages.clear()
            print("(forgotten)", file=sys.stderr)
        elif word == "/system":
            self._system = rest.strip() or None
            print("(the system message is set)", file=sys.stderr)
        elif word == "/save":
            self._save(rest.strip())
        else:
            print(HELP, file=sys.stderr)
        return True

    def _say(self, line: str) -> None:
        self._messages.append({"role": "user", "content": line})
        try:
            turn = self._session.answer(self._with_system(), sys.stdout)
        except KeyboardInterrupt:
            self._messages.pop()
            print("\n(stopped; the question is forgotten)", file=sys.stderr)
            return
        except GristmillError as error:
            self._messages.pop()
            print(f"\n{error}", file=sys.stderr)
            return
        self._messages.append({"role": "assistant", "content": turn.text})
        print(f"\n({turn.figures()})", file=sys.stderr)

    def _with_system(self) -> list[Any]:
        head = [{"role": "system", "content": self._system}] if self._system else []
        return [*head, *self._messages]

    def _save(self, name: str) -> None:
        if not name:
            print("(not saved: no file is named; write /save FILE)", file=sys.stderr)
            return
        try:
            Path(name).write_text(json.dumps(self._with_system(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"(not saved: {error}; write /save FILE)", file=sys.stderr)
        else:
            print(f"(saved to {name})", file=sys.stderr)
