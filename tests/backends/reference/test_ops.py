import math

import numpy as np
import pytest

from gristmill.backends.reference import ops
from gristmill.graph.builder import RopeScaling

RNG = np.random.default_rng(5)


def random(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def test_rms_norm_gives_unit_rows_times_the_weight():
    x, weight = random(3, 64), random(64)
    normed = ops.rms_norm(x, weight, eps=1e-6, head_dim=0) / weight
    assert np.sqrt((normed**2).mean(axis=1)) == pytest.approx(np.ones(3), rel=1e-5)


def test_rms_norm_of_heads_is_that_of_each_head_alone():
    x, weight = random(3, 64), random(16)
    heads = ops.rms_norm(x, weight, eps=1e-6, head_dim=16)
    assert np.array_equal(heads[:, 16:32], ops.rms_norm(x[:, 16:32].copy(), weight, eps=1e-6, head_dim=0))


def test_linear_is_a_matrix_product_with_a_bias():
    x, weight, bias = random(5, 33), random(7, 33), random(7)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    assert ops.linear(x, weight, bias) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_row_of_linear_does_not_depend_on_the_others():
    x, weight = random(40, 96), random(70, 96)
    together = ops.linear(x, weight, None)
    for row in range(40):
        assert np.array_equal(together[row : row + 1], ops.linear(x[row : row + 1], weight, None))


def test_rope_turns_pairs_half_a_rotation_apart_and_keeps_the_rest():
    scaling = RopeScaling((0.5, 0.25))
    x = np.array([[1, 2, 3, 4, 9, 9]], np.float32)
    turned = ops.rope(x, np.array([2], np.int32), head_dim=6, scaling=scaling)[0]
    for i, angle in enumerate((1.0, 0.5)):
        a, b = x[0, i], x[0, i + 2]
        assert turned[i] == pytest.approx(a * math.cos(angle) - b * math.sin(angle), rel=1e-6)
        assert turned[i + 2] == pytest.approx(b * math.cos(angle) + a * math.sin(angle), rel=1e-6)
    assert list(turned[4:]) == [9, 9]


def test_rope_at_position_zero_only_scales_by_the_attention_factor():
    x = random(1, 8)
    assert np.array_equal(ops.rope(x, np.array([0], np.int32), head_dim=4, scaling=RopeScaling((1.0, 0.1), 2.0)), 2 * x)


def test_attention_over_one_position_is_its_value():
    v = random(1, 2, 16)
    out = ops.attend_row(random(4, 16), random(1, 2, 16), v, scale=0.25, softcap_value=0.0)
    assert np.array_equal(out.reshape(2, 2, 16), np.repeat(v[0][:, None], 2, axis=1))


def test_attention_is_a_softmax_over_positions_for_each_group_of_heads():
    q, k, v = random(4, 16), random(9, 2, 16), random(9, 2, 16)
    out = ops.attend_row(q, k, v, scale=0.3, softcap_value=2.0).reshape(4, 16)
    for head in range(4):
        scores = 2 * np.tanh(k[:, head // 2].astype(np.float64) @ q[head] * 0.3 / 2)
        weights = np.exp(scores) / np.exp(scores).sum()
        assert out[head] == pytest.approx(weights @ v[:, head // 2], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu", lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu_tanh", lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_activations_are_what_their_names_say(kind, function):
    gate, up = np.linspace(-20, 20, 81, dtype=np.float32)[None], random(1, 81)
    result = ops.act_mul(gate, up, kind=kind)
    assert result.dtype == np.float32
    assert result[0] == pytest.approx([function(float(x)) for x in gate[0]] * up[0], rel=1e-5, abs=1e-6)


def test_silu_of_extreme_values_has_its_limits():
    assert list(ops.silu(np.array([-1e4, 1e4], np.float32))) == [0, 1e4]
