import math

import pytest

from gristmill.core.errors import ModelFileError, UnsupportedArchitecture
from gristmill.graph.rope import frequencies

BASE = {"rope_theta": 10000.0, "max_position_embeddings": 4096}


def with_scaling(**scaling):
    return BASE | {"rope_scaling": scaling}


def test_the_default_is_a_geometric_series():
    scaling = frequencies(BASE, 64)
    assert len(scaling.inv_freq) == 32
    assert scaling.inv_freq[:2] == (1.0, pytest.approx(10000 ** (-2 / 64)))
    assert scaling.attention_factor == 1.0


def test_both_shapes_of_the_configuration_mean_the_same():
    scaling = {"rope_type": "linear", "factor": 4.0}
    old = frequencies(BASE | {"rope_scaling": scaling, "partial_rotary_factor": 0.5}, 64)
    new = frequencies({"rope_parameters": scaling | {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}}, 64)
    assert old == new
    assert len(old.inv_freq) == 16


def test_a_kind_may_be_called_type():
    assert frequencies(with_scaling(type="linear", factor=2.0), 64).inv_freq[0] == 0.5


def test_llama3_keeps_short_waves_and_divides_long_ones():
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    plain = frequencies(BASE | {"rope_theta": 500000.0}, 128).inv_freq
    scaled = frequencies(with_scaling(rope_type="llama3", **llama3) | {"rope_theta": 500000.0}, 128).inv_freq
    assert scaled[0] == plain[0]
    assert scaled[-1] == plain[-1] / 8
    middle = [i for i in range(64) if plain[i] / 8 < scaled[i] < plain[i]]
    assert all(8192 / 4 <= 2 * math.pi / plain[i] <= 8192 for i in middle)
    assert middle


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_strengthens_attention():
    plain = frequencies(BASE, 64).inv_freq
    yarn = frequencies(with_scaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024), 64)
    assert yarn.inv_freq[0] == plain[0]
    assert yarn.inv_freq[-1] == plain[-1] / 4
    assert yarn.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_takes_a_given_attention_factor_or_the_ratio_of_two_scales():
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 1024}
    assert frequencies(with_scaling(**yarn, attention_factor=1.25), 64).attention_factor == 1.25
    assert frequencies(with_scaling(**yarn, mscale=1.0, mscale_all_dim=1.0), 64).attention_factor == 1.0


@pytest.mark.parametrize(("max_model_len", "divisor"), [(1024, 1.0), (1025, 8.0), (None, 8.0)])
def test_longrope_takes_one_list_for_the_whole_deployment(max_model_len, divisor):
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [8.0] * 32}
    config = with_scaling(**scaling, original_max_position_embeddings=1024)
    found = frequencies(config, 64, max_model_len)
    assert found.inv_freq[0] == 1 / divisor
    assert found.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(1024)))


def test_factors_of_a_gguf_divide_the_frequencies():
    plain = frequencies(BASE, 8).inv_freq
    factors = [1.0, 2.0, 4.0, 8.0]
    scaled = frequencies(with_scaling(rope_type="gguf_factors", factors=factors), 8).inv_freq
    assert scaled == tuple(f / factor for f, factor in zip(plain, factors, strict=True))


@pytest.mark.parametrize("kind", ["dynamic", "mrope", "proportional"])
def test_another_kind_is_refused_by_name(kind):
    with pytest.raises(UnsupportedArchitecture, match=kind):
        frequencies(with_scaling(rope_type=kind, factor=2.0), 64)


@pytest.mark.parametrize(
    "config",
    [
        with_scaling(rope_type="linear"),
        with_scaling(rope_type="linear", factor=0),
        with_scaling(rope_type="linear", factor="2"),
        with_scaling(rope_type="longrope", short_factor=[1.0], long_factor=[1.0] * 32),
        with_scaling(rope_type="gguf_factors", factors=[float("nan")] * 32),
        with_scaling(rope_type="gguf_factors", factors=7),
        with_scaling(rope_type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0),
        BASE | {"rope_scaling": "linear"},
        BASE | {"rope_theta": float("inf")},
        BASE | {"rope_theta": 5e-324},
        BASE | {"rope_theta": 10**400},
        with_scaling(rope_type="longrope", short_factor=[1.0] * 32, long_factor=[1.0] * 32, original_max_position_embeddings=1),
        BASE | {"partial_rotary_factor": 2.0},
        BASE | {"partial_rotary_factor": 1e300},
        BASE | {"partial_rotary_factor": 0.01},
    ],
)
def test_a_broken_value_is_refused(config):
    with pytest.raises(ModelFileError):
        frequencies(config, 64)
