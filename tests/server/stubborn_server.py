"""A server process for the signal tests: the scripted deployment, held, so that requests run until it is freed.

Prints the URL when it is ready. SIGUSR1 frees the engine.
"""

from __future__ import annotations

import signal
import sys

from tests.service.scripted import scripted_deployment

from gristmill.server.listener import listen, url_of
from gristmill.server.log import configure_logging
from gristmill.server.settings import ServerSettings
from gristmill.server.uvicorn_server import Server
from gristmill.service.generate import Service


def main(drain_timeout_s: float) -> int:
    configure_logging("json")
    with scripted_deployment() as deployment:
        deployment.executable.hold()
        deployment.executable.permit(2)
        signal.signal(signal.SIGUSR1, lambda *_: deployment.executable.free())
        service = Service({"copy": deployment})  # type: ignore[dict-item]
        listener = listen("127.0.0.1", 0)
        settings = ServerSettings(port=0, drain_timeout_s=drain_timeout_s)
        server = Server(
            service, settings, deployment.metrics.exposition, lambda: print(url_of("127.0.0.1", listener), flush=True)
        )
        return server.run_until_stopped(listener)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
