"""What every route works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gristmill.server.lifecycle import Lifecycle
from gristmill.server.settings import ServerSettings
from gristmill.service.generate import Service

MetricsText = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Gateway:
    """The service behind the server, and the server's own state."""

    service: Service
    settings: ServerSettings
    lifecycle: Lifecycle
    metrics_text: MetricsText  # all metrics in Prometheus' text format
