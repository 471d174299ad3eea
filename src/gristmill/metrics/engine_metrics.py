"""What an engine counts. Plain numbers that the engine's thread adds to; Prometheus reads them when it scrapes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gristmill.core.request import FinishReason, Usage
from gristmill.core.units import NS_PER_S
from gristmill.metrics.histogram import Histogram

LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
STEP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
SIZE_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
REFUSED = "refused"  # by a limit, before it ever ran
OUTCOMES = (*(reason.value for reason in FinishReason), REFUSED)


class EngineMetrics(Collector):
    """One engine's counters, gauges and histograms, in a registry of their own.

    Units are in the names; all names begin with `gristmill_`.
    """

    def __init__(self) -> None:
        self.requests = dict.fromkeys(OUTCOMES, 0)
        self.num_running = self.num_waiting = 0
        self.num_blocks = self.num_committed_blocks = self.num_referenced_blocks = self.num_cached_blocks = 0
        self.is_kv_growth_stalled = False
        self.prefix_queried_tokens = self.prefix_hit_tokens = 0
        self.preemptions = self.recomputed_tokens = 0
        self.prompt_tokens = self.generated_tokens = 0
        self.device_ns = 0
        self.time_to_first_token = _latency("time_to_first_token", "From arrival to the first token.")
        self.inter_token = Histogram("gristmill_inter_token_seconds", "Between two tokens of a sequence.", STEP_BOUNDS_S)
        self.end_to_end = _latency("end_to_end", "From arrival to the last token.")
        self.queue_time = _latency("queue_time", "From arrival to the first step.")
        self.step_time = Histogram("gristmill_step_seconds", "Device time of a step.", STEP_BOUNDS_S)
        self.batch_size = Histogram("gristmill_batch_sequences", "Sequences in a step.", SIZE_BOUNDS)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def observe_step(self, num_sequences: int, device_ns: int) -> None:
        """Take in one step."""
        self.device_ns += device_ns
        self.step_time.observe(device_ns / NS_PER_S)
        self.batch_size.observe(num_sequences)

    def observe_end(self, reason: FinishReason, usage: Usage) -> None:
        """Take in a request that has ended."""
        self.requests[reason.value] += 1
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.end_to_end.observe((usage.queue_ns + usage.prefill_ns + usage.decode_ns) / NS_PER_S)

    def exposition(self) -> bytes:
        """Return the registry in Prometheus's text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; called by the registry when it is scraped."""
        yield from self._counters()
        yield from self._gauges()
        for histogram in (
            self.time_to_first_token,
            self.inter_token,
            self.end_to_end,
            self.queue_time,
            self.step_time,
            self.batch_size,
        ):
            yield histogram.family()

    def _counters(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("gristmill_requests", "Requests that ended, by how.", labels=["outcome"])
        for outcome, count in self.requests.items():
            requests.add_metric([outcome], count)
        yield requests
        for name, documentation, value in (
            ("prompt_tokens", "Prompt tokens of started requests, cached ones too.", self.prompt_tokens),
            ("generated_tokens", "Tokens generated.", self.generated_tokens),
            ("prefix_cache_queried_tokens", "Prompt tokens looked up in the prefix cache.", self.prefix_queried_tokens),
            ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache.", self.prefix_hit_tokens),
            ("preemptions", "Sequences stopped for lack of KV blocks, to be resumed.", self.preemptions),
            ("recomputed_tokens", "Tokens computed again after a preemption.", self.recomputed_tokens),
            ("device_seconds", "Time inside steps.", self.device_ns / NS_PER_S),
        ):
            yield CounterMetricFamily(f"gristmill_{name}", documentation, value=value)

    def _gauges(self) -> Iterator[Metric]:
        used_ratio = self.num_referenced_blocks / self.num_blocks if self.num_blocks else 0.0
        for name, documentation, value in (
            ("requests_running", "Sequences that run.", self.num_running),
            ("requests_waiting", "Sequences that wait.", self.num_waiting),
            ("kv_blocks", "KV blocks of the address space.", self.num_blocks),
            ("kv_blocks_committed", "KV blocks with memory behind them.", self.num_committed_blocks),
            ("kv_blocks_used", "KV blocks held by sequences.", self.num_referenced_blocks),
            ("kv_blocks_cached", "KV blocks held by the prefix cache alone.", self.num_cached_blocks),
            ("kv_used_ratio", "KV blocks held by sequences, of all.", used_ratio),
            ("kv_growth_stalled", "1 while memory is too short to commit more KV blocks.", int(self.is_kv_growth_stalled)),
        ):
            yield GaugeMetricFamily(f"gristmill_{name}", documentation, value=value)


def _latency(name: str, documentation: str) -> Histogram:
    return Histogram(f"gristmill_{name}_seconds", documentation, LATENCY_BOUNDS_S)
