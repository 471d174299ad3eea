"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill.server.gateway import Gateway
from gristmill.server.reply import json_reply

if TYPE_CHECKING:
    from gristmill.repository.deployment import Deployment


def model_routes(gateway: Gateway) -> list[Route]:
    """Return the routes that say what is served, with the defaults that hold where a request says nothing."""
    created = int(time.time())

    async def list_models(_: Request) -> Response:
        models = [_model(deployment, created) for deployment in gateway.service.deployments.values()]
        return json_reply({"object": "list", "data": models})

    async def retrieve(request: Request) -> Response:
        return json_reply(_model(gateway.service.deployment(request.path_params["model"]), created))

    return [Route("/models", list_models, methods=["GET"]), Route("/models/{model:path}", retrieve, methods=["GET"])]


def _model(deployment: Deployment, created: int) -> dict[str, Any]:
    return {
        "id": deployment.name,
        "object": "model",
        "created": created,
        "owned_by": "gristmill",
        "max_model_len": deployment.max_model_len,
        "system_fingerprint": deployment.fingerprint,
        "default_sampling": {"temperature": 1.0, "top_p": 1.0, **deployment.defaults},
        "end_token_ids": sorted(deployment.end_token_ids),
    }
