import pytest

from gristmill.graph.builder import RopeScaling
from gristmill.graph.ir import KvGroup
from gristmill.graph.recorder import Recorder, record

ROPE = RopeScaling((1.0,) * 8)


def build(g, vocab_size):
    x = g.embed("embedding", vocab_size, 32)
    q, k, v = g.split(g.linear(x, "qkv", 64, bias="qkv.bias"), (32, 16, 16))
    rotated = [g.rope(part, head_dim=16, scaling=ROPE) for part in (q, k)]
    x = g.add(x, g.attend(*rotated, v, layer=0, num_heads=2, num_kv_heads=1, head_dim=16, scale=0.25))
    x = g.rms_norm(g.logits_rows(x), "norm", eps=1e-6)
    return g.linear(x, "embedding", vocab_size)


def test_nodes_are_recorded_in_order_with_their_shapes():
    graph = record(build, 100)
    ops = ["embed", "linear", "slice", "slice", "slice", "rope", "rope", "attend", "add", "logits_rows", "rms_norm", "linear"]
    assert [node.op for node in graph.nodes] == ops
    assert [(node.output.rows, node.output.width) for node in graph.nodes[-3:]] == [("R", 32), ("R", 32), ("R", 100)]
    assert [node.attributes["start"] for node in graph.nodes if node.op == "slice"] == [0, 32, 48]
    assert graph.vocab_size == 100


def test_weights_are_listed_once_with_their_shapes():
    weights = {name: weight.shape for name, weight in record(build, 100).weights.items()}
    assert weights == {"embedding": (100, 32), "qkv": (64, 32), "qkv.bias": (64,), "norm": (32,)}


def test_layers_of_one_shape_are_one_kv_group():
    assert record(build, 100).kv_groups == (KvGroup(1, 1, 16),)


def test_one_name_with_two_shapes_is_a_mistake_of_the_model():
    g = Recorder()
    x = g.embed("embedding", 100, 32)
    with pytest.raises(AssertionError, match="is read as"):
        g.linear(x, "embedding", 99)


def test_a_build_must_end_in_the_rows_that_need_logits():
    with pytest.raises(AssertionError, match="logits_rows"):
        record(lambda g, config: g.embed("embedding", 100, 32), None)
