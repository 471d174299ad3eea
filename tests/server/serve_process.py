"""`gristmill serve` as a subprocess, waited for by what it prints."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType


class ServeProcess:
    """A running server; `url` is where it listens, `lines` what it printed until it was ready."""

    def __init__(self, model: str, *flags: str) -> None:
        command = [sys.executable, "-m", "gristmill", "serve", model, "--name", "m", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.url = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("serving "):
                self.url = line.split()[-1]
            if line.startswith("ready "):
                break
        if not self.url:
            _, errors = self.process.communicate()
            raise AssertionError(f"the server did not start: {errors}")

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        self.process.communicate()
        return self.process.returncode

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
