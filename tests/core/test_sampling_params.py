import math

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


def test_zero_temperature_and_minus_one_top_k_are_accepted() -> None:
    params = SamplingParams(temperature=0.0, top_k=-1, stop="end")  # type: ignore[arg-type]
    assert params.top_k == 0
    assert params.stop == ("end",)
