"""Reads the goldens that `tools/make_goldens.py` wrote."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.graph.ir import Weight
from gristmill.graph.weight_rule import WeightRule
from gristmill.quant.formats import PackedTensor
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.load import load

ROOT = Path(__file__).parents[1] / "data" / "goldens"
TOLERANCE = 1e-3  # max |difference| / max |reference|, per row of logits


@dataclass(frozen=True)
class Golden:
    """A tiny model, a prompt and what Hugging Face made of it."""

    folder: Path
    config: dict[str, Any]
    max_model_len: int
    prompt_ids: list[int]
    logits: np.ndarray  # [P, V]
    greedy_ids: list[int]


def read_golden(folder: Path) -> Golden:
    tensors, metadata = read_tensors(folder / "golden.safetensors")
    return Golden(
        folder,
        json.loads((folder / "config.json").read_text()),
        int(metadata["max_model_len"]),
        tensors["prompt_ids"][1].tolist(),
        tensors["logits"][1],
        tensors["greedy_ids"][1].tolist(),
    )


def read_tensors(path: Path) -> tuple[dict[str, tuple[str, np.ndarray]], dict[str, str]]:
    """Every tensor with its stored type (bf16 as u16), and the metadata."""
    data = path.read_bytes()
    (header_len,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_len])
    metadata, body = header.pop("__metadata__", {}), data[8 + header_len :]
    types = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "I32": np.int32}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = entry["dtype"], np.frombuffer(body[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def packed_weights(golden: Golden, weights: Mapping[str, Weight], rules: Mapping[str, WeightRule]) -> dict[str, PackedTensor]:
    """The graph's weights, loaded from the folder as any Hugging Face model's are."""
    return load(open_checkpoint(golden.folder), weights, rules)
