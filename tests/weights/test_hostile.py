"""Mutated files under a fixed seed: each loads, or is refused by an error with a mend; nothing else may happen."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.weights.samples import CONFIG, llama_weights, write_folder, write_llama

from gristmill.core.errors import ModelFileError, UnsupportedArchitecture
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.load import load

NUM_MUTANTS = int(os.environ.get("GRISTMILL_TEST_MUTANTS", "400"))
ABSURD = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
SMALL = {
    **CONFIG,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8,
}
EXTRA = {
    "llama.rope.dimension_count": 16,
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 2.0,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.scores": [0.5, 1.5, 2.5],
    "general.alignment": 32,
}


def loads_or_refuses(path: Path) -> bool:
    """True if the model loads. Any other exception than an operator's error fails the test."""
    try:
        checkpoint = open_checkpoint(path)
        architecture = load_architecture(checkpoint.config)
        config = architecture.parse(checkpoint.config, None)
        load(checkpoint, record(architecture.build, config).weights, architecture.weight_rules(config))
        checkpoint.special_tokens()
    except (ModelFileError, UnsupportedArchitecture) as error:
        return not (error.message and error.mend)
    return True


def mutate(data: bytes, header_len: int, dice: random.Random) -> bytes:
    """Damage a file in one to three places, mostly in its header."""
    mutant = bytearray(data)
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        at = dice.randrange(header_len if dice.random() < 0.9 else max(1, len(mutant))) % max(1, len(mutant))
        MUTATIONS[dice.randrange(len(MUTATIONS))](mutant, at, dice)
    return bytes(mutant)


def flip(mutant: bytearray, at: int, dice: random.Random) -> None:
    if mutant:
        mutant[at] ^= 1 << dice.randrange(8)


def overwrite_number(mutant: bytearray, at: int, dice: random.Random) -> None:
    width = dice.choice([4, 8])
    mutant[at : at + width] = struct.pack("<Q", dice.choice(ABSURD))[:width]


def cut(mutant: bytearray, at: int, dice: random.Random) -> None:
    del mutant[at:]


def remove(mutant: bytearray, at: int, dice: random.Random) -> None:
    del mutant[at : at + dice.randrange(1, 64)]


def insert(mutant: bytearray, at: int, dice: random.Random) -> None:
    mutant[at:at] = dice.randbytes(dice.randrange(1, 64))


def repeat(mutant: bytearray, at: int, dice: random.Random) -> None:
    mutant[at:at] = mutant[at : at + dice.randrange(8, 256)]


def replace_digit(mutant: bytearray, at: int, dice: random.Random) -> None:
    digits = [i for i in range(at, min(at + 200, len(mutant))) if 48 <= mutant[i] <= 57]
    if digits:
        mutant[dice.choice(digits)] = dice.choice(b"0123456789-e.")


MUTATIONS: list[Callable[[bytearray, int, random.Random], None]] = [
    flip,
    overwrite_number,
    cut,
    remove,
    insert,
    repeat,
    replace_digit,
]


def rewritten(path: Path, content: bytes) -> Path:
    """A file of its own: the old one may still be mapped, and must not change under its readers."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path


def memory_peak(act: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(8))
def test_mutated_gguf_files_load_or_are_refused(tmp_path: Path, seed: int) -> None:
    data = write_llama(tmp_path / "whole.gguf", llama_weights(config=SMALL), SMALL, extra=EXTRA).read_bytes()
    header_len = data.index(b"blk.0.ffn_down.weight") + 200
    dice, path = random.Random(seed), tmp_path / "mutant.gguf"
    assert loads_or_refuses(tmp_path / "whole.gguf")
    loaded = [loads_or_refuses(rewritten(path, mutate(data, header_len, dice))) for _ in range(NUM_MUTANTS // 8)]
    assert 0 < sum(loaded) < len(loaded)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_safetensors_files_load_or_are_refused(tmp_path: Path, seed: int) -> None:
    folder = write_folder(tmp_path / "m", llama_weights(config=SMALL), SMALL)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    header_len = 8 + struct.unpack("<Q", data[:8])[0]
    dice = random.Random(seed)
    assert loads_or_refuses(folder)
    loaded = [(rewritten(path, mutate(data, header_len, dice)), loads_or_refuses(folder))[1] for _ in range(NUM_MUTANTS // 8)]
    assert not all(loaded)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_mutated_json_files_load_or_are_refused(tmp_path: Path, name: str) -> None:
    names = list(llama_weights(config=SMALL))
    folder = write_folder(tmp_path / "m", llama_weights(config=SMALL), SMALL, shards=(names[:4], names[4:]))
    data = (folder / name).read_bytes()
    dice = random.Random(name)
    assert loads_or_refuses(folder)
    for _ in range(NUM_MUTANTS // 8):
        rewritten(folder / name, mutate(data, len(data), dice))
        loads_or_refuses(folder)


def test_no_mutant_makes_a_large_allocation(tmp_path: Path) -> None:
    """A file of 50 kB may cost a few MB of Python objects, never what its counts claim."""
    data = write_llama(tmp_path / "whole.gguf", llama_weights(config=SMALL), SMALL, extra=EXTRA).read_bytes()
    header_len = data.index(b"blk.0.ffn_down.weight") + 200
    path, dice = tmp_path / "mutant.gguf", random.Random(99)
    for _ in range(30):
        rewritten(path, mutate(data, header_len, dice))
        assert memory_peak(lambda: loads_or_refuses(path)) < 16 << 20


@pytest.mark.parametrize("value", ABSURD)
def test_every_number_of_a_header_may_be_absurd(tmp_path: Path, value: int) -> None:
    """Each position of the first kilobyte is overwritten in turn, so that every count and offset is hit."""
    data = write_llama(tmp_path / "whole.gguf", llama_weights(config=SMALL), SMALL).read_bytes()
    path = tmp_path / "mutant.gguf"
    for at in range(4, 1024, 11):
        loads_or_refuses(rewritten(path, data[:at] + struct.pack("<Q", value) + data[at + 8 :]))


@pytest.mark.parametrize("count", [17, 1 << 20, (1 << 31) - 1])
def test_layers_that_are_not_there_are_refused_before_a_graph_is_built(tmp_path: Path, count: int) -> None:
    config = {**SMALL, "num_hidden_layers": count}
    for path in (
        write_llama(tmp_path / "a.gguf", llama_weights(config=SMALL), config),
        write_folder(tmp_path / "m", llama_weights(config=SMALL), config),
        write_folder(tmp_path / "n", llama_weights(config=SMALL), {"model_type": "gemma3", "text_config": config}),
    ):
        with pytest.raises(ModelFileError, match="layers, but has 11 tensors"):
            open_checkpoint(path)
