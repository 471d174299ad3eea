"""`gristmill bench`: speed in this process, or of any OpenAI-compatible server."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from gristmill.cli.flags import read_settings, settings_flags
from gristmill.core.settings import EngineSettings


@click.command("bench")
@click.argument("model", default="smollm2-135m")
@click.option("--url", help="Measure this server instead (its base URL, with or without /v1).")
@click.option("--api-key", default="none", help="Key for --url.")
@click.option("--num-requests", type=click.IntRange(1), default=64, show_default=True, help="Requests sent to --url.")
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Requests in flight at --url.")
@click.option(
    "--rate", type=click.FloatRange(min=0.0), default=0.0, help="Requests per second (Poisson) instead of --concurrency; 0 = off."
)
@click.option("--prompt-tokens", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each prompt.")
@click.option("--output-tokens", type=click.IntRange(2), default=128, show_default=True, help="Tokens of each answer.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 4, 16, 64),
    show_default=True,
    help="Batch sizes in this process.",
)
@click.option(
    "--prefill", type=click.IntRange(1), multiple=True, default=(512,), show_default=True, help="Prompt lengths for prefill."
)
@click.option(
    "--repetitions", type=click.IntRange(1), default=3, show_default=True, help="Samples of each figure; the median is shown."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@settings_flags(EngineSettings)
def command(model: str, url: str | None, as_json: bool, **flags: Any) -> None:
    """Measure prefill, decode and batches of MODEL in this process; with --url TTFT, ITL and throughput of a server."""
    names = (
        "api_key",
        "num_requests",
        "concurrency",
        "rate",
        "prompt_tokens",
        "output_tokens",
        "batch",
        "prefill",
        "repetitions",
    )
    options = {name: flags.pop(name) for name in names}
    settings = read_settings(EngineSettings, flags)
    if url is not None:
        from gristmill.cli.bench_server import measure_server

        figures = measure_server(url, model, options)
    else:
        from gristmill.cli.bench_process import measure_process

        figures = measure_process(model, settings, options)
    if as_json:
        json.dump(figures, sys.stdout, indent=2)
        print()
    else:
        _print_table(figures)


def _print_table(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.1f}" if isinstance(value, float) else str(value))
    Console().print(table)
