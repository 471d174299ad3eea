"""The application: routes, errors in OpenAI's shape, and the front before them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from gristmill.core.errors import GristmillError
from gristmill.server.front import Front
from gristmill.server.gateway import Gateway, MetricsText
from gristmill.server.lifecycle import Lifecycle
from gristmill.server.openai.chat import chat_routes
from gristmill.server.openai.completions import completion_routes
from gristmill.server.openai.models import model_routes
from gristmill.server.openai.tokens import token_routes
from gristmill.server.probes import probe_routes
from gristmill.server.reply import error_reply, fault_reply, plain_error
from gristmill.server.settings import ServerSettings
from gristmill.service.generate import Service


def create_app(
    service: Service, settings: ServerSettings, lifecycle: Lifecycle | None = None, metrics_text: MetricsText = lambda: b""
) -> ASGIApp:
    """Return the ASGI application that serves `service`; `lifecycle` is shared with whoever stops the server."""
    lifecycle = lifecycle or Lifecycle()
    return Front(create_routes(Gateway(service, settings, lifecycle, metrics_text)), settings, lifecycle)


def create_routes(gateway: Gateway) -> FastAPI:
    """Return the routes alone. The front takes `/v1` away, so that paths here are without it."""
    routes: list[BaseRoute] = [
        *chat_routes(gateway),
        *completion_routes(gateway),
        *model_routes(gateway),
        *token_routes(gateway),
        *probe_routes(gateway),
    ]
    app = FastAPI(routes=routes, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(GristmillError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)
    return app


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, GristmillError)
    return error_reply(error)


async def _on_fault(_: Request, __: Exception) -> Response:
    """Answer a fault of ours; it is raised again behind this, and logged by the front."""
    return fault_reply()


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:200]
    if error.status_code == 405:
        mend = "use the method that the header Allow names."
        return plain_error(405, f"{path} does not take {request.method[:20]}.", mend, "method_not_allowed", error.headers)
    if error.status_code == 404:
        return plain_error(404, f"there is no route {path!r}.", "see docs/http.md for the routes.", "not_found")
    return plain_error(error.status_code, str(error.detail), "see docs/http.md.", "http_error", error.headers)
