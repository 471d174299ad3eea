"""`make test-long`: the full-length versions, their output written to docs/proof.md with machine and commit.

Fuzz: 20,000 mutants each of the file formats. Native: every kernel test, not abbreviated. Soak: 20,000 one-token
requests against a real server, whose resident memory must be flat from the first quarter on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUM_REQUESTS = 20_000
GROWTH_MAX_MIB = 16


def main() -> None:
    """Run everything; exit with what failed, or write docs/proof.md."""
    lines = [f"Commit {_output('git', 'rev-parse', '--short', 'HEAD')}, {_cpu()}, {time.strftime('%Y-%m-%d')}.", ""]
    lines += _pytest("fuzzed model files", {"GRISTMILL_TEST_MUTANTS": "20000"}, "tests/weights/test_hostile.py")
    lines += _native()
    lines += _soak()
    (ROOT / "docs" / "proof.md").write_text("# Proof: the full-length tests\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _pytest(title: str, environment: dict[str, str], *paths: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", *paths]
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


def _soak() -> list[str]:
    command = [sys.executable, "-m", "gristmill", "serve", "smollm2-135m", "--name", "m", "--port", "0", "--max-num-seqs", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = next(line.split()[-1] for line in server.stdout if line.startswith("serving "))
        next(line for line in server.stdout if line.startswith("ready "))
        with ThreadPoolExecutor(8) as clients:
            sizes = []
            for quarter in range(4):
                first = quarter * NUM_REQUESTS // 4
                list(clients.map(lambda i: _ask(url, i), range(first, first + NUM_REQUESTS // 4)))
                sizes.append(_resident_mib(server.pid))
        server.terminate()
    grown = sizes[-1] - sizes[0]
    if grown > GROWTH_MAX_MIB:
        sys.exit(f"resident memory grew by {grown:.0f} MiB from the first quarter on: {sizes}")
    shown = ", ".join(f"{size:.0f}" for size in sizes)
    return [f"- soak: {NUM_REQUESTS:,} one-token requests answered; resident MiB after each quarter: {shown}"]


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
