"""Memory (PSS of the process tree) of gristmill and llama-server at equal KV bytes: 16 slots x 512 tokens, the same load.

usage: python benchmarks/memory.py FILE.gguf --llama BIN_FOLDER [--kv-bytes-per-token 23040]

KV bytes a token: 2 bytes x 2 (K and V) x layers x kv heads x head width; 23,040 for SmolLM2-135M's shape, in both engines.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

SLOTS, SLOT_TOKENS = 16, 512
GRISTMILL = [sys.executable, "-m", "gristmill"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--llama", required=True, type=Path)
    parser.add_argument("--kv-bytes-per-token", type=int, default=23_040)
    arguments = parser.parse_args()
    ours = measure_ours(arguments.file, arguments.kv_bytes_per_token)
    theirs = measure_llama(arguments.llama, arguments.file)
    print(f"{'':14}{'gristmill':>12}{'llama-server':>14}{'ratio':>8}")
    for name in ours:
        print(f"{name:14}{ours[name]:10.0f} M{theirs[name]:12.0f} M{ours[name] / theirs[name]:8.2f}")


def measure_ours(file: str, kv_bytes_per_token: int) -> dict[str, float]:
    command = [*GRISTMILL, "serve", file, "--name", "m", "--port", "0", "--max-num-seqs", str(SLOTS)]
    command += ["--max-model-len", str(SLOT_TOKENS), "--kv-memory", str(SLOTS * SLOT_TOKENS * kv_bytes_per_token)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = next(line.split()[-1] for line in server.stdout if line.startswith("serving "))
        next(line for line in server.stdout if line.startswith("ready "))
        figures = load(server.pid, url)
        server.terminate()
    return figures


def measure_llama(folder: Path, file: str) -> dict[str, float]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [str(folder / "llama-server"), "-m", file, "-t", "2", "-tb", "2", "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS)]
    command += ["--port", "8137", "--no-ui", "-fa", "on"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as server:
        url = "http://127.0.0.1:8137"
        while not is_up(url):
            time.sleep(0.1)
        figures = load(server.pid, url)
        server.terminate()
    return figures


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def load(pid: int, url: str) -> dict[str, float]:
    """PSS in MiB when fresh, after 16 requests of 256 tokens, and after 16 that fill their slots."""
    figures = {"fresh": pss_mib(pid)}
    for name, num_in in (("half full", 128), ("full", SLOT_TOKENS - 132)):
        command = [*GRISTMILL, "bench", "m", "--url", url, "--num-requests", str(SLOTS), "--concurrency", str(SLOTS)]
        subprocess.run([*command, "--prompt-tokens", str(num_in), "--json"], check=True, capture_output=True)
        figures[name] = pss_mib(pid)
    return figures


def pss_mib(pid: int) -> float:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return own + sum(pss_mib(int(child)) for child in children)


if __name__ == "__main__":
    main()
