"""How a token is chosen from a row of logits: the definition that every backend gives the same bits as.

All arithmetic is IEEE binary32 ("f32") with one rounding for each operation written (no fused multiply-add:
C++ compiles this with -ffp-contract=off), or exact integers. No result depends on the order of a sum, so
any vector width and any split give the same token and the same logprob bits for the same logits.

Weights. For x <= m: z = x - m, divided by `temperature` if that is not 1; t = z * f32(log2 e);
n = floor(t); f = t - n; p = ((((((C6*f + C5)*f + C4)*f + C3)*f + C2)*f + C1)*f + 1, the constants below;
    weight = floor(p * 2^(n + 34)) if n >= -34, else 0:          an integer 0 .. 2^34, exact in f32.
Sums of weights are exact integers (below 2^53 for vocabularies under 2^19: doubles hold them too).

One row of raw logits l[V], in this order:
 1. is_finite = every l is finite. If not, the token is 0 and the rest is skipped.
 2. Logprobs, of the raw logits, if asked: m = max l; S = sum of the weights with temperature 1;
    logprob(i) = f32((f64(l_i) - f64(m)) - ln(f64(S) * 2^-34)), computed in f64 and rounded once. The most
    likely k: larger l first, ties to the lower id.
 3. x = l. x[id] += bias for each bias; x[id] = -inf for each banned id.
 4. Repetition penalty r != 1, each distinct id of the history (prompt and output) once:
    x[id] = x[id] / r if x[id] > 0 else x[id] * r.
 5. Each distinct id of the output part of the history, with its count c: if frequency penalty != 0,
    x[id] = x[id] - frequency * f32(c) (two roundings); then, if presence penalty != 0, x[id] = x[id] - presence.
 6. m = max x. If temperature is 0, or m is not finite: the token is the lowest id with x = m.
 7. w = weights of x with the temperature; W = their sum.
 8. "Order" means larger x first (x of step 5, before temperature), ties to the lower id.
    min_p > 0: drop i if w_i < min_p * 2^34 (f32; exact, a scaling by a power of two).
    top_k > 0: keep the first top_k in order.
    top_p < 1: U = sum of the w still kept; walk them in order with c = sum of the w before this one and
    keep while f64(c) < f64(top_p) * f64(U); the first is always kept.
 9. U = sum of the w still kept; target = floor(random_u64(seed, choice, position) * U / 2^64), exact (a
    128-bit product); the token is the first *in id order*, among the kept, whose running sum exceeds target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gristmill.sampling.philox import random_u64

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

WEIGHT_BITS = 34
LOG2_E = np.float32(1.4426950408889634)
# 2^f on [0, 1), relative error under 2^-23: C6 .. C1, then 1. Fitted for this file (weighted least squares).
EXP2_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (
        0.0002161293086828664,
        0.0012467841152101755,
        0.00967545248568058,
        0.055485282093286514,
        0.2402293086051941,
        0.6931470632553101,
        1.0,
    )
)

_NO_IDS: I32 = np.zeros(0, np.int32)
_NO_VALUES: F32 = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row wants its token chosen; the defaults are neutral (greedy, nothing asked)."""

    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = no limit
    top_p: float = 1.0  # 1 = no limit
    min_p: float = 0.0  # 0 = no limit
    repetition_penalty: float = 1.0  # 1 = none
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0  # u64
    choice: int = 0
    position: int = 0
    bias_ids: I32 = field(default_factory=lambda: _NO_IDS)
    bias_values: F32 = field(default_factory=lambda: _NO_VALUES)
    banned_ids: I32 = field(default_factory=lambda: _NO_IDS)
    history_ids: I32 = field(default_factory=lambda: _NO_IDS)  # prompt first
    history_prompt_len: int = 0
    num_logprobs: int = -1  # -1 = none, k = the chosen token and the k most likely


@dataclass(frozen=True, slots=True)
class SampledRow:
    """What was chosen. `logprob` is 0 and the lists are empty where logprobs were not asked."""

    token_id: int
    is_finite: bool
    logprob: float
    top_ids: I32  # [num_logprobs]
    top_logprobs: F32  # [num_logprobs]


