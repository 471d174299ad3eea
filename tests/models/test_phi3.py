import pytest
from tests.models.test_llama import SMALL

from gristmill.graph.recorder import record
from gristmill.graph.weight_rule import WeightRule
from gristmill.models.phi3 import ARCHITECTURE, parse, weight_rules

LONG = {"type": "su", "short_factor": [1.0] * 24, "long_factor": [4.0] * 24}
PARTIAL = SMALL | {"partial_rotary_factor": 0.75, "rope_scaling": LONG, "original_max_position_embeddings": 32}


def test_fused_tensors_are_cut_by_rows():
    rules = weight_rules(parse(SMALL | {"num_key_value_heads": 1}, None))
    qkv, gate_up = "model.layers.1.self_attn.qkv_proj.weight", "model.layers.1.mlp.gate_up_proj.weight"
    assert rules["model.layers.1.self_attn.q_proj.weight"] == WeightRule(qkv, (0, 128))
    assert rules["model.layers.1.self_attn.k_proj.weight"] == WeightRule(qkv, (128, 192))
    assert rules["model.layers.1.self_attn.v_proj.weight"] == WeightRule(qkv, (192, 256))
    assert rules["model.layers.1.mlp.gate_proj.weight"] == WeightRule(gate_up, (0, 96))
    assert rules["model.layers.1.mlp.up_proj.weight"] == WeightRule(gate_up, (96, 192))


def test_rules_cut_exactly_the_shapes_that_the_graph_reads():
    config = parse(SMALL | {"num_key_value_heads": 1}, None)
    graph = record(ARCHITECTURE.build, config)
    for name, rule in weight_rules(config).items():
        assert rule.rows is not None
        assert graph.weights[name].shape[0] == rule.rows[1] - rule.rows[0]


def test_only_part_of_a_head_is_rotated():
    assert len(parse(PARTIAL, None).rope.inv_freq) == 24


@pytest.mark.parametrize(("max_model_len", "factor"), [(32, 1.0), (33, 4.0), (None, 4.0)])
def test_long_factors_serve_a_deployment_that_exceeds_the_original_context(max_model_len, factor):
    assert parse(PARTIAL, max_model_len).rope.inv_freq[0] == 1 / factor


def test_the_old_name_yarn_means_longrope_here():
    assert parse(PARTIAL | {"rope_scaling": LONG | {"type": "yarn"}}, None) == parse(PARTIAL, None)
