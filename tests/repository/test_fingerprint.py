"""The fingerprint names all that equal bytes are promised for."""

import json
import shutil
from pathlib import Path

import pytest
from tests.models.goldens import ROOT
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gristmill import LLM


@pytest.fixture
def longrope(tmp_path: Path) -> Path:
    """A tiny phi3 whose original context is 32 tokens of 128."""
    folder = shutil.copytree(ROOT / "phi3-longrope-long", tmp_path / "longrope")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:size]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_longrope_s_two_sides_are_two_fingerprints(longrope: Path) -> None:
    found = []
    for max_model_len in (16, 32, 33, 128):
        with LLM(str(longrope), max_model_len=max_model_len) as llm:
            found.append(llm.fingerprint)
    assert found[0] == found[1] != found[2] == found[3]
