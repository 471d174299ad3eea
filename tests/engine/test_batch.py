"""Batches: views of the persistent rows where all decode, a gather of the same values otherwise."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from tests.engine.driver import Driver, make_limits, make_request
from tests.engine.fake_executable import FakeExecutable

from gristmill.backends.base import Batch, SamplingColumns


def _decoding(count: int, **fields: object) -> Driver:
    driver = Driver(make_limits(num_blocks=64, max_num_seqs=16))
    for i in range(count):
        driver.submit(make_request(str(i), [i + 1] * (30 + i), max_tokens=60, temperature=0.5, seed=i, **fields))
    while not driver.step().is_dense:
        pass
    return driver


def _arrays(batch: Batch | SamplingColumns) -> dict[str, np.ndarray]:
    found = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, SamplingColumns):
            found |= _arrays(value)
        else:
            found[field.name] = value[0] if isinstance(value, tuple) else value
    return found


def test_a_decode_step_rebuilds_nothing() -> None:
    driver = _decoding(6)
    batches: list[Batch] = []
    driver.executable.before_step = batches.append
    driver.step()
    driver.step()
    assert batches[0] is batches[1]
    assert np.shares_memory(batches[0].block_tables[0], driver.loop._builder._rows.block_tables)


def test_the_gather_gives_what_the_views_give() -> None:
    for lists in ({}, {"logit_bias": {5: 1.0}, "min_tokens": 30, "stop_token_ids": (3, 4), "presence_penalty": 0.5}):
        driver = _decoding(5, **lists)
        schedule = driver.loop.scheduler.schedule()
        dense = {name: array.copy() for name, array in _arrays(driver.loop._builder.build(schedule)).items()}
        gathered = _arrays(driver.loop._builder.build(replace(schedule, is_dense=False)))
        width = gathered["block_tables"].shape[1]
        assert not dense["block_tables"][:, width:].any()
        dense["block_tables"] = dense["block_tables"][:, :width]
        for name, array in dense.items():
            np.testing.assert_array_equal(array, gathered[name], err_msg=name)
            assert array.dtype == gathered[name].dtype, name


def test_lists_are_there_only_for_the_rows_that_have_them() -> None:
    seen: list[SamplingColumns] = []
    executable = FakeExecutable(32, 64, 8, before_step=lambda batch: seen.append(batch.sampling))
    driver = Driver(executable=executable)
    driver.submit(make_request("plain", [1, 2, 3]))
    driver.submit(make_request("listed", [4, 5], min_tokens=1, stop_token_ids=(9, 7), repetition_penalty=1.5, max_tokens=3))
    driver.step()
    driver.step()
    assert seen[0].banned_start.tolist() == [0, 0, 2]
    assert seen[0].banned_ids.tolist() == [7, 9]
    assert seen[1].banned_ids.tolist() == []
    assert seen[1].history_start.tolist() == [0, 0, 3]
    assert seen[1].history_ids.tolist() == [4, 5, driver.tokens["listed"][0]]
    assert seen[1].history_prompt_len.tolist() == [0, 2]
    driver.run()
