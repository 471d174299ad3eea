"""Reading a request's body: bounded, and refused with the field that is wrong."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from gristmill.core.errors import InvalidRequest
from gristmill.server.front import too_large

M = TypeVar("M", bound="Body")


class Body(BaseModel):
    """A JSON object, strictly typed; unknown fields are kept, so that they can be named."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=(), frozen=True)

    def unknown_fields(self) -> dict[str, Any]:
        """Return the fields that the model does not know, apart from nulls."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}


async def read_body(request: Request, kind: type[M], limit_bytes: int) -> M:
    """Read and check a body. Raises: InvalidRequest naming the field, BodyTooLarge while it still comes in."""
    chunks = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit_bytes:
                raise too_large(f"over {limit_bytes:,} bytes", limit_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise InvalidRequest("the client left before its body was sent.", "send it again.") from None
    return parse_body(b"".join(chunks), kind)


def parse_body(data: bytes, kind: type[M]) -> M:
    """Parse a body that is there as a whole. Raises: InvalidRequest."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        reason = first["msg"].removeprefix("Invalid JSON: ")
        return InvalidRequest(f"the body is not JSON: {reason}.", "send one JSON object in UTF-8.")
    # Members of a union add their own name to the location; a field's name is enough.
    param = str(first["loc"][0]) if first["loc"] else None
    name = param or "the body"
    return InvalidRequest(f"{name} is wrong: {first['msg']}.", "send the type and range that OpenAI's API has.", param=param)
