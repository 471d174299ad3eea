"""`gristmill serve`: from the settings to a listening server, and to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from gristmill.core.settings import ServeSettings
from gristmill.metrics.engine_metrics import EngineMetrics
from gristmill.repository.deployment import Deployment, load_deployment
from gristmill.server.listener import listen, url_of
from gristmill.server.log import configure_logging
from gristmill.server.settings import server_settings
from gristmill.server.uvicorn_server import Server
from gristmill.service.generate import Service

MAX_PREPARING = 1024  # requests with long texts that may wait to be rendered and encoded
Fetch = Callable[[str], object]
Announce = Callable[[str, Deployment], None]


def serve(model: str, settings: ServeSettings, fetch: Fetch, announce: Announce) -> int:
    """Load `model` and serve it until a signal; return the exit code: 0, or 1 if the engine died.

    `fetch` brings the model here and tells the operator so; `announce` gets the URL and the deployment, once the
    server is ready. The port is taken before the model is fetched, so that a busy one is known at once.
    Raises: the operator errors of `core.errors`.
    """
    own = server_settings(settings)
    configure_logging(own.log_format)
    listener = listen(own.host, own.port)
    with contextlib.closing(listener):
        fetch(model)
        metrics = EngineMetrics()
        deployment = load_deployment(model, settings, name=settings.name, metrics=metrics)
        service = Service({deployment.name: deployment}, max_preparing=MAX_PREPARING)
        try:
            server = Server(service, own, metrics.exposition, lambda: announce(url_of(own.host, listener), deployment))
            return server.run_until_stopped(listener)
        finally:
            service.close()
            deployment.close()
