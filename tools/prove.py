"""`make test-long`: the full-length versions, their output written to docs/proof.md with machine and commit.

Fuzz: 20,000 mutants each of the file formats. Native: every kernel test, not abbreviated. Soak: 20,000 one-token
requests against a real server, whose resident memory must be flat from the first quarter on. Load: 3,000 mixed streams
from 64 clients, of which some leave in the middle, on a server whose KV is too small for all; every answer must have the
bytes that it had alone, and nothing may be left behind.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NUM_REQUESTS = 20_000
GROWTH_MAX_MIB = 16
NUM_STREAMS = 3_000
NUM_KINDS = 40  # different requests among the streams


def main() -> None:
    """Run everything; exit with what failed, or write docs/proof.md."""
    lines = [f"Commit {_output('git', 'rev-parse', '--short', 'HEAD')}, {_cpu()}, {time.strftime('%Y-%m-%d')}.", ""]
    lines += _pytest("fuzzed model files", {"GRISTMILL_TEST_MUTANTS": "20000"}, "tests/weights/test_hostile.py")
    lines += _native()
    lines += _soak()
    lines += _load()
    (ROOT / "docs" / "proof.md").write_text("# Proof: the full-length tests\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _pytest(title: str, environment: dict[str, str], *paths: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", *paths]
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    return [f"- {title}: {result.stdout.strip().splitlines()[-1]}"]


def _native() -> list[str]:
    _pytest("native", {}, "tests/native")  # builds the programs
    lines = []
    for program in sorted((ROOT / "build" / "native-tests").glob("test_*")):
        result = subprocess.run([program], capture_output=True, text=True, check=False)
        if result.returncode:
            sys.exit(result.stdout)
        lines.append(f"- native {program.name}: {result.stdout.strip().splitlines()[-1]}")
    return lines


@contextmanager
def _served(*flags: str) -> Iterator[tuple[str, int]]:
    """Serve the default model; gives the server's URL and process id."""
    command = [sys.executable, "-m", "gristmill", "serve", "smollm2-135m", "--name", "m", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = next(line.split()[-1] for line in server.stdout if line.startswith("serving "))
        next(line for line in server.stdout if line.startswith("ready "))
        try:
            yield url, server.pid
        finally:
            server.terminate()


def _soak() -> list[str]:
    with _served("--max-num-seqs", "8") as (url, pid), ThreadPoolExecutor(8) as clients:
        sizes = []
        for quarter in range(4):
            first = quarter * NUM_REQUESTS // 4
            list(clients.map(lambda i: _ask(url, i), range(first, first + NUM_REQUESTS // 4)))
            sizes.append(_resident_mib(pid))
    grown = sizes[-1] - sizes[0]
    if grown > GROWTH_MAX_MIB:
        sys.exit(f"resident memory grew by {grown:.0f} MiB from the first quarter on: {sizes}")
    shown = ", ".join(f"{size:.0f}" for size in sizes)
    return [f"- soak: {NUM_REQUESTS:,} one-token requests answered; resident MiB after each quarter: {shown}"]


def _load() -> list[str]:
    draw = random.Random(7)
    kinds = [_kind(draw) for _ in range(NUM_KINDS)]
    with _served("--max-num-seqs", "32", "--kv-memory", "64MiB") as (url, _), ThreadPoolExecutor(64) as clients:
        alone = [_stream(url, kind, None) for kind in kinds]
        plan = [(draw.randrange(NUM_KINDS), draw.random() < 0.25) for _ in range(NUM_STREAMS)]
        outcomes = Counter(clients.map(lambda item: _compare(url, kinds[item[0]], alone[item[0]], item[1]), plan))
        left = _await_gauges(url)
        preemptions = _metric(url, "gristmill_preemptions_total")
    if outcomes["different"] or left:
        sys.exit(f"under load: {outcomes}; left behind: {left}")
    return [
        f"- load: {NUM_STREAMS:,} streams of {NUM_KINDS} kinds from 64 clients, {preemptions:,.0f} preemptions:"
        f" {outcomes['equal']:,} answered with the bytes they had alone, {outcomes['left']:,} left in the middle;"
        " no sequence and no KV block left behind"
    ]


def _kind(draw: random.Random) -> dict[str, Any]:
    length = draw.choice([1, 5, 31, 33, 120, 400, 1_500])
    shared = list(range(1_000, 1_000 + length * 3 // 4))
    own = [draw.randrange(100, 40_000) for _ in range(length - len(shared))]
    return {
        "model": "m",
        "prompt": shared + own,
        "max_tokens": draw.choice([1, 8, 40, 100]),
        "temperature": draw.choice([0.0, 0.0, 0.8]),
        "seed": draw.randrange(2**31),
        "ignore_eos": True,
        "stream": True,
    }


def _compare(url: str, kind: dict[str, Any], expected: bytes, leaves: bool) -> str:
    if leaves:
        _stream(url, kind, 2)
        return "left"
    return "equal" if _stream(url, kind, None) == expected else "different"


def _stream(url: str, body: dict[str, Any], num_events: int | None) -> bytes:
    """Return the texts of a stream's events; after `num_events` the connection is closed."""
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    texts = []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                texts.append(json.loads(line[6:])["choices"][0]["text"])
            if num_events is not None and len(texts) >= num_events:
                break
    return "".join(texts).encode()


def _await_gauges(url: str) -> dict[str, float]:
    """Return what is not zero of the gauges that must be, once the last cancelled streams have had time to end."""
    names = ("gristmill_requests_running", "gristmill_requests_waiting", "gristmill_kv_blocks_used")
    deadline = time.monotonic() + 30
    while True:
        left = {name: value for name in names if (value := _metric(url, name))}
        if not left or time.monotonic() > deadline:
            return left


def _metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def _ask(url: str, number: int) -> None:
    body = json.dumps({"model": "m", "prompt": [number % 40_000 + 100, 7, 8], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 1


def _resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
