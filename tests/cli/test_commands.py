"""The commands as a person runs them, on the real default model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal


def _run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gristmill", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def test_run_streams_the_answer_to_stdout_and_figures_to_stderr(smollm2_path: Path) -> None:
    result = _run("run", str(smollm2_path), "The capital of France is", "--raw", "--max-tokens", "6", "--temperature", "0")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(" Paris")
    assert re.search(r"prompt 5 tokens, [\d,]+ tok/s; answer 6 tokens, [\d,]+ tok/s; first token after [\d,]+ ms", result.stderr)


def test_run_reads_a_prompt_from_stdin(smollm2_path: Path) -> None:
    result = _run("run", str(smollm2_path), "--raw", "--max-tokens", "2", "--temperature", "0", stdin="The capital of France is")
    assert result.stdout.startswith(" Paris")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("run", "no/such/model.gguf", "hi"), "no/such/model.gguf"),
        (("run", "smollm2-135m", ""), "the prompt is empty"),
        (("run", "smollm2-135m", "hi", "--max-model-len", "1000000"), "8,192"),
        (("run", "smollm2-135m", "hi", "--cpu-isa", "mmx"), "cpu_isa"),
        (("run", "smollm2-135m", "hi", "--kv-memory", "lots"), "kv_memory"),
        (("run", "smollm2-135m", "hi", "--temperature", "-1"), "temperature"),
        (("serve", "smollm2-135m", "--config", "/nonexistent.toml"), "nonexistent.toml"),
        (("inspect", "/etc/hostname"), "hostname"),
        (("bench", "m", "--url", "http://127.0.0.1:1"), "no request succeeded"),
        (("bench", "m", "--url", "http://127.0.0.1:99999"), "--url is"),
        (("bench", "m", "--url", "http://[::1"), "--url is"),
        (("bench", "m", "--url", "ftp://127.0.0.1"), "--url is"),
        (("bench", "m", "--url", f"http://{'a' * 300}"), "no request succeeded"),
        (("run", "smollm2-135m", "hi", "--threads", "1000000"), "threads"),
        (("run", "smollm2-135m", "hi", "--kv-memory", "9999TiB"), "--kv-memory"),
    ],
)
def test_what_a_person_gets_wrong_is_told_with_a_mend(arguments: tuple[str, ...], part: str) -> None:
    result = _run(*arguments, stdin="")
    assert result.returncode == 1
    assert part in result.stderr
    assert "Mend:" in result.stderr
    assert "Traceback" not in result.stderr
    assert "leaked" not in result.stderr


def test_a_wrong_flag_names_the_nearest_one() -> None:
    result = _run("serve", "--prot", "1")
    assert result.returncode == 2
    assert "--port" in result.stderr


def test_pull_prints_where_the_model_is_and_models_lists_it(smollm2_path: Path) -> None:
    assert _run("pull", "smollm2-135m").stdout.strip() == str(smollm2_path)
    listed = _run("models").stdout
    for part in ("smollm2-135m", "8,192", "yes"):
        assert part in listed


def test_inspect_shows_path_metadata_tensors_tokenizer_and_memory(smollm2_path: Path) -> None:
    shown = _run("inspect", "smollm2-135m", "--context", "2048", "--tensors").stdout
    assert shown.startswith(f"{smollm2_path}\n")
    for part in (
        "272 tensors",
        "49,152 tokens",
        "<|im_end|>",
        "memory at 2,048 tokens",
        "layers.0.self_attn.q_proj",
    ):
        assert part in shown


def test_bench_prints_json() -> None:
    sizes = ("--prefill", "32", "--batch", "2", "--prompt-tokens", "8", "--output-tokens", "4", "--repetitions", "1")
    figures = json.loads(_run("bench", "smollm2-135m", *sizes, "--json").stdout)
    assert figures["prefill 32, tok/s"] > 0
    assert figures["batch 2, tok/s"] > 0


def test_help_of_every_command_needs_no_model() -> None:
    for name in ("serve", "run", "chat", "pull", "models", "inspect", "bench"):
        result = _run(name, "--help")
        assert result.returncode == 0
        assert "--help" in result.stdout


def test_help_shows_the_values_of_a_setting_that_has_a_few() -> None:
    shown = _run("serve", "--help").stdout
    assert "[auto|portable|avx2|avx512]" in shown
    assert "[text|json]" in shown


def test_chat_remembers_resets_saves_and_survives_ctrl_c(smollm2_path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    # The story goes on to the last token: it must still be running when Ctrl-C comes, however late that is.
    with Terminal("chat", str(smollm2_path), "--temperature", "0", "--max-tokens", "8000") as terminal:
        terminal.wait_for("> ")
        terminal.type("/system You answer with one word.")
        terminal.wait_for("set)")
        terminal.type("Write a very long story about the sea.")
        terminal.wait_for("sea.")  # the echo of what was typed
        terminal.wait_for(" the ")
        terminal.press("c")
        terminal.wait_for("stopped")
        terminal.wait_for("> ")
        terminal.type("Say hi.")
        terminal.wait_for("first token after")
        terminal.wait_for("> ")
        terminal.type("/save")
        terminal.wait_for("(not saved: no file is named")
        terminal.wait_for("> ")
        terminal.type(f"/save {saved}")
        terminal.wait_for("(saved to")
        terminal.type("/reset")
        terminal.wait_for("forgotten)")
        terminal.wait_for("> ")
        terminal.press("d")
        assert terminal.process.wait() == 0
    roles = [message["role"] for message in json.loads(saved.read_text())]
    assert roles == ["system", "user", "assistant"]
