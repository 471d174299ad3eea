"""Barriers, lifetimes and places: no thread may meet another's half-written bytes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gristmill.backends.cpu.lowering import Lowered, lower
from gristmill.backends.cpu.plan_ops import Add, Buffer, Gather, Sample, View
from gristmill.backends.cpu.schedule import Lifetime, barriers, lifetimes, place
from gristmill.graph.recorder import record
from gristmill.models.registry import load_architecture

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
NUM_BUFFERS = 6


def llama() -> Lowered:
    architecture = load_architecture(LLAMA)
    return lower(record(architecture.build, architecture.parse(LLAMA, None)), None)


def random_plan(triples: list[tuple[int, int, int]], private: list[bool]) -> Lowered:
    """Sums of random buffers into random buffers, then a head."""
    buffers = tuple(Buffer("T", 16, is_private=p) for p in private)
    views = [View(b, 0, 16) for b in range(NUM_BUFFERS)]
    body = [Add(views[x], views[y], views[out]) for x, y, out in triples]
    unused = [Add(view, view, view) for view in views]
    return Lowered(buffers, (*unused, *body, Gather(views[0], views[1]), Sample(views[1])))


PLANS = st.builds(
    random_plan,
    st.lists(st.tuples(*[st.integers(0, NUM_BUFFERS - 1)] * 3), max_size=12),
    st.lists(st.booleans(), min_size=NUM_BUFFERS, max_size=NUM_BUFFERS),
)


@given(PLANS)
def test_conflicting_ops_have_a_barrier_between_them(plan: Lowered) -> None:
    waits = barriers(plan)
    for is_single, schedule in ((False, waits.many), (True, waits.single)):
        for i, j in itertools.combinations(range(len(plan.ops)), 2):
            first, second = plan.ops[i], plan.ops[j]
            wrote, read = {a.buffer for a in first.writes()}, {a.buffer for a in first.reads()}
            writes, reads = {a.buffer for a in second.writes()}, {a.buffer for a in second.reads()}
            shared = (wrote & (reads | writes)) | (read & writes)
            shared = {b for b in shared if not (is_single and plan.buffers[b].is_private)}
            assert not shared or any(schedule[i + 1 : j + 1])


@given(PLANS)
def test_buffers_that_share_bytes_are_never_used_in_the_same_phase(plan: Lowered) -> None:
    waits = barriers(plan)
    alive = lifetimes(plan, waits)
    for schedule in (waits.many, waits.single):
        phase = list(itertools.accumulate(schedule, initial=0))[1:]
        for a, b in itertools.combinations(range(NUM_BUFFERS), 2):
            if alive[a].overlaps(alive[b]):
                continue
            used = [{phase[i] for i, op in enumerate(plan.ops) if x in touched(op)} for x in (a, b)]
            assert not used[0] & used[1]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20), st.integers(0, 20)), max_size=15))
def test_buffers_alive_at_once_never_overlap_in_the_arena(specs: list[tuple[int, int, int]]) -> None:
    sizes = [size for size, _, _ in specs]
    alive = [Lifetime(min(a, b), max(a, b)) for _, a, b in specs]
    offsets, total = place(sizes, alive)
    for a, b in itertools.combinations(range(len(specs)), 2):
        if alive[a].overlaps(alive[b]):
            assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
    assert total == max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)


def test_a_layer_of_llama_needs_six_barriers_with_one_row() -> None:
    plan = llama()
    waits = barriers(plan)
    starts = [i for i, op in enumerate(plan.ops) if type(op).__name__ == "Attend"]
    assert sum(waits.single[starts[0] : starts[1]]) == 6
    assert sum(waits.many[starts[0] : starts[1]]) == 10


def test_every_tile_of_the_head_starts_behind_a_barrier() -> None:
    plan = llama()
    gather = next(i for i, op in enumerate(plan.ops) if isinstance(op, Gather))
    waits = barriers(plan)
    assert waits.many[gather]
    assert waits.single[gather]


def test_what_the_head_reads_of_the_body_stays_for_all_its_tiles() -> None:
    plan = llama()
    gather = next(op for op in plan.ops if isinstance(op, Gather))
    assert lifetimes(plan, barriers(plan))[gather.x.buffer].last == len(plan.ops) - 1


def touched(op) -> set[int]:
    return {access.buffer for access in (*op.reads(), *op.writes())}
