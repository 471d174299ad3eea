import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.sampling.philox import random_u64
from gristmill.sampling.sampler import RowSampling, adjusted, in_order, kept, log_softmax, sample, weights

RNG = np.random.default_rng(7)
LOGITS = (RNG.standard_normal(500) * 4).astype(np.float32)


def ids(*values):
    return np.array(values, np.int32)


def row(*values):
    return np.array(values, np.float32)


def survivors(logits, **options):
    how = RowSampling(temperature=options.pop("temperature", 1.0), **options)
    return np.flatnonzero(kept(logits, weights(logits, how.temperature), how)).tolist()


def test_weights_are_the_exponential_within_a_few_units_in_the_last_place():
    x = np.linspace(-20, 0, 10001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64)) * 2**34
    assert (np.abs(weights(x, 1.0) - exact) <= 1 + 4e-6 * exact).all()  # 1: rounded down
    assert weights(x, 1.0)[-1] == 2**34


def test_weights_are_integers_and_vanish_below_2_to_minus_34():
    w = weights((RNG.standard_normal(5000) * 10).astype(np.float32), 0.7)
    assert np.array_equal(w, np.floor(w))
    assert weights(row(0, -23.5, -24, -1e30, -np.inf), 1.0)[1:].tolist() == [1, 0, 0, 0]


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=50), st.floats(2**-20, 100, width=32))
@settings(max_examples=200, deadline=None)
def test_weights_never_grow_as_logits_fall(values, temperature):
    x = np.sort(np.array(values, np.float32))
    w = weights(x, temperature)
    assert w[-1] == 2**34
    assert (np.diff(w) >= -w[1:] * 2.0**-22).all()


def test_logprobs_are_those_of_the_raw_logits():
    how = RowSampling(temperature=0.5, top_k=3, repetition_penalty=2.0, history_ids=ids(1, 2), num_logprobs=5)
    chosen = sample(LOGITS, how)
    exact = LOGITS.astype(np.float64) - np.log(np.exp(LOGITS.astype(np.float64)).sum())
    assert log_softmax(LOGITS) == pytest.approx(exact, abs=2e-6)
    assert chosen.logprob == log_softmax(LOGITS)[chosen.token_id]
    assert chosen.top_ids.tolist() == np.argsort(-LOGITS, kind="stable")[:5].tolist()
    assert chosen.top_logprobs.tolist() == log_softmax(LOGITS)[chosen.top_ids].tolist()


def test_no_logprobs_are_made_unless_asked():
    assert sample(LOGITS, RowSampling()).top_ids.size == 0
    assert sample(LOGITS, RowSampling(num_logprobs=0)).logprob < 0
    assert sample(LOGITS, RowSampling(num_logprobs=0)).top_ids.size == 0


