"""What is fused, and that fusing keeps every value."""

from gristmill.backends.cpu.lowering import Lowered, lower
from gristmill.backends.cpu.plan_ops import ActMul, Add, Attend, Linear, Norm, Quantize, RopeStore, Sample
from gristmill.graph.builder import Builder, RopeScaling
from gristmill.graph.ir import Graph, Value
from gristmill.graph.recorder import record
from gristmill.quant.formats import Format

ROPE = RopeScaling((1.0, 0.5, 0.25, 0.125))


def block(g: Builder[Value], x: Value, layer: int) -> Value:
    normed = g.rms_norm(x, f"{layer}.norm", eps=1e-5)
    q, k = (g.rope(g.linear(normed, f"{layer}.{n}", w), head_dim=16, scaling=ROPE) for n, w in (("q", 64), ("k", 32)))
    v = g.linear(normed, f"{layer}.v", 32, bias=f"{layer}.v_bias")
    a = g.attend(q, k, v, layer=layer, num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
    x = g.add(x, g.linear(a, f"{layer}.o", 64))
    normed = g.rms_norm(x, f"{layer}.norm2", eps=1e-5)
    gate, up = g.linear(normed, f"{layer}.gate", 96), g.linear(normed, f"{layer}.up", 96)
    return g.add(x, g.linear(g.act_mul(gate, up, kind="silu"), f"{layer}.down", 64))


def build(g: Builder[Value], num_layers: int) -> Value:
    x = g.embed("embed", 100, 64)
    for layer in range(num_layers):
        x = block(g, x, layer)
    return g.linear(g.rms_norm(g.logits_rows(x), "final", eps=1e-5), "embed", 100)


def lowered(graph: Graph, **formats: Format) -> Lowered:
    return lower(graph, {name: formats.get(name.split(".")[-1], Format.Q4_G32) for name in graph.weights})


def of_type(plan: Lowered, kind: type) -> list:
    return [op for op in plan.ops if type(op) is kind]


def test_a_llama_layer_becomes_eight_ops() -> None:
    plan = lowered(record(build, 1))
    names = [type(op).__name__ for op in plan.ops]
    layer = ["Norm", "Linear", "RopeStore", "Attend", "Quantize", "Linear", "Norm", "Linear", "ActMul", "Linear"]
    assert names == ["RopeTable", "Embed", *layer, "Gather", "Norm", "Linear", "Sample"]


def test_matrices_over_one_input_are_segments_of_one_op_in_columns_of_one_buffer() -> None:
    qkv, _, gate_up, _, _ = of_type(lowered(record(build, 1)), Linear)
    assert [s.weight for s in qkv.segments] == ["0.q", "0.k", "0.v"]
    assert [(s.y.column, s.y.width) for s in qkv.segments] == [(0, 64), (64, 32), (96, 32)]
    assert len({s.y.buffer for s in qkv.segments}) == 1
    assert [s.bias for s in qkv.segments] == [None, None, "0.v_bias"]
    assert [s.weight for s in gate_up.segments] == ["0.gate", "0.up"]


def test_residual_sums_are_added_to_by_the_matrix_before_them() -> None:
    plan = lowered(record(build, 2))
    accumulating = [op for op in of_type(plan, Linear) if op.accumulate]
    assert [op.segments[0].weight for op in accumulating] == ["0.o", "0.down", "1.o", "1.down"]
    assert len({op.segments[0].y.buffer for op in accumulating}) == 1
    assert of_type(plan, Add) == []


def test_norms_and_activations_write_only_what_their_readers_read() -> None:
    plan = lowered(record(build, 1))
    assert all(op.out is None and op.quantized is not None for op in of_type(plan, Norm) + of_type(plan, ActMul))
    plan = lowered(record(build, 1), v=Format.F16, down=Format.BF16)
    norm, norm2, _ = of_type(plan, Norm)
    assert norm.out is not None
    assert norm.quantized is not None
    assert norm2.out is None
    (activation,) = of_type(plan, ActMul)
    assert activation.out is not None
    assert activation.quantized is None


def test_unknown_formats_get_room_for_both_forms() -> None:
    plan = lower(record(build, 1), None)
    assert all(op.out is not None and op.quantized is not None for op in of_type(plan, Norm) + of_type(plan, ActMul))
    assert all(op.x is not None and op.quantized is not None for op in of_type(plan, Linear))


def test_rotation_and_store_are_one_op_and_all_layers_share_a_table() -> None:
    plan = lowered(record(build, 3))
    stores = of_type(plan, RopeStore)
    assert [op.layer for op in stores] == [0, 1, 2]
    assert len({op.cos for op in stores}) == 1


def test_a_base_that_is_read_again_is_not_overwritten() -> None:
    def reads_twice(g: Builder[Value], _: int) -> Value:
        x = g.embed("embed", 100, 64)
        y = g.add(x, g.linear(x, "w", 64))
        return g.linear(g.logits_rows(g.add(y, x)), "embed", 100)

    plan = lowered(record_attended(reads_twice))
    assert not any(op.accumulate for op in of_type(plan, Linear))
    first, second = of_type(plan, Add)
    assert first.out.buffer not in (first.x.buffer,)
    assert second.out.buffer in (second.x.buffer, second.y.buffer)


def test_a_base_that_may_be_private_is_not_added_to() -> None:
    def post_norm(g: Builder[Value], _: int) -> Value:
        x = g.rms_norm(g.embed("embed", 100, 64), "norm", eps=1e-5)
        x = g.add(x, g.linear(g.rms_norm(g.linear(x, "a", 64), "norm2", eps=1e-5), "b", 64))
        return g.linear(g.logits_rows(x), "embed", 100)

    plan = lowered(record_attended(post_norm))
    (add,) = of_type(plan, Add)
    assert not plan.buffers[add.out.buffer].is_private


def test_head_norms_are_done_in_place() -> None:
    def with_head_norm(g: Builder[Value], _: int) -> Value:
        x = g.embed("embed", 100, 64)
        q = g.rms_norm(g.linear(x, "q", 64), "q_norm", eps=1e-5, head_dim=16)
        k = g.rms_norm(g.linear(x, "k", 32), "k_norm", eps=1e-5, head_dim=16)
        a = g.attend(q, k, g.linear(x, "v", 32), layer=0, num_heads=4, num_kv_heads=2, head_dim=16, scale=1.0)
        return g.linear(g.logits_rows(a), "embed", 100)

    plan = lower(graph := record(with_head_norm, 0), dict.fromkeys(graph.weights, Format.F32))
    assert [op.out == op.x for op in of_type(plan, Norm)] == [True, True]
    (attend,) = of_type(plan, Attend)
    assert of_type(plan, RopeStore)[0].q == attend.q
    assert of_type(plan, RopeStore)[0].cos is None


def test_slices_are_views_and_nothing_else() -> None:
    def sliced(g: Builder[Value], _: int) -> Value:
        x = g.embed("embed", 100, 64)
        q, k, v = g.split(g.linear(x, "qkv", 128), (64, 32, 32))
        a = g.attend(q, k, v, layer=0, num_heads=4, num_kv_heads=2, head_dim=16, scale=1.0)
        return g.linear(g.logits_rows(a), "embed", 100)

    plan = lowered(record(sliced, 0))
    (store,) = of_type(plan, RopeStore)
    assert (store.q.column, store.k.column, store.v.column) == (0, 64, 96)
    assert store.q.buffer == store.k.buffer == store.v.buffer
    assert len(of_type(plan, Quantize)) == 2


def test_every_plan_ends_in_sampling_the_last_linear() -> None:
    plan = lowered(record(build, 1))
    assert isinstance(plan.ops[-1], Sample)
    assert plan.ops[-1].logits == of_type(plan, Linear)[-1].segments[0].y


def record_attended(build_model) -> Graph:
    """A graph must have attention; put one in front that nothing reads."""

    def whole(g: Builder[Value], config: int) -> Value:
        x = g.embed("embed", 100, 64)
        q = g.linear(x, "aq", 64)
        g.attend(q, g.linear(x, "ak", 64), g.linear(x, "av", 64), layer=0, num_heads=4, num_kv_heads=4, head_dim=16, scale=1.0)
        return build_model(g, config)

    return record(whole, 0)
