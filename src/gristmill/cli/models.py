"""`gristmill models`: what is here."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from gristmill.core.units import format_bytes
from gristmill.planner.machine import measure_machine
from gristmill.weights.references import LocalModel, list_local


@click.command("models")
def command() -> None:
    """List the models that are here: size, format, context, and whether each fits in the memory that is free."""
    found = list_local()
    if not found:
        print("no models are here; fetch one with: gristmill pull smollm2-135m")
        return
    available = measure_machine().memory_available_bytes
    table = Table("reference", "size", "format", "architecture", "context", "fits")
    for model in found:
        table.add_row(*_row(model, available))
    Console().print(table)


def _row(model: LocalModel, available_bytes: int) -> tuple[str, ...]:
    fits = "yes" if model.size_bytes < available_bytes * 0.9 else f"no ({format_bytes(available_bytes)} are free)"
    context = f"{model.context_tokens:,}" if model.context_tokens else "?"
    return model.reference, format_bytes(model.size_bytes), model.format, model.architecture or "?", context, fits
