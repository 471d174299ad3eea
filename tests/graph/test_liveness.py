from tests.graph.test_recorder import build

from gristmill.graph.liveness import last_readers, peak_bytes
from gristmill.graph.recorder import record


def test_a_value_dies_with_its_last_reader():
    graph = record(build, 100)
    readers = last_readers(graph)
    assert readers[0] == 8  # the embedding waits for the residual sum
    assert readers[1] == 4  # the fused projection for its last slice
    assert readers[graph.nodes[-1].output.id] == len(graph.nodes)


def test_peak_counts_tokens_and_rows_apart():
    graph = record(build, 1000)
    # While the last slice is made: embedding, projection, q, k and v.
    assert peak_bytes(graph, num_tokens=64, num_rows=1) == 4 * 64 * (32 + 64 + 32 + 16 + 16)
    assert peak_bytes(graph, num_tokens=1, num_rows=64) == 4 * 64 * (32 + 1000)
