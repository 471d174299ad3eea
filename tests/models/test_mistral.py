from tests.models.test_llama import SMALL

from gristmill.graph.recorder import record
from gristmill.models.mistral import ARCHITECTURE, parse, weight_rules


def windows(config):
    return [node.attributes["window"] for node in record(ARCHITECTURE.build, parse(config, None)).nodes if node.op == "attend"]


def test_every_layer_has_the_window():
    assert windows(SMALL | {"sliding_window": 32}) == [32, 32]


def test_a_model_without_a_window_sees_everything():
    assert windows(SMALL | {"sliding_window": None}) == [0, 0]
    assert weight_rules(parse(SMALL, None)) == {}
