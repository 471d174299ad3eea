import pytest

from gristmill.core.errors import ModelFileError, UnsupportedArchitecture
from gristmill.graph.recorder import record
from gristmill.models.llama import ARCHITECTURE, parse, weight_rules

SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}


def test_sizes_that_a_configuration_leaves_out_follow_from_the_others():
    config = parse(SMALL, None)
    assert (config.head_dim, config.num_kv_heads, config.eps, config.tied_head) == (64, 2, 1e-6, False)


def test_a_tied_head_reads_the_embedding():
    graph = record(ARCHITECTURE.build, parse(SMALL | {"tie_word_embeddings": True}, None))
    assert graph.nodes[-1].weights["weight"].name == "model.embed_tokens.weight"
    assert "lm_head.weight" not in graph.weights


def test_logits_are_computed_for_the_rows_that_need_them_only():
    graph = record(ARCHITECTURE.build, parse(SMALL, None))
    assert [node.op for node in graph.nodes[-3:]] == ["logits_rows", "rms_norm", "linear"]


def test_biases_are_read_where_the_configuration_has_them():
    names = set(record(ARCHITECTURE.build, parse(SMALL | {"attention_bias": True, "mlp_bias": True}, None)).weights)
    biased = {f"self_attn.{part}_proj" for part in "qkvo"} | {f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    assert {f"model.layers.1.{name}.bias" for name in biased} <= names
    assert not [name for name in record(ARCHITECTURE.build, parse(SMALL, None)).weights if name.endswith("bias")]


def test_no_weight_needs_a_rule():
    assert weight_rules(parse(SMALL, None)) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", None),
        ("hidden_size", 0),
        ("hidden_size", "128"),
        ("vocab_size", 2**40),
        ("num_hidden_layers", 1_000_000),
        ("num_attention_heads", True),
        ("num_key_value_heads", 3),
        ("rms_norm_eps", float("nan")),
        ("tie_word_embeddings", "yes"),
    ],
)
def test_a_broken_value_is_refused_by_its_key(key, value):
    with pytest.raises(ModelFileError, match=key):
        parse(SMALL | {key: value}, None)


@pytest.mark.parametrize("head_dim", [24, 272])
def test_head_widths_that_kernels_lack_are_refused(head_dim):
    with pytest.raises(UnsupportedArchitecture, match=f"{head_dim} wide"):
        parse(SMALL | {"head_dim": head_dim}, None)


def test_another_activation_is_refused_by_name():
    with pytest.raises(UnsupportedArchitecture, match="relu"):
        parse(SMALL | {"hidden_act": "relu"}, None)
