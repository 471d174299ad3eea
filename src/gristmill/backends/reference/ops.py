"""The definition of every op, in numpy and f32. One row at a time where a sum is involved.

A matrix product of many rows may sum in another order than that of one row (BLAS picks its kernel by shape), so
rows are multiplied one by one: a row's result never depends on the batch it ran in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from gristmill.graph.builder import RopeScaling

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def rms_norm(x: F32, weight: F32, *, eps: float, head_dim: int) -> F32:
    """Scale each row (or each run of `head_dim` columns) to unit root mean square, then by `weight`: [T, D] -> [T, D]."""
    width = head_dim or x.shape[1]
    heads = x.reshape(x.shape[0], x.shape[1] // width, width)  # x may have no rows, as logits rows may
    mean_square = np.mean(np.square(heads), axis=-1, keepdims=True)
    normed: F32 = heads / np.sqrt(mean_square + np.float32(eps)) * weight
    return normed.reshape(x.shape)


def linear(x: F32, weight: F32, bias: F32 | None) -> F32:
    """x[T, K] @ weight[N, K].T + bias[N] -> [T, N], each row on its own."""
    out = np.empty((x.shape[0], weight.shape[0]), np.float32)
    for row in range(x.shape[0]):
        np.matmul(weight, x[row], out=out[row])
    return out if bias is None else out + bias


def rope(x: F32, positions: I32, *, head_dim: int, scaling: RopeScaling) -> F32:
    """Rotate the pairs (i, i + half) of each head by position * inv_freq[i]; angles, cos and sin in f64, rounded once."""
    half = len(scaling.inv_freq)
    angles = positions.astype(np.float64)[:, None, None] * np.array(scaling.inv_freq)
    cos = (np.cos(angles) * scaling.attention_factor).astype(np.float32)
    sin = (np.sin(angles) * scaling.attention_factor).astype(np.float32)
    out = x.reshape(x.shape[0], -1, head_dim).copy()
    first, second = out[..., :half].copy(), out[..., half : 2 * half].copy()
    out[..., :half] = first * cos - second * sin
    out[..., half : 2 * half] = second * cos + first * sin
    return out.reshape(x.shape)


def attend_row(q: F32, k: F32, v: F32, *, scale: float, softcap_value: float) -> F32:
    """Attention of one token over the positions it sees: q[H, D], k and v[L, Hkv, D] -> [H * D]."""
    num_heads, head_dim = q.shape
    grouped = q.reshape(k.shape[1], -1, head_dim)  # [Hkv, H / Hkv, D]
    scores = np.matmul(grouped, k.transpose(1, 2, 0)) * np.float32(scale)
    if softcap_value > 0:
        scores = softcap(scores, cap=softcap_value)
    probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    attended: F32 = np.matmul(probabilities, v.transpose(1, 0, 2))
    return attended.reshape(num_heads * head_dim)


def act_mul(gate: F32, up: F32, *, kind: str) -> F32:
    """act(gate) * up."""
    return ACTIVATIONS[kind](gate) * up


def softcap(x: F32, *, cap: float) -> F32:
    """Cap * tanh(x / cap)."""
    capped: F32 = np.tanh(x / np.float32(cap)) * np.float32(cap)
    return capped


def silu(x: F32) -> F32:
    """X / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, -0.
        return np.asarray(x / (1.0 + np.exp(-x)), np.float32)


def gelu_tanh(x: F32) -> F32:
    """Hendrycks & Gimpel's approximation: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return np.asarray(0.5 * x * (1.0 + np.tanh(inner)), np.float32)


def gelu(x: F32) -> F32:
    """X / 2 * (1 + erf(x / sqrt 2)), erf in f64."""
    erf = np.fromiter((math.erf(value) for value in x.ravel().astype(np.float64) / math.sqrt(2)), np.float64, x.size)
    return (0.5 * x * (1.0 + erf.reshape(x.shape))).astype(np.float32)


ACTIVATIONS: Mapping[str, Callable[[F32], F32]] = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu}
