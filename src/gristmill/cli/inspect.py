"""`gristmill inspect FILE`: metadata, tensors, tokenizer, chat template, memory at a given context."""

from __future__ import annotations

from collections import Counter

import click
from rich.console import Console
from rich.table import Table

from gristmill.backends.base import BLOCK_SIZE_TOKENS
from gristmill.backends.cpu.backend import CpuBackend
from gristmill.cli.fetch import fetch
from gristmill.core.units import format_bytes
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.text.tokenizer import Tokenizer
from gristmill.weights.checkpoint import Checkpoint, open_checkpoint
from gristmill.weights.load import packed_bytes

MAX_SHOWN = 120


@click.command("inspect")
@click.argument("model")
@click.option("--context", type=click.IntRange(1), help="Show the memory that one request of so many tokens needs.")
@click.option("--tensors", is_flag=True, help="List every tensor.")
def command(model: str, context: int | None, tensors: bool) -> None:
    """Show what MODEL (a file, a folder or a reference) holds. Nothing of it is run."""
    checkpoint = open_checkpoint(fetch(model))
    console = Console(highlight=False)
    _show_configuration(console, checkpoint)
    _show_tensors(console, checkpoint, every=tensors)
    _show_text(console, checkpoint)
    _show_memory(console, checkpoint, context)


def _show_configuration(console: Console, checkpoint: Checkpoint) -> None:
    print(checkpoint.path)  # not a table's title: that would be broken to the width of the table
    table = Table("configuration", "value")
    for source in (checkpoint.config, checkpoint.generation_config):
        for key, value in source.items():
            text = str(value)
            table.add_row(key, text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text):,} characters)")
    console.print(table)


def _show_tensors(console: Console, checkpoint: Checkpoint, *, every: bool) -> None:
    stored = [checkpoint.stored(name) for name in checkpoint.names()]
    sizes: Counter[str] = Counter()
    for tensor in stored:
        sizes[str(tensor.type)] += len(tensor.raw)
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in sizes.most_common())
    console.print(f"{len(stored)} tensors: {kinds}")
    if every:
        table = Table("tensor", "type", "shape", "bytes")
        for tensor in stored:
            table.add_row(tensor.name, str(tensor.type), "x".join(map(str, tensor.shape)), f"{len(tensor.raw):,}")
        console.print(table)


def _show_text(console: Console, checkpoint: Checkpoint) -> None:
    tokenizer = Tokenizer.from_files(
        checkpoint.tokenizer_files, checkpoint.config, checkpoint.generation_config, checkpoint.chat_template
    )
    ends = ", ".join(f"{tokenizer.id_to_token(i)} ({i})" for i in sorted(tokenizer.end_token_ids))
    console.print(
        f"tokenizer: {tokenizer.vocab_size:,} tokens, BOS {tokenizer.bos_id}, end tokens {ends or 'none'}", markup=False
    )
    template = checkpoint.chat_template
    console.print(f"chat template: {'none (a base model)' if template is None else f'{len(template):,} characters'}")


def _show_memory(console: Console, checkpoint: Checkpoint, context: int | None) -> None:
    architecture = load_architecture(checkpoint.config)
    config = architecture.parse(checkpoint.config, context)
    graph = record(architecture.build, config)
    tokens = context or config.max_position
    blocks = -(-tokens // BLOCK_SIZE_TOKENS)
    weights = packed_bytes(checkpoint, graph.weights, architecture.weight_rules(config))
    kv = blocks * CpuBackend(num_threads=1).kv_block_bytes(graph)
    parts = f"{format_bytes(weights)} weights + {format_bytes(kv)} KV = {format_bytes(weights + kv)}"
    console.print(f"memory at {tokens:,} tokens of context: {parts}")
