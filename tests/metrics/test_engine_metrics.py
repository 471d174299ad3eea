"""What Prometheus scrapes, and that it is what the engine counted."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from gristmill.core.request import FinishReason, Usage
from gristmill.metrics.engine_metrics import EngineMetrics
from gristmill.metrics.histogram import Histogram


def _samples(metrics: EngineMetrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_metric_that_operators_expect_is_there_with_its_unit() -> None:
    names = set(_samples(EngineMetrics()))
    for name in (
        *(f"requests_total{{{outcome}}}" for outcome in ("stop", "length", "abort", "error", "refused")),
        "requests_running",
        "requests_waiting",
        "kv_blocks",
        "kv_blocks_committed",
        "kv_blocks_used",
        "kv_blocks_cached",
        "kv_used_ratio",
        "kv_growth_stalled",
        "prefix_cache_queried_tokens_total",
        "prefix_cache_hit_tokens_total",
        "preemptions_total",
        "recomputed_tokens_total",
        "prompt_tokens_total",
        "generated_tokens_total",
        "device_seconds_total",
        "time_to_first_token_seconds_sum",
        "inter_token_seconds_sum",
        "end_to_end_seconds_sum",
        "queue_time_seconds_sum",
        "step_seconds_sum",
        "batch_sequences_sum",
    ):
        assert f"gristmill_{name}" in names
    assert all(re.fullmatch(r"gristmill_[a-z_]+(\{.*\})?", name) for name in names)


def test_counts_are_as_they_were_given() -> None:
    metrics = EngineMetrics()
    metrics.observe_step(3, 20_000_000)
    metrics.observe_end(FinishReason.STOP, Usage(queue_ns=10**9, prefill_ns=10**9, decode_ns=10**9))
    metrics.observe_end(FinishReason.ABORT, Usage(queue_ns=10**9))
    metrics.num_blocks, metrics.num_referenced_blocks = 8, 2
    samples = _samples(metrics)
    assert samples["gristmill_device_seconds_total"] == 0.02
    assert samples["gristmill_step_seconds_bucket{0.02}"] == 1
    assert samples["gristmill_batch_sequences_bucket{2}"] == 0
    assert samples["gristmill_batch_sequences_bucket{4}"] == 1
    assert samples["gristmill_requests_total{stop}"] == samples["gristmill_requests_total{abort}"] == 1
    assert (samples["gristmill_end_to_end_seconds_count"], samples["gristmill_end_to_end_seconds_sum"]) == (1, 3.0)
    assert samples["gristmill_kv_used_ratio"] == 0.25


def test_equal_observations_are_counted_at_once() -> None:
    histogram = Histogram("gristmill_x_seconds", "X.", (0.1, 1.0))
    histogram.observe(0.1, 5)
    histogram.observe(2.0)
    histogram.observe(0.5, 0)
    family = histogram.family()
    values = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert values == {"0.1": 5, "1": 5, "+Inf": 6, "gristmill_x_seconds_count": 6, "gristmill_x_seconds_sum": 2.5}


def test_two_engines_in_one_process_do_not_share_counters() -> None:
    first, second = EngineMetrics(), EngineMetrics()
    first.preemptions += 1
    assert _samples(second)["gristmill_preemptions_total"] == 0
