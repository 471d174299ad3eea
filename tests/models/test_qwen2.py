import pytest
from tests.models.test_llama import SMALL

from gristmill.core.errors import ModelFileError
from gristmill.graph.recorder import record
from gristmill.models.qwen2 import ARCHITECTURE, parse, weight_rules


def test_q_k_and_v_have_biases_and_the_output_has_none():
    names = [name for name in record(ARCHITECTURE.build, parse(SMALL, None)).weights if name.endswith("bias")]
    assert names == [f"model.layers.{layer}.self_attn.{part}_proj.bias" for layer in (0, 1) for part in "qkv"]
    assert weight_rules(parse(SMALL, None)) == {}


def test_a_window_counts_only_if_it_is_switched_on():
    assert parse(SMALL | {"sliding_window": 16, "use_sliding_window": False}, None).windows == (0, 0)
    on = SMALL | {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}
    assert parse(on, None).windows == (0, 16)
    assert parse(on | {"layer_types": ["sliding_attention", "full_attention"]}, None).windows == (16, 0)


def test_layer_types_must_name_every_layer():
    with pytest.raises(ModelFileError, match="layer_types"):
        parse(SMALL | {"use_sliding_window": True, "layer_types": ["full_attention"]}, None)
