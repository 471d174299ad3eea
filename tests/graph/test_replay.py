import pytest
from tests.models.goldens import ROOT, read_golden

from gristmill.graph.recorder import Recorder, record
from gristmill.graph.replay import replay_node
from gristmill.models.registry import load_architecture


@pytest.mark.parametrize("name", ["llama-biases", "qwen3", "gemma3-softcap", "phi3-longrope-long"])
def test_a_replayed_graph_is_the_graph(name):
    golden = read_golden(ROOT / name)
    architecture = load_architecture(golden.config)
    graph = record(architecture.build, architecture.parse(golden.config, golden.max_model_len))
    recorder = Recorder()
    values = {}
    for node in graph.nodes:
        values[node.output.id] = replay_node(recorder, node, [values[value.id] for value in node.inputs])
    assert tuple(recorder.nodes) == graph.nodes


def test_a_slice_in_the_middle_takes_its_own_columns():
    recorder = Recorder()
    parts = recorder.split(recorder.embed("embedding", 10, 30), (10, 12, 8))
    for node, part in zip(recorder.nodes[1:], parts, strict=True):
        again = Recorder()
        value = replay_node(again, node, [again.embed("embedding", 10, 30)])
        made = next(n for n in again.nodes if n.output is value)
        assert (made.attributes["start"], value.width) == (node.attributes["start"], part.width)