def test_ties_go_to_the_lower_id():
    tied = row(1, 3, 2, 3, 3)
    assert in_order(tied).tolist() == [1, 3, 4, 2, 0]
    assert sample(tied, RowSampling()).token_id == 1
    assert survivors(tied, top_k=2) == [1, 3]
    assert sample(tied, RowSampling(num_logprobs=4)).top_ids.tolist() == [1, 3, 4, 2]
    assert survivors(row(0, 0, 0, 0), top_p=0.5) == [0, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_with_a_value_that_is_not_finite_is_flagged(bad):
    logits = LOGITS.copy()
    logits[17] = bad
    result = sample(logits, RowSampling(temperature=1.0, num_logprobs=3))
    assert (result.is_finite, result.token_id, result.top_ids.size) == (False, 0, 0)


def test_bias_and_bans_come_first():
    x = adjusted(row(1, 2, 3), RowSampling(bias_ids=ids(0), bias_values=row(5), banned_ids=ids(2)))
    assert x.tolist() == [6, 2, -np.inf]
    biased = RowSampling(bias_ids=ids(0), bias_values=row(-3), repetition_penalty=2.0, history_ids=ids(0))
    assert adjusted(row(1, 2), biased)[0] == -4  # 1 - 3 = -2 is negative when the penalty multiplies it


def test_repetition_counts_prompt_and_output_once():
    how = RowSampling(repetition_penalty=2.0, history_ids=ids(0, 1, 1, 3), history_prompt_len=2)
    assert adjusted(row(4, -4, 4, 0), how).tolist() == [2, -8, 4, 0]


def test_frequency_and_presence_count_output_only():
    how = RowSampling(frequency_penalty=0.5, presence_penalty=0.25, history_ids=ids(0, 1, 1, 2), history_prompt_len=1)
    assert adjusted(row(1, 1, 1, 1), how).tolist() == [1, -0.25, 0.25, 1]


def test_the_callers_logits_stay_as_they_are():
    logits = LOGITS.copy()
    sample(logits, RowSampling(temperature=1.0, bias_ids=ids(3), bias_values=row(9), banned_ids=ids(4)))
    assert np.array_equal(logits, LOGITS)


def test_greedy_sees_penalties_and_bans():
    assert sample(row(1, 2, 3), RowSampling(banned_ids=ids(2))).token_id == 1
    assert sample(row(1, 2, 3), RowSampling(banned_ids=ids(0, 1, 2), temperature=1.0)).token_id == 0


def test_min_p_is_relative_to_the_most_likely():
    x = np.log(np.array([0.5, 0.3, 0.04, 0.16])).astype(np.float32)
    assert survivors(x, min_p=0.1) == [0, 1, 3]
    assert survivors(x, min_p=0.1, temperature=4.0) == [0, 1, 2, 3]


def test_top_p_keeps_the_fewest_that_reach_the_mass():
    x = np.log(np.array([0.1, 0.4, 0.2, 0.3])).astype(np.float32)
    assert survivors(x, top_p=0.75) == [1, 2, 3]
    assert survivors(x, top_p=0.65) == [1, 3]
    assert survivors(x, top_p=1e-9) == [1]


def test_top_p_is_of_the_mass_that_min_p_and_top_k_left():
    x = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    assert survivors(x, top_k=2, top_p=0.6) == [0, 1]
    assert survivors(x, top_k=2, top_p=0.55) == [0]
    assert survivors(x, min_p=0.3, top_p=0.75) == [0, 1]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-6}])
def test_the_narrowest_sampling_is_greedy(options):
    for seed in range(20):
        assert sample(LOGITS, RowSampling(**({"temperature": 1.0} | options), seed=seed)).token_id == LOGITS.argmax()


def test_a_neutral_option_changes_nothing():
    for seed in range(20):
        neutral = RowSampling(temperature=1.0, seed=seed, top_k=500, min_p=0.0, top_p=1.0)
        assert sample(LOGITS, neutral).token_id == sample(LOGITS, RowSampling(temperature=1.0, seed=seed)).token_id


def test_the_draw_is_the_inverse_of_the_running_sum_in_id_order():
    x = np.log(np.array([0.25, 0.25, 0.5])).astype(np.float32)
    for position in range(50):
        share = random_u64(3, 1, position) / 2**64
        expected = 0 if share < 0.25 else 1 if share < 0.5 else 2
        assert sample(x, RowSampling(temperature=1.0, seed=3, choice=1, position=position)).token_id == expected


@pytest.mark.parametrize(
    ("options", "allowed"),
    [({}, 6), ({"top_k": 3}, 3), ({"top_p": 0.8}, 3), ({"min_p": 0.3}, 3), ({"temperature": 2.0}, 6)],
)
def test_frequencies_follow_the_probabilities_of_what_is_kept(options, allowed):
    x = np.log(np.array([0.3, 0.05, 0.15, 0.4, 0.03, 0.07])).astype(np.float32)
    temperature = options.get("temperature", 1.0)
    expected = np.exp(x.astype(np.float64) / temperature)
    expected[np.argsort(-x)[allowed:]] = 0
    expected /= expected.sum()
    how = {"temperature": 1.0} | options
    draws = [sample(x, RowSampling(**how, seed=1234, position=position)).token_id for position in range(6000)]
    found = np.bincount(draws, minlength=6) / 6000
    assert np.abs(found - expected).max() < 4 * np.sqrt(0.25 / 6000)
    assert found[expected == 0].sum() == 0


def test_known_tokens_stay_as_they_are():
    how = [RowSampling(temperature=0.8, top_p=0.95, top_k=40, seed=2**63 + 5, choice=1, position=p) for p in range(12)]
    known = [410, 361, 329, 342, 361, 375, 478, 342, 329, 416, 204, 58]
    assert [sample(LOGITS / 2, row).token_id for row in how] == known
