"""A command in a pseudo-terminal: typed at, and waited for by what it shows."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from types import TracebackType


class Terminal:
    """`gristmill ARGUMENTS` with a terminal on stdin, stdout and stderr."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "gristmill", *arguments]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> str:
        """Read until `text` is shown, and return what was shown before it since the last wait."""
        while text not in self.shown:
            self.shown += self._read()
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._ours, text.encode() + b"\n")

    def press(self, key: str) -> None:
        """Press Ctrl and a letter."""
        os.write(self._ours, bytes([ord(key.upper()) - 64]))

    def _read(self) -> str:
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # the other side is closed: Linux says EIO
            data = b""
        assert data, f"the command ended; it had shown: {self.shown}"
        return data.decode("utf-8", "replace")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


def _own_terminal() -> None:
    """Make the terminal the controlling one of the new session, so that Ctrl-C becomes SIGINT."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
