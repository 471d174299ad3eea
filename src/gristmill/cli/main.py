"""The command line: `gristmill COMMAND`; each command is one file."""

from __future__ import annotations

import importlib
import os
import sys

import click

from gristmill import __version__
from gristmill.core.errors import GristmillError

SWITCH_INTERVAL_S = 0.001
COMMANDS = {
    "serve": "Serve a model over HTTP.",
    "run": "Answer one prompt and stop.",
    "chat": "Talk with a model.",
    "pull": "Fetch a model.",
    "models": "List the models that are here.",
    "inspect": "Show what a model file holds.",
    "bench": "Measure speed, here or of a server.",
}


class LazyGroup(click.Group):
    """Imports a command's file only when it is called, so that the first token is not late."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import `gristmill.cli.<name>` and return its `command`."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"gristmill.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="gristmill")
def cli() -> None:
    """Serve and run language models, with the same bytes every time."""


def main() -> None:
    """Enter the program: an operator's error is its facts and its mend on stderr, exit code 1."""
    # Between steps the engine and the loop take turns; with Python's own 5 ms the gaps of streams would grow (docs/log.md).
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        cli.main(prog_name="gristmill", standalone_mode=False)
    except GristmillError as error:
        _leave(f"gristmill: {error}", 1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _leave("", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _leave(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)
