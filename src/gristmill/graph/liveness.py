"""When a value of a graph is last read, and how many bytes are alive at most."""

from __future__ import annotations

from gristmill.graph.ir import Graph, Value

BYTES_PER_COLUMN = 4  # every value is f32


def last_readers(graph: Graph) -> dict[int, int]:
    """Map each value's id to the index of the last node that reads it; the logits are read after the end."""
    readers = {node.output.id: index for index, node in enumerate(graph.nodes)}
    for index, node in enumerate(graph.nodes):
        readers |= dict.fromkeys((value.id for value in node.inputs), index)
    return readers | {graph.nodes[-1].output.id: len(graph.nodes)}


def peak_bytes(graph: Graph, num_tokens: int, num_rows: int) -> int:
    """Return the most bytes that are alive at once if each value is freed after its last reader."""
    readers = last_readers(graph)
    alive: dict[int, int] = {}
    peak = 0
    for index, node in enumerate(graph.nodes):
        alive[node.output.id] = _bytes(node.output, num_tokens, num_rows)
        peak = max(peak, sum(alive.values()))
        alive = {value: size for value, size in alive.items() if readers[value] > index}
    return peak


def _bytes(value: Value, num_tokens: int, num_rows: int) -> int:
    return BYTES_PER_COLUMN * value.width * (num_tokens if value.rows == "T" else num_rows)
