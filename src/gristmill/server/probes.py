"""Is it alive, is it ready, which version, and how it does: none of these queues a generation."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill import __version__
from gristmill.server.gateway import Gateway
from gristmill.server.reply import json_reply

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def probe_routes(gateway: Gateway) -> list[Route]:
    """Return /health, /ready, /version and /metrics."""

    async def health(_: Request) -> Response:
        fault = engine_fault(gateway)
        return json_reply({"status": fault or "alive"}, 503 if fault else 200)

    async def ready(_: Request) -> Response:
        fault = "stopping" if gateway.lifecycle.is_draining else engine_fault(gateway)
        return json_reply({"status": fault or "ready"}, 503 if fault else 200)

    async def version(_: Request) -> Response:
        return json_reply({"version": __version__})

    async def metrics(_: Request) -> Response:
        return Response(gateway.metrics_text(), 200, None, METRICS_TYPE)

    return [
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def engine_fault(gateway: Gateway) -> str | None:
    """Say what is wrong with an engine: dead, or its loop's heart has not beaten for too long."""
    for name, deployment in gateway.service.deployments.items():
        if not deployment.engine.is_alive:
            return f"the engine of {name} has died"
        age_s = deployment.engine.heartbeat_age_ns() / 1e9
        if age_s > gateway.settings.heartbeat_limit_s:
            return f"the engine of {name} has given no sign of life for {age_s:.0f} s"
    return None
