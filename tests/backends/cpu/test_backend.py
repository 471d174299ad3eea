"""Compiling, memory, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.backends.cpu.driver import LIMITS, LLAMA, Sequence_, columns, commit, make_batch, make_graph, random_weights, run_step

from gristmill import _native
from gristmill.backends.base import Batch
from gristmill.backends.cpu import backend as cpu
from gristmill.backends.cpu.backend import CpuBackend
from gristmill.backends.cpu.executable import CpuExecutable
from gristmill.core.errors import NotEnoughMemory, UnsupportedHardware
from gristmill.quant.formats import Format


def compiled(num_threads: int = 1, **limits: int) -> CpuExecutable:
    graph = make_graph(LLAMA)
    tensors = random_weights(graph, lambda _: Format.Q4_G32)
    return CpuBackend(num_threads).compile(graph, tensors, replace(LIMITS, num_threads=num_threads, **limits))


def test_the_best_tier_that_the_cpu_runs_is_chosen_and_named() -> None:
    usable = [tier for tier in _native.compiled_tiers() if not _native.missing_features(tier)]
    assert CpuBackend(1).tier == usable[-1]
    assert compiled().fingerprint() == f"cpu-{usable[-1]}-bf16"
    assert CpuBackend(1, "portable").tier == "portable"


def test_a_tier_that_the_cpu_lacks_is_refused_by_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu._native, "missing_features", lambda tier: ["avx512vnni"] if tier == "avx512" else [])
    monkeypatch.setattr(cpu._native, "compiled_tiers", lambda: ["portable", "avx2", "avx512"])
    with pytest.raises(UnsupportedHardware, match="avx512 needs avx512vnni") as refusal:
        CpuBackend(1, "avx512")
    assert "portable, avx2" in refusal.value.mend


def test_a_tier_that_was_not_built_is_refused() -> None:
    with pytest.raises(UnsupportedHardware, match="no kernel tier 'amx'"):
        CpuBackend(1, "amx")


def test_no_memory_for_the_first_blocks_is_an_error_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(NotEnoughMemory, match="are free"):
        compiled()


def test_a_block_has_the_bytes_of_its_keys_and_values() -> None:
    graph = make_graph(LLAMA)
    assert CpuBackend(1).kv_block_bytes(graph) == 32 * 2 * 2 * 2 * 32 * 2


def test_activations_grow_with_the_step_and_hold_a_tile_of_logits() -> None:
    backend, graph = CpuBackend(2), make_graph(LLAMA | {"vocab_size": 50000})
    small, large = (backend.activation_bytes(graph, replace(LIMITS, max_step_tokens=n)) for n in (64, 1024))
    assert 64 * 50000 * 4 <= small < large < 64 * 50000 * 4 + 40_000_000


def test_blocks_are_committed_lowest_first_ahead_of_need_and_never_beyond_the_limit() -> None:
    executable = compiled()
    first = executable.num_committed_blocks()
    assert 0 < first < LIMITS.num_blocks
    executable.request_blocks(first)
    assert executable.num_committed_blocks() == first
    commit(executable, LIMITS.num_blocks)
    executable.request_blocks(LIMITS.num_blocks * 2)
    assert executable.num_committed_blocks() == LIMITS.num_blocks
    assert not executable.is_short_of_memory()


def test_copied_blocks_hold_the_same_keys_and_values() -> None:
    executable = compiled()
    commit(executable)
    original = Sequence_(list(range(40)), [3, 8])
    run_step(executable, [(original, 40)])
    executable.copy_blocks(np.array([3, 8], np.int32), np.array([590, 17], np.int32))
    copy = Sequence_(list(original.tokens), [590, 17], computed=40)
    run_step(executable, [(copy, 1)])
    run_step(executable, [(original, 1)])
    assert copy.chosen[-1] == original.chosen[-1]


@pytest.mark.parametrize("ids", [[-1], [600]])
def test_copying_a_block_that_is_not_there_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="is not committed"):
        compiled().copy_blocks(np.array(ids, np.int32), np.array([0], np.int32))


def good_batch() -> Batch:
    work = [(Sequence_(list(range(40)), [0, 1]), 40), (Sequence_([5] * 10, [2], computed=9), 1)]
    return make_batch(work, 0)[0]


def changed(values: np.ndarray, index: int, value: int) -> np.ndarray:
    values = values.copy()
    values.flat[index] = value
    return values


BAD: dict[str, Callable[[Batch], Batch]] = {
    "token_ids": lambda b: replace(b, token_ids=changed(b.token_ids, 3, LLAMA["vocab_size"])),
    r"token_ids\[0\] is -1": lambda b: replace(b, token_ids=changed(b.token_ids, 0, -1)),
    "positions": lambda b: replace(b, positions=changed(b.positions, 3, 4096)),
    "positions has a wrong shape": lambda b: replace(b, positions=b.positions[:, :-1].copy()),
    "query_start": lambda b: replace(b, query_start=changed(b.query_start, 1, 42)),
    "query_start should have 3 entries": lambda b: replace(b, query_start=b.query_start[:-1]),
    "query_len": lambda b: replace(b, query_start=changed(b.query_start, 1, 0)),
    "context_len": lambda b: replace(b, context_len=changed(b.context_len, 0, 39)),
    "block_tables is too narrow": lambda b: replace(b, context_len=changed(b.context_len, 0, 65)),
    "block_tables": lambda b: replace(b, block_tables=(changed(b.block_tables[0], 1, LIMITS.num_blocks),)),
    "block_tables should have one KV group": lambda b: replace(b, block_tables=b.block_tables * 2),
    "slot_mapping": lambda b: replace(b, slot_mapping=(changed(b.slot_mapping[0], 40, LIMITS.num_blocks * 32),)),
    "slot_mapping should have 41 entries": lambda b: replace(b, slot_mapping=(b.slot_mapping[0][:-1],)),
    "logits_rows": lambda b: replace(b, logits_rows=changed(b.logits_rows, 1, 41)),
    "token_ids has a wrong type": lambda b: replace(b, token_ids=b.token_ids.astype(np.int64)),
    "temperature should have 2 entries": lambda b: replace(b, sampling=columns(3)),
    "bias_ids": lambda b: replace(
        b,
        sampling=columns(
            2, bias_start=np.array([0, 0, 1], np.int32), bias_ids=np.array([200], np.int32), bias_values=np.ones(1, np.float32)
        ),
    ),
    "history_start": lambda b: replace(b, sampling=columns(2, history_start=np.array([0, 2, 1], np.int32))),
    "num_logprobs": lambda b: replace(b, sampling=columns(2, num_logprobs=np.array([-2, 0], np.int32))),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_batch_is_refused_before_anything_is_written(message: str) -> None:
    executable = compiled()
    good = executable.submit(good_batch())
    with pytest.raises(ValueError, match=f"bad batch: {message}"):
        executable.submit(BAD[message](good_batch()))
    assert executable.submit(good_batch()).token_ids.tolist() == good.token_ids.tolist()


def test_a_step_beyond_the_limits_is_refused() -> None:
    executable = compiled(max_step_tokens=40, max_num_seqs=1)
    with pytest.raises(ValueError, match="num_tokens"):
        executable.submit(good_batch())


def test_a_slot_in_memory_that_is_not_committed_yet_is_refused() -> None:
    executable = compiled()
    block = executable.num_committed_blocks()
    with pytest.raises(ValueError, match="slot_mapping"):
        executable.submit(make_batch([(Sequence_([1], [block]), 1)], 0)[0])


def test_a_closed_executable_refuses_to_run_and_closes_again() -> None:
    executable = compiled()
    executable.close()
    executable.close()
    with pytest.raises(ValueError, match="released"):
        executable.submit(good_batch())
    executable.request_blocks(10)
    assert executable.num_committed_blocks() == 0


def test_many_more_rows_of_logits_than_a_tile_are_all_sampled() -> None:
    executable = compiled(2)
    batch = good_batch()
    rows = np.sort(np.random.default_rng(0).integers(0, 41, 150)).astype(np.int32)[:41]
    every = replace(batch, logits_rows=rows, sampling=columns(len(rows)))
    tiled = replace(batch, logits_rows=np.arange(41, dtype=np.int32), sampling=columns(41))
    assert executable.submit(every).token_ids.tolist() == executable.submit(tiled).token_ids[rows].tolist()


def test_closing_frees_the_activations_and_the_kv() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    compiled().close()
    before = resident()
    graph = make_graph(LLAMA | {"vocab_size": 50000})
    executable = CpuBackend(1).compile(graph, random_weights(graph, lambda _: Format.Q4_G32), replace(LIMITS, num_blocks=12000))
    commit(executable, 12000)
    assert resident() > before + 12000 * 16384 // 2
    executable.close()
    assert resident() < before + 8_000_000


def test_small_weights_share_pages_and_are_freed_with_the_last() -> None:
    arrays = [_native.aligned_empty(1000) for _ in range(100)]
    addresses = sorted(a.ctypes.data for a in arrays)
    assert all(address % 64 == 0 for address in addresses)
    assert addresses[-1] - addresses[0] < 2 << 20
    arrays[0][:] = 7
    arrays[1][:] = 8
    assert arrays[0].tolist() == [7] * 1000
    large = _native.aligned_empty(100 << 20)
    assert large.ctypes.data % (2 << 20) == 0


def test_two_executables_of_one_backend_may_be_driven_from_two_threads() -> None:
    graph = make_graph(LLAMA)
    backend = CpuBackend(2)
    tensors = random_weights(graph, lambda _: Format.Q4_G32)
    executables = [backend.compile(graph, tensors, replace(LIMITS, num_threads=2)) for _ in range(2)]
    expected = executables[0].submit(good_batch()).token_ids.tolist()
    results: list[list[int]] = []

    def drive(executable: CpuExecutable) -> None:
        results.extend(executable.submit(good_batch()).token_ids.tolist() for _ in range(50))

    threads = [threading.Thread(target=drive, args=(executable,)) for executable in executables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 100


def test_workers_without_a_step_sleep() -> None:
    def tasks() -> set[str]:
        return {path.name for path in Path("/proc/self/task").iterdir()}

    before = tasks()
    executable = compiled(3)
    executable.submit(good_batch())
    ours = tasks() - before
    assert len(ours) >= 2
    awake = ours
    for _ in range(100_000):  # far longer than the bounded wait; ends as soon as they sleep
        awake = {task for task in awake if Path(f"/proc/self/task/{task}/stat").read_text().rsplit(")", 1)[1].split()[0] != "S"}
        if not awake:
            break
    assert not awake
