"""The memory arithmetic: weights + activations + KV = budget; computed once, shown, and obeyed."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.core.errors import NotEnoughMemory, SettingsError
from gristmill.core.settings import AUTO, EngineSettings
from gristmill.core.units import format_bytes

KV_SHARE_OF_AVAILABLE = 4  # `--kv-memory auto` takes at most one part in four
CONTEXT_STEP_TOKENS = 256  # a lowered context is a multiple of this


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model needs, in bytes, before any choice is made."""

    weight_bytes: int
    activation_bytes: int
    kv_block_bytes: int
    block_size_tokens: int
    model_context_tokens: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What was resolved: how long a request may be and how many KV blocks there are."""

    max_model_len: int
    num_blocks: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    budget_bytes: int

    def arithmetic(self) -> str:
        """The sum in one line, as it is printed at start and in errors."""
        weights, activations, kv = map(format_bytes, (self.weight_bytes, self.activation_bytes, self.kv_bytes))
        total = format_bytes(self.weight_bytes + self.activation_bytes + self.kv_bytes)
        return (
            f"{weights} weights + {activations} activations + {kv} KV = {total} of a budget of {format_bytes(self.budget_bytes)}"
        )


def plan_memory(settings: EngineSettings, demand: Demand, available_bytes: int) -> MemoryPlan:
    """Choose max_model_len and the number of KV blocks.

    Raises: NotEnoughMemory with the arithmetic and the largest context that fits; SettingsError if the
    context asked for is longer than the model's.
    """
    budget = int(available_bytes * settings.memory_utilization)
    room = budget - demand.weight_bytes - demand.activation_bytes
    asked_len = _asked_len(settings, demand)
    kv_bytes = _kv_bytes(settings, demand, available_bytes, asked_len, room)
    num_blocks = kv_bytes // demand.kv_block_bytes
    fitting = _fitting_len(min(num_blocks, room // demand.kv_block_bytes), demand)
    max_model_len = asked_len
    if asked_len > fitting:
        if settings.max_model_len != AUTO or fitting < 1:
            raise _too_little(demand, budget, kv_bytes, asked_len, fitting)
        max_model_len = _round_down(fitting)
    plan = MemoryPlan(
        max_model_len, num_blocks, demand.weight_bytes, demand.activation_bytes, num_blocks * demand.kv_block_bytes, budget
    )
    if plan.kv_bytes > room:
        raise NotEnoughMemory(
            _over_budget(demand, budget, kv_bytes, max_model_len),
            f"give --kv-memory {room // demand.kv_block_bytes * demand.kv_block_bytes} or less, or auto.",
        )
    return plan


def _asked_len(settings: EngineSettings, demand: Demand) -> int:
    if settings.max_model_len == AUTO:
        return demand.model_context_tokens
    if settings.max_model_len > demand.model_context_tokens:
        raise SettingsError(
            f"--max-model-len is {settings.max_model_len:,}; the model was made for {demand.model_context_tokens:,} tokens.",
            f"give --max-model-len {demand.model_context_tokens} or less.",
        )
    return settings.max_model_len


def _kv_bytes(settings: EngineSettings, demand: Demand, available_bytes: int, asked_len: int, room: int) -> int:
    if settings.kv_memory != AUTO:
        return settings.kv_memory
    blocks_per_seq = -(-asked_len // demand.block_size_tokens)
    needed = settings.max_num_seqs * blocks_per_seq * demand.kv_block_bytes
    share = max(available_bytes // KV_SHARE_OF_AVAILABLE, 0)
    one = blocks_per_seq * demand.kv_block_bytes
    explicit = settings.max_model_len != AUTO  # an explicit context must fit once, if the room is there
    return max(min(needed, max(share, one if explicit else 0), room), 0)


def _fitting_len(num_blocks: int, demand: Demand) -> int:
    return max(num_blocks, 0) * demand.block_size_tokens


def _round_down(num_tokens: int) -> int:
    return num_tokens // CONTEXT_STEP_TOKENS * CONTEXT_STEP_TOKENS or num_tokens


def _over_budget(demand: Demand, budget: int, kv_bytes: int, asked_len: int) -> str:
    asked_blocks = -(-asked_len // demand.block_size_tokens)
    least = max(kv_bytes, asked_blocks * demand.kv_block_bytes)
    sum_bytes = demand.weight_bytes + demand.activation_bytes + least
    return (
        f"{format_bytes(demand.weight_bytes)} weights + {format_bytes(demand.activation_bytes)} activations + "
        f"{format_bytes(least)} KV (context {asked_len:,}) = {format_bytes(sum_bytes)}, over the budget of {format_bytes(budget)}"
        f" with {format_bytes(kv_bytes)} for KV."
    )


def _too_little(demand: Demand, budget: int, kv_bytes: int, asked_len: int, fitting: int) -> NotEnoughMemory:
    message = _over_budget(demand, budget, kv_bytes, asked_len)
    if fitting < 1:
        return NotEnoughMemory(message, "free memory, raise --memory-utilization or --kv-memory, or take a smaller model.")
    return NotEnoughMemory(
        message, f"the largest context that fits is {fitting:,}: give --max-model-len {fitting} or less, or auto."
    )