def sample(logits: F32, row: RowSampling) -> SampledRow:
    """Choose a token from raw `logits` [V] as the module defines; the array is not changed."""
    if not np.isfinite(logits).all():
        return SampledRow(0, False, 0.0, _NO_IDS, _NO_VALUES)
    token_id = choose(adjusted(logits, row), row)
    if row.num_logprobs < 0:
        return SampledRow(token_id, True, 0.0, _NO_IDS, _NO_VALUES)
    logprobs = log_softmax(logits)
    top_ids = in_order(logits)[: row.num_logprobs].astype(np.int32)
    return SampledRow(token_id, True, float(logprobs[token_id]), top_ids, logprobs[top_ids])


def weights(x: F32, temperature: float) -> F32:
    """Return exp((x - max x) / temperature) in units of 2^-34, rounded down: integers 0 .. 2^34 held in f32."""
    with np.errstate(over="ignore"):
        z = x - x.max()
        if temperature != 1.0:
            z = z / np.float32(temperature)
        t = np.maximum(z * LOG2_E, np.float32(-WEIGHT_BITS - 1))
    n = np.floor(t)
    f = t - n
    p = np.full_like(f, EXP2_COEFFICIENTS[0])
    for coefficient in EXP2_COEFFICIENTS[1:]:
        p = p * f + coefficient
    scaled: F32 = np.floor(np.ldexp(p, n.astype(np.int32) + WEIGHT_BITS))
    scaled[n < -WEIGHT_BITS] = 0
    return scaled


def log_softmax(logits: F32) -> F32:
    """Log probabilities of raw logits [V], as step 2 defines them."""
    total = int(weights(logits, 1.0).astype(np.int64).sum())
    shifted = logits.astype(np.float64) - np.float64(logits.max())
    return np.asarray(shifted - math.log(total * 2.0**-WEIGHT_BITS), np.float32)


def in_order(x: F32) -> I64:
    """Token ids from the most to the least likely, ties to the lower id."""
    return np.argsort(-x, kind="stable")


def adjusted(logits: F32, row: RowSampling) -> F32:
    """Return a copy of `logits` after bias, bans and penalties (steps 3 to 5)."""
    x = logits.copy()
    x[row.bias_ids] += row.bias_values
    x[row.banned_ids] = -np.inf
    with np.errstate(over="ignore"):
        if row.repetition_penalty != 1.0:
            _penalize_repetition(x, np.unique(row.history_ids), np.float32(row.repetition_penalty))
        ids, counts = np.unique(row.history_ids[row.history_prompt_len :], return_counts=True)
        if row.frequency_penalty != 0.0:
            x[ids] -= np.float32(row.frequency_penalty) * counts.astype(np.float32)
        if row.presence_penalty != 0.0:
            x[ids] -= np.float32(row.presence_penalty)
    return x


def choose(x: F32, row: RowSampling) -> int:
    """Return the token chosen from adjusted logits (steps 6 to 9)."""
    if row.temperature == 0.0 or not np.isfinite(x.max()):
        return int(np.argmax(x))
    w = weights(x, row.temperature)
    w[~kept(x, w, row)] = 0
    running = np.cumsum(w.astype(np.int64))
    target = random_u64(row.seed, row.choice, row.position) * int(running[-1]) >> 64
    return int(np.searchsorted(running, target, side="right"))


def kept(x: F32, w: F32, row: RowSampling) -> NDArray[np.bool_]:
    """Return which tokens [V] survive min_p, top_k and top_p (step 8)."""
    keep = w >= np.float32(row.min_p) * np.float32(2.0**WEIGHT_BITS)
    if row.top_k == 0 and row.top_p >= 1.0:
        return keep
    order = in_order(x)
    order = order[keep[order]]
    if row.top_k > 0:
        order = order[: row.top_k]
    if row.top_p < 1.0:
        inclusive = np.cumsum(w[order].astype(np.int64))
        limit = np.float64(np.float32(row.top_p)) * np.float64(inclusive[-1])
        before = (inclusive - w[order].astype(np.int64)).astype(np.float64)
        order = order[: max(1, int(np.count_nonzero(before < limit)))]
    keep[:] = False
    keep[order] = True
    return keep


def _penalize_repetition(x: F32, ids: I32, penalty: np.float32) -> None:
    values = x[ids]
    x[ids] = np.where(values > 0, values / penalty, values * penalty)
