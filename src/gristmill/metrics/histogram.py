"""A histogram that takes many equal observations at once, and costs nothing until it is scraped."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


class Histogram:
    """Counts per bucket and a sum. One thread writes; any thread may read, a step late at most."""

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = bounds  # ascending upper bounds, inclusive
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self) -> HistogramMetricFamily:
        """Return what Prometheus scrapes."""
        totals = list(accumulate(list(self._counts)))
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        return HistogramMetricFamily(
            self._name, self._documentation, buckets=list(zip(names, map(float, totals), strict=True)), sum_value=self._sum
        )
