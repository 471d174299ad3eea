import numpy as np
import pytest

from gristmill.backends.reference.pages import Pages, round_to_bf16
from gristmill.graph.ir import KvGroup

GROUP = KvGroup(num_layers=2, num_kv_heads=1, head_dim=4)


def test_bf16_takes_the_nearest_value_and_ties_to_even():
    one_ulp = 2.0**-7
    values = np.array([1 + 0.4 * one_ulp, 1 + 0.6 * one_ulp, 1 + 0.5 * one_ulp, 1 + 1.5 * one_ulp, -3.0], np.float32)
    assert list(round_to_bf16(values)) == [1, 1 + one_ulp, 1, 1 + 2 * one_ulp, -3]


def test_a_sequence_reads_its_blocks_in_the_order_of_its_table():
    pages = Pages(GROUP, num_blocks=3, block_size_tokens=2, kv_dtype="f32")
    k = np.arange(12, dtype=np.float32).reshape(3, 4)
    pages.store(1, np.array([4, 5, 0], np.int32), k, -k)
    keys, values = pages.read(1, np.array([2, 0], np.int32), 3)
    assert np.array_equal(keys[:, 0], k)
    assert np.array_equal(values[:, 0], -k)
    assert not pages.read(0, np.array([2, 0], np.int32), 3)[0].any()


@pytest.mark.parametrize("kv_dtype", ["bf16", "f32"])
def test_values_are_stored_as_rounded_to_the_kv_type(kv_dtype):
    pages = Pages(GROUP, 1, 2, kv_dtype)
    k = np.full((1, 4), 1.001, np.float32)
    pages.store(0, np.array([0], np.int32), k, k)
    assert (pages.read(0, np.array([0], np.int32), 1)[0] == (1.0 if kv_dtype == "bf16" else np.float32(1.001))).all()


def test_copied_blocks_hold_what_their_sources_held():
    pages = Pages(GROUP, 4, 2, "f32")
    k = np.arange(16, dtype=np.float32).reshape(4, 4)
    pages.store(0, np.arange(4, dtype=np.int32), k, k)
    pages.copy(np.array([0, 1], np.int32), np.array([3, 2], np.int32))
    assert np.array_equal(pages.read(0, np.array([3, 2], np.int32), 4)[0][:, 0], k)
