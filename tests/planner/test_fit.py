import pytest

from gristmill.core.errors import NotEnoughMemory, SettingsError
from gristmill.core.settings import EngineSettings
from gristmill.planner.fit import Demand, plan_memory

MB = 10**6
DEMAND = Demand(
    weight_bytes=100 * MB, activation_bytes=20 * MB, kv_block_bytes=MB, block_size_tokens=32, model_context_tokens=2048
)


def test_auto_takes_what_all_sequences_need_if_a_quarter_of_memory_holds_it() -> None:
    plan = plan_memory(EngineSettings(max_num_seqs=4), DEMAND, 4000 * MB)
    assert (plan.num_blocks, plan.max_model_len) == (4 * 64, 2048)


def test_auto_takes_a_quarter_of_memory_if_that_is_less() -> None:
    plan = plan_memory(EngineSettings(max_num_seqs=64), DEMAND, 4000 * MB)
    assert plan.num_blocks == 1000


def test_auto_lowers_the_context_until_it_fits() -> None:
    plan = plan_memory(EngineSettings(), DEMAND, 160 * MB)
    assert plan.max_model_len == 24 * 32
    assert plan.num_blocks == 24


def test_a_context_that_does_not_fit_is_refused_with_the_arithmetic_and_the_largest_that_does() -> None:
    with pytest.raises(NotEnoughMemory, match=r"100 MB weights \+ 20.0 MB activations \+ 64.0 MB KV") as caught:
        plan_memory(EngineSettings(max_model_len=2048), DEMAND, 160 * MB)
    assert "--max-model-len 768" in caught.value.mend


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NotEnoughMemory, match=r"over the budget of 90\.0 MB"):
        plan_memory(EngineSettings(), DEMAND, 100 * MB)


def test_a_context_beyond_the_models_is_refused_with_both_numbers() -> None:
    with pytest.raises(SettingsError, match=r"4,096.*2,048"):
        plan_memory(EngineSettings(max_model_len=4096), DEMAND, 4000 * MB)


def test_explicit_kv_memory_is_obeyed_and_checked_against_the_budget() -> None:
    assert plan_memory(EngineSettings(kv_memory=300 * MB), DEMAND, 4000 * MB).num_blocks == 300
    with pytest.raises(NotEnoughMemory) as caught:
        plan_memory(EngineSettings(kv_memory=5000 * MB), DEMAND, 4000 * MB)
    assert "--kv-memory 3480000000 or less" in caught.value.mend
    assert plan_memory(EngineSettings(kv_memory=3480 * MB), DEMAND, 4000 * MB).num_blocks == 3480


def test_the_arithmetic_adds_up() -> None:
    plan = plan_memory(EngineSettings(max_num_seqs=4), DEMAND, 4000 * MB)
    assert plan.arithmetic() == "100 MB weights + 20.0 MB activations + 256 MB KV = 376 MB of a budget of 3.60 GB"
