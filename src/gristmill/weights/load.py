"""From a checkpoint to the packed weights that a graph reads. One tensor is in flight at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import ModelFileError
from gristmill.graph.ir import Weight
from gristmill.graph.weight_rule import WeightRule
from gristmill.quant.block_types import SHAPES
from gristmill.quant.formats import Format, PackedTensor
from gristmill.quant.pack import pack_floats
from gristmill.quant.published import dequantize
from gristmill.weights.checkpoint import Checkpoint
from gristmill.weights.pack_rows import Packer, StoredRows, pack_rows
from gristmill.weights.stored import StoredTensor


def load(
    checkpoint: Checkpoint, weights: Mapping[str, Weight], rules: Mapping[str, WeightRule], pack: Packer = pack_rows
) -> dict[str, PackedTensor]:
    """Read, check and pack every weight of a graph; weights made of the same rows share one copy.

    `pack` brings a matrix into layout B32. Raises: ModelFileError naming the tensor and both shapes.
    """
    check(checkpoint, weights, rules)
    packed: dict[WeightRule, PackedTensor] = {}
    for weight in weights.values():
        rule = _rule(weight, rules)
        if rule not in packed:
            stored = checkpoint.stored(rule.source)
            packed[rule] = _packed(stored, weight, rule, pack, adds_one=rule.add_one and not checkpoint.norms_include_one)
            stored.forget()
    return {name: packed[_rule(weight, rules)] for name, weight in weights.items()}


def packed_bytes(checkpoint: Checkpoint, weights: Mapping[str, Weight], rules: Mapping[str, WeightRule]) -> int:
    """Return how many bytes `load` will make, after the same checks. Raises: ModelFileError."""
    check(checkpoint, weights, rules)
    sizes = {_rule(weight, rules): _size(checkpoint.stored(_rule(weight, rules).source), weight) for weight in weights.values()}
    return sum(sizes.values())


def check(checkpoint: Checkpoint, weights: Mapping[str, Weight], rules: Mapping[str, WeightRule]) -> None:
    """Compare every weight's shape with the stored tensor's. Raises: ModelFileError naming the tensor and both."""
    ends: dict[str, int] = {}
    for weight in weights.values():
        rule = _rule(weight, rules)
        if rule.rows is not None:
            ends[rule.source] = max(ends.get(rule.source, 0), rule.rows[1])
    for weight in weights.values():
        rule = _rule(weight, rules)
        expected = weight.shape if rule.rows is None else (ends[rule.source], *weight.shape[1:])
        if (stored := checkpoint.stored(rule.source)).shape != expected:
            raise ModelFileError(
                f"the tensor {rule.source} has the shape {_shape(stored.shape)}; the configuration needs {_shape(expected)}.",
                "take the weights and the configuration from the same source.",
            )


def _rule(weight: Weight, rules: Mapping[str, WeightRule]) -> WeightRule:
    return rules.get(weight.name) or WeightRule(weight.name)


def _size(stored: StoredTensor, weight: Weight) -> int:
    if len(weight.shape) == 1:
        return 4 * weight.shape[0]
    return SHAPES[stored.type].format.packed_bytes(weight.shape[0], weight.shape[1])


def _packed(stored: StoredTensor, weight: Weight, rule: WeightRule, pack: Packer, *, adds_one: bool) -> PackedTensor:
    if len(weight.shape) == 1:
        return _vector(stored, rule, adds_one)
    n, k = weight.shape
    return pack(StoredRows(rule.source, stored.type, stored.raw, n, k, _row_ids(stored, rule)))


def _vector(stored: StoredTensor, rule: WeightRule, adds_one: bool) -> PackedTensor:
    values = dequantize(stored.type, stored.raw, 1, stored.shape[0])[0]
    if (row_ids := _row_ids(stored, rule)) is not None:
        values = values[row_ids]
    return pack_floats(values + np.float32(1) if adds_one else values, Format.F32)


def _row_ids(stored: StoredTensor, rule: WeightRule) -> NDArray[np.int64] | None:
    if rule.rows is None:
        return stored.row_ids
    begin, end = rule.rows
    return np.arange(begin, end, dtype=np.int64) if stored.row_ids is None else stored.row_ids[begin:end]


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
