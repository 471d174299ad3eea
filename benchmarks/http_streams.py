"""16 streams over HTTP against the same work in process, interleaved; a client that reads raw bytes.

usage: python benchmarks/http_streams.py MODEL [--streams 16] [--rounds 5] [--threads 2]

Each round serves MODEL, sends `streams` requests at once (128 in / 128 out, greedy) three times, stops the server, and then
runs the same batch in process. Printed: tokens per second of both, their ratio, TTFT p50 and ITL p99 over HTTP, and the CPU
seconds that the client took beside the server on the same cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from typing import Any

GRISTMILL = [sys.executable, "-m", "gristmill"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    rows = [measure(arguments) for _ in range(arguments.rounds)]
    for name in rows[0]:
        print(f"{name:28}{statistics.median(row[name] for row in rows):10.2f}")


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    common = ["--threads", str(arguments.threads), "--max-num-seqs", str(arguments.streams)]
    command = [*GRISTMILL, "serve", arguments.model, "--name", "m", "--port", "0", "--prefix-cache", "off", *common]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = next(line.split()[-1] for line in server.stdout if line.startswith("serving "))
        next(line for line in server.stdout if line.startswith("ready "))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        runs = [
            bench("m", "--url", url, "--num-requests", str(arguments.streams), "--concurrency", str(arguments.streams))
            for _ in range(3)
        ]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        server.terminate()
    http = {key: statistics.median(run[key] for run in runs) for key in ("output, tok/s", "TTFT p50, ms", "ITL p99, ms")}
    batch = str(arguments.streams)
    process = bench(arguments.model, "--batch", batch, "--prefill", "16", "--repetitions", "3", *common)[f"batch {batch}, tok/s"]
    return {
        "HTTP, tok/s": http["output, tok/s"],
        "in process, tok/s": process,
        "HTTP / in process": http["output, tok/s"] / process,
        "TTFT p50, ms": http["TTFT p50, ms"],
        "ITL p99, ms": http["ITL p99, ms"],
        "client CPU a run, s": (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3,
    }


def bench(*arguments: str) -> dict[str, Any]:
    result = subprocess.run([*GRISTMILL, "bench", *arguments, "--json"], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(result.stdout)
    return figures


if __name__ == "__main__":
    main()
