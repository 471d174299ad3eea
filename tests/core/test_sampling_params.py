import math

import numpy as np
import pytest

from gristmill.core.errors import InvalidRequest
from gristmill.core.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -1.0},
        {"top_k": -2},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"n": 0},
        {"logprobs": 21},
        {"seed": 2**64},
        {"max_tokens": -1},
        {"stop": ("",)},
        {"stop": tuple("abcdefghijklmnopq")},
        {"logit_bias": {3: 101.0}},
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**field)  # type: ignore[arg-type]
    assert caught.value.param == next(iter(field))
    assert caught.value.mend


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": "hot"},
        {"temperature": None},
        {"top_p": True},
        {"top_k": 1.5},
        {"min_tokens": 1.5},
        {"n": 1.5},
        {"n": True},
        {"max_tokens": 1.5},
        {"seed": 1.5},
        {"logprobs": True},
        {"truncate_prompt_tokens": 1.5},
        {"ignore_eos": None},
        {"skip_special_tokens": "no"},
        {"stop": None},
        {"stop": [5]},
        {"stop": b"x"},
        {"stop_token_ids": ["a"]},
        {"stop_token_ids": 5},
        {"logit_bias": [1]},
        {"logit_bias": {1.5: 1}},
        {"logit_bias": {1: "a"}},
    ],
    ids=repr,
)
def test_a_wrong_type_is_refused_by_name(field: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**field)  # type: ignore[arg-type]
    assert caught.value.param == next(iter(field))
    assert caught.value.mend


def test_numpys_numbers_are_taken_as_pythons() -> None:
    params = SamplingParams(np.float32(0.5), seed=np.int64(7), stop_token_ids=np.array([1, 2]), logit_bias={np.int32(3): 1})  # type: ignore[arg-type]
    assert (type(params.seed), params.seed, params.temperature) == (int, 7, 0.5)
    assert (params.stop_token_ids, params.logit_bias) == ((1, 2), {3: 1})


def test_zero_temperature_and_minus_one_top_k_are_accepted() -> None:
    params = SamplingParams(temperature=0.0, top_k=-1, stop="end")  # type: ignore[arg-type]
    assert params.top_k == 0
    assert params.stop == ("end",)
