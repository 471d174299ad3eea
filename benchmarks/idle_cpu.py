"""CPU time of a `gristmill serve` that has nothing to do: before its first request, and after 16 streams.

usage: python benchmarks/idle_cpu.py MODEL [--seconds 10]

Printed: CPU milliseconds per second of the whole process, each part of the wait measured on an open, silent connection. The
baseline of the same run is this script's own process, which does nothing but wait.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

GRISTMILL = [sys.executable, "-m", "gristmill"]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    command = [*GRISTMILL, "serve", arguments.model, "--name", "m", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = next(line.split()[-1] for line in server.stdout if line.startswith("serving "))
        next(line for line in server.stdout if line.startswith("ready "))
        report("before a request", server.pid, url, arguments.seconds)
        load = [*GRISTMILL, "bench", "m", "--url", url, "--num-requests", "16", "--concurrency", "16", "--json"]
        subprocess.run(load, check=True, capture_output=True)
        report("after 16 streams", server.pid, url, arguments.seconds)
        server.terminate()


def report(when: str, pid: int, url: str, seconds: float) -> None:
    """Wait on a connection that nobody writes to, and print what the server and this process used meanwhile."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        before = cpu_s(pid), cpu_s(os.getpid())
        select.select([connection], [], [], seconds)
        server_s, own_s = cpu_s(pid) - before[0], cpu_s(os.getpid()) - before[1]
    print(f"{when:20}{server_s / seconds * 1e3:8.2f} ms/s{'':6}this script {own_s / seconds * 1e3:6.2f} ms/s")


def cpu_s(pid: int) -> float:
    """User and system time of all threads, from proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


if __name__ == "__main__":
    main()
