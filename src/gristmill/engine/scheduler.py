"""Decides what each step computes, and takes in what it made.

There is no prefill phase and no decode phase: computed tokens catch up with known tokens. Every step, each
running sequence that lacks one token computes it (decodes first); what is left of the step goes to chunks of
longer gaps, new prompts and resumed sequences alike, in policy order; then waiting sequences are admitted.
"""

from __future__ import annotations

from gristmill.backends.base import BLOCK_SIZE_TOKENS, StepOutput
from gristmill.core.clock import Clock
from gristmill.core.errors import RequestFailed
from gristmill.core.request import FinishReason, TokenEvent, TokenLogprobs
from gristmill.core.units import NS_PER_S
from gristmill.engine.growth import Growth
from gristmill.engine.limits import EngineLimits
from gristmill.engine.pace import Pace
from gristmill.engine.rows import Rows
from gristmill.engine.schedule import Chunk, Schedule
from gristmill.engine.sequence import Sequence, Status, logprobs_of
from gristmill.engine.waiting import WaitingQueue
from gristmill.kv.block_pool import BlockPool
from gristmill.kv.prefix_index import PrefixIndex
from gristmill.metrics.engine_metrics import EngineMetrics


class Scheduler:
    """Owns the sequences. `schedule` and `update` alternate; `add` and `abort` come between steps."""

    def __init__(
        self,
        limits: EngineLimits,
        rows: Rows,
        pool: BlockPool,
        index: PrefixIndex,
        growth: Growth,
        clock: Clock,
        metrics: EngineMetrics,
    ) -> None:
        self.waiting = WaitingQueue()
        self._limits = limits
        self._rows = rows
        self._pool = pool
        self._index = index
        self._growth = growth
        self._clock = clock
        self._metrics = metrics
        self._pace = Pace(limits.target_step_ns)
        self._by_id: dict[str, Sequence] = {}
        self._donors: dict[bytes, Sequence] = {}  # by group key: a running sequence that has the group's prompt
        self._last_update_ns = 0

    @property
    def num_running(self) -> int:
        """How many sequences hold a row."""
        return len(self._rows.sequences)

    @property
    def has_work(self) -> bool:
        """Tell whether any sequence is unfinished."""
        return bool(self._by_id)

    def add(self, sequence: Sequence) -> TokenEvent | None:
        """Take in a new sequence, which waits; return its last event if it wants no token at all."""
        self._by_id[sequence.request.id] = sequence
        self.waiting.add(sequence)
        return self._end(sequence, (), FinishReason.LENGTH) if sequence.max_tokens == 0 else None

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> TokenEvent | None:
        """End a sequence now and free its blocks; return its last event, or None if it has ended already."""
        sequence = self._by_id.get(request_id)
        return None if sequence is None else self._end(sequence, (), reason)

    def unfinished_ids(self) -> list[str]:
        """Return the request ids of all sequences that have not ended."""
        return list(self._by_id)

    # ---- schedule ----

    def schedule(self) -> Schedule:
        """Decide the next step. It is empty if all wait for blocks that memory does not give."""
        schedule = Schedule()
        self._growth.observe()
        self._reserve_blocks(schedule)
        chunked = self._schedule_decodes(schedule)
        room = self._limits.max_step_tokens - len(schedule.decodes)
        room = self._pace.chunk_tokens(len(schedule.decodes), room)
        for sequence in sorted(chunked, key=lambda sequence: sequence.order):
            room -= self._add_chunk(schedule, sequence, room)
        if not schedule.preempted:
            self._admit(schedule, room)
        schedule.is_dense = not schedule.chunks and len(schedule.decodes) == self.num_running
        self._growth.keep_ahead(self.num_running)
        return schedule

    def _reserve_blocks(self, schedule: Schedule) -> None:
        """Give a block to each sequence whose next token has none, in policy order."""
        lacking = [s for s in self._rows.sequences if s.num_computed == len(s.blocks) * BLOCK_SIZE_TOKENS]
        for sequence in sorted(lacking, key=lambda sequence: sequence.order):
            if sequence.status is Status.RUNNING and self._find_block(sequence, schedule):
                self._rows.add_block(sequence, self._pool.allocate(1)[0])

    def _find_block(self, sequence: Sequence, schedule: Schedule) -> bool:
        """Preempt until a block is available. False: the sequence must wait, or was preempted itself."""
        while self._pool.num_available == 0:
            self._growth.ask_more(self.num_running)
            if self._growth.is_coming() or self.num_running == 1:
                return False
            victim = max(self._rows.sequences, key=lambda s: (s.request.priority, -s.num_computed, s.number))
            self._preempt(victim, schedule)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, schedule: Schedule) -> None:
        """Stop a sequence; it resumes from what is left of its blocks in the prefix index."""
        self._metrics.preemptions += 1
        sequence.preemptions += 1
        sequence.num_computed_before = max(sequence.num_computed_before, sequence.num_computed)
        self._leave(sequence)
        sequence.status = Status.WAITING
        self.waiting.add(sequence)
        schedule.preempted.append(sequence)

    def _schedule_decodes(self, schedule: Schedule) -> list[Sequence]:
        """Schedule every sequence that lacks one token; return those that lack more."""
        chunked = []
        decodes = schedule.decodes
        for sequence in self._rows.sequences:
            computed = sequence.num_computed
            if sequence.num_tokens - computed > 1:
                chunked.append(sequence)
            elif computed < len(sequence.blocks) * BLOCK_SIZE_TOKENS:
                decodes.append(sequence)
        return chunked

    def _add_chunk(self, schedule: Schedule, sequence: Sequence, room: int) -> int:
        gap = sequence.num_tokens - sequence.num_computed
        count = min(gap, room)
        if count > 0:
            schedule.chunks.append(Chunk(sequence, count, is_last=count == gap))
        return count

    # ---- admission ----

    def _admit(self, schedule: Schedule, room: int) -> None:
        """Start waiting sequences in order; one whose prefix is being computed lets others pass."""
        position = 0
        while room > 0 and position < min(len(self.waiting), self._limits.max_running):
            sequence = self.waiting[position]
            if self.num_running == self._limits.max_running:
                return
            if self._waits_for_prefix(sequence):
                position += 1
            elif self._start(sequence, schedule):
                room -= self._add_chunk(schedule, sequence, room)
            else:
                return

    def _waits_for_prefix(self, sequence: Sequence) -> bool:
        """Tell whether a running sequence is computing what this one could adopt.

        Only running sequences claim, they wait for nobody's prefix, and they drop their claims however they
        leave: so nobody waits forever.
        """
        if self._donors and sequence.group_key in self._donors and sequence.num_output == 0:
            return self._donors[sequence.group_key].num_computed < sequence.prompt_len
        hashes = sequence.sharable_hashes()
        num_found = len(self._index.match(hashes))
        return num_found < len(hashes) and self._index.is_claimed(hashes[num_found])

    def _start(self, sequence: Sequence, schedule: Schedule) -> bool:
        """Give a sequence a row and blocks for all known tokens; False if there are too few.

        Beside others it must leave a block for each of them, so that it is not preempted at once.
        """
        donor = self._donors.get(sequence.group_key) if sequence.num_output == 0 else None
        shared = self._sharable_blocks(sequence, donor)
        num_new = sequence.num_needed_blocks - len(shared)
        available = self._pool.num_available - self._pool.num_cached_among(shared)
        if num_new + self.num_running > available:
            self._growth.ask_more(num_new + self.num_running - available)
            return False
        self.waiting.remove(sequence)
        self._pool.acquire(shared)
        sequence.blocks = shared + self._pool.allocate(num_new)
        sequence.num_computed = len(shared) * BLOCK_SIZE_TOKENS
        sequence.num_indexed = len(shared)
        if donor is not None:
            self._copy_tail(sequence, donor, schedule)
        self._enter(sequence)
        return True

    def _sharable_blocks(self, sequence: Sequence, donor: Sequence | None) -> list[int]:
        if donor is not None:
            return donor.blocks[: (sequence.prompt_len - 1) // BLOCK_SIZE_TOKENS]
        return self._index.match(sequence.sharable_hashes())

    def _copy_tail(self, sequence: Sequence, donor: Sequence, schedule: Schedule) -> None:
        """Copy the donor's block that both will write to, so that one prompt token is left to compute."""
        tail = (sequence.prompt_len - 1) // BLOCK_SIZE_TOKENS
        if (sequence.prompt_len - 1) % BLOCK_SIZE_TOKENS > 0:
            schedule.copies.append((donor.blocks[tail], sequence.blocks[tail]))
        sequence.num_computed = sequence.prompt_len - 1

    def _enter(self, sequence: Sequence) -> None:
        """Make a sequence that has its blocks a running one."""
        if sequence.started_ns == 0:
            sequence.started_ns = self._clock.now_ns()
            sequence.cached_tokens = sequence.num_computed
            self._metrics.queue_time.observe((sequence.started_ns - sequence.arrival_ns) / NS_PER_S)
            self._metrics.prompt_tokens += sequence.prompt_len
            self._metrics.prefix_queried_tokens += sequence.prompt_len
            self._metrics.prefix_hit_tokens += sequence.num_computed
        sequence.status = Status.RUNNING
        sequence.make_room()
        self._rows.add(sequence)
        if sequence.hashes is not None:
            self._index.claim(sequence.hashes[sequence.num_indexed :], sequence.number)
        if sequence.group_key:
            self._donors.setdefault(sequence.group_key, sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Take row, blocks and claims from a running sequence."""
        if sequence.hashes is not None:
            self._index.drop_claims(sequence.hashes[sequence.num_indexed :], sequence.number)
        self._rows.remove(sequence)
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = sequence.num_indexed = 0
        if self._donors.get(sequence.group_key) is sequence:
            del self._donors[sequence.group_key]
            heirs = [s for s in self._rows.sequences if s.group_key == sequence.group_key]
            if heirs:
                self._donors[sequence.group_key] = max(heirs, key=lambda s: s.num_computed)

    # ---- update ----

    def update(self, schedule: Schedule, output: StepOutput) -> list[TokenEvent]:
        """Take in a step: append tokens, index full blocks, end sequences, make events."""
        now_ns = self._clock.now_ns()
        self._advance(schedule)
        self._rows.advance(schedule, output.token_ids)
        tokens, are_finite = output.token_ids.tolist(), output.is_finite.tolist()
        previous_ns = self._last_update_ns
        num_steady = 0
        events = []
        for row, sequence in enumerate(schedule.sampled()):
            if 0 < sequence.last_token_ns == previous_ns:
                num_steady += 1
            else:
                self._observe_gap(sequence, now_ns)
            if are_finite[row]:
                events.append(self._take_token(sequence, tokens[row], output, row, now_ns))
            else:
                events.append(self._end(sequence, (), FinishReason.ERROR, error=_not_finite(sequence)))
        self._metrics.inter_token.observe((now_ns - self._last_update_ns) / NS_PER_S, num_steady)
        self._metrics.generated_tokens += sum(are_finite)
        self._last_update_ns = now_ns
        self._pace.learn(len(schedule.decodes), schedule.num_chunk_tokens, output.device_ns)
        return events

    def _advance(self, schedule: Schedule) -> None:
        for sequence in schedule.decodes:
            sequence.num_computed += 1
            if sequence.num_computed % BLOCK_SIZE_TOKENS == 0:
                self._index_blocks(sequence)
        for chunk in schedule.chunks:
            sequence = chunk.sequence
            recomputed = min(chunk.num_tokens, max(sequence.num_computed_before - sequence.num_computed, 0))
            sequence.recomputed_tokens += recomputed
            self._metrics.recomputed_tokens += recomputed
            sequence.num_computed += chunk.num_tokens
            self._index_blocks(sequence)

    def _index_blocks(self, sequence: Sequence) -> None:
        """Index the blocks that are full now, under the chain of their hashes."""
        hashes = sequence.hashes
        if hashes is None:
            return
        for block in range(sequence.num_indexed, sequence.num_computed // BLOCK_SIZE_TOKENS):
            if block == len(hashes):
                start = block * BLOCK_SIZE_TOKENS
                parent = hashes[-1] if hashes else sequence.root
                hashes.append(self._index.extend(parent, sequence.tokens[start : start + BLOCK_SIZE_TOKENS]))
            self._index.insert(hashes[block], sequence.blocks[block])
            sequence.num_indexed = block + 1

    def _take_token(self, sequence: Sequence, token: int, output: StepOutput, row: int, now_ns: int) -> TokenEvent:
        sequence.append(token, now_ns)
        request = sequence.request
        logprobs = () if request.params.logprobs is None else logprobs_of(sequence, output, row)
        reason = sequence.finish_reason_after(token)
        if reason is not None:
            return self._end(sequence, (token,), reason, logprobs)
        usage = sequence.usage(now_ns) if request.params.stop else None
        return TokenEvent(request.id, (token,), logprobs, None, None, usage)

    def _observe_gap(self, sequence: Sequence, now_ns: int) -> None:
        if sequence.last_token_ns == 0:
            self._metrics.time_to_first_token.observe((now_ns - sequence.arrival_ns) / NS_PER_S)
        else:
            self._metrics.inter_token.observe((now_ns - sequence.last_token_ns) / NS_PER_S)

    def _end(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...],
        reason: FinishReason,
        logprobs: tuple[TokenLogprobs, ...] = (),
        error: RequestFailed | None = None,
    ) -> TokenEvent:
        """Free what a sequence holds and make its last event."""
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = Status.ABORTED if reason is FinishReason.ABORT else Status.FINISHED
        del self._by_id[sequence.request.id]
        usage = sequence.usage(self._clock.now_ns())
        self._metrics.observe_end(reason, usage)
        stop_token_id = token_ids[-1] if reason is FinishReason.STOP and token_ids else None
        return TokenEvent(sequence.request.id, token_ids, logprobs, reason, stop_token_id, usage, error)


def _not_finite(sequence: Sequence) -> RequestFailed:
    return RequestFailed(
        f"the logits after {sequence.num_tokens:,} tokens are not finite numbers.",
        "check the model file, or send another prompt; other requests are not harmed.",
    )
