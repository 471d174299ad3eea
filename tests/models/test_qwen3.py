from tests.models.test_llama import SMALL

from gristmill.graph.recorder import record
from gristmill.models.qwen3 import ARCHITECTURE, parse, weight_rules


def test_each_head_of_q_and_k_is_normalised_before_it_is_rotated():
    nodes = record(ARCHITECTURE.build, parse(SMALL, None)).nodes
    rotations = [node for node in nodes if node.op == "rope"]
    makers = {node.output.id: node for node in nodes}
    norms = [makers[node.inputs[0].id] for node in rotations]
    assert [norm.weights["weight"].name.rsplit(".", 2)[-2] for norm in norms] == ["q_norm", "k_norm"] * 2
    assert {norm.attributes["head_dim"] for norm in norms} == {128}
    assert weight_rules(parse(SMALL, None)) == {}


def test_heads_are_128_wide_if_the_configuration_does_not_say():
    assert parse(SMALL, None).head_dim == 128
    assert parse(SMALL | {"head_dim": 64}, None).head_dim == 64
