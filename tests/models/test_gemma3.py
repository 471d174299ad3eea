import pytest

from gristmill.core.errors import UnsupportedArchitecture
from gristmill.graph.recorder import record
from gristmill.graph.weight_rule import WeightRule
from gristmill.models.gemma3 import ARCHITECTURE, build, parse, weight_rules

TEXT = {"model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 7}


def attend_nodes(config):
    return [node for node in record(ARCHITECTURE.build, config).nodes if node.op == "attend"]


def test_every_sixth_layer_is_global_if_the_configuration_lists_no_types():
    config = parse(TEXT | {"sliding_window": 512}, None)
    assert [node.attributes["window"] for node in attend_nodes(config)] == [512] * 5 + [0, 512]


def test_global_layers_take_the_scaled_base_and_local_layers_their_own():
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = parse(TEXT | {"rope_theta": 1e6, "rope_local_base_freq": 100.0, "rope_scaling": scaling}, None)
    assert config.global_rope.inv_freq[0] == 1 / 8
    assert config.local_rope.inv_freq[0] == 1
    assert config.local_rope.inv_freq[64] == pytest.approx(100.0 ** (-128 / 256))


def test_the_embedding_scale_is_rounded_to_the_type_the_model_is_stored_in():
    assert parse(TEXT | {"torch_dtype": "bfloat16"}, None).embedding_scale == 25.25
    assert parse(TEXT, None).embedding_scale == 640**0.5


def test_norms_get_one_added_and_projections_do_not():
    rules = weight_rules(parse(TEXT, None))
    assert rules["model.norm.weight"] == WeightRule("model.norm.weight", add_one=True)
    assert rules["model.layers.0.self_attn.q_norm.weight"].add_one
    assert not rules["model.embed_tokens.weight"].add_one


def test_the_language_model_of_a_model_that_sees_images_is_found_under_its_prefix():
    config = parse({"model_type": "gemma3", "text_config": TEXT, "torch_dtype": "bfloat16"}, None)
    rules = weight_rules(config)
    assert rules["model.norm.weight"].source == "language_model.model.norm.weight"
    assert set(rules) == set(record(ARCHITECTURE.build, config).weights)
    assert config.embedding_scale == 25.25


def test_a_soft_cap_is_a_node_only_where_the_model_has_one():
    capped = parse(TEXT | {"final_logit_softcapping": 30.0}, None)
    assert record(ARCHITECTURE.build, capped).nodes[-1].op == "softcap"
    assert record(ARCHITECTURE.build, parse(TEXT, None)).nodes[-1].op == "linear"


@pytest.mark.parametrize("option", [{"use_bidirectional_attention": True}, {"attn_logit_softcapping": 50.0}])
def test_an_option_that_would_change_the_answer_is_refused_by_name(option):
    with pytest.raises(UnsupportedArchitecture, match=next(iter(option))):
        parse(TEXT | option, None)


def test_scores_are_scaled_by_the_configured_scalar():
    assert attend_nodes(parse(TEXT | {"query_pre_attn_scalar": 64}, None))[0].attributes["scale"] == 0.125
    assert build is ARCHITECTURE.build
