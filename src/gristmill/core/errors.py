"""Every error a user or an operator can cause, each with the facts and the mend.

GristmillError
├── RequestError            4xx: the caller can mend the request
│   ├── InvalidRequest          400 invalid_request
│   ├── UnsupportedField        400 unsupported_field
│   ├── PromptTooLong           400 context_length_exceeded
│   ├── TemplateError           400 template_error
│   ├── Unauthorized            401 invalid_api_key
│   ├── OriginRefused           403 origin_refused
│   ├── ModelNotFound           404 model_not_found
│   ├── BodyTooLarge            413 body_too_large
│   └── QueueFull               429 queue_full
├── ServerUnavailable       503 the server is stopping or its engine died
├── RequestFailed           500 this request failed, others go on (NaN logits)
└── OperatorError           the person who started the process can mend it
    ├── SettingsError           a flag, key or value
    ├── ModelFileError          a broken, hostile or unsupported model file
    ├── ModelReferenceError     a model reference that names nothing
    ├── UnsupportedArchitecture
    ├── UnsupportedHardware     a kernel tier this CPU lacks
    ├── NotEnoughMemory
    └── AddressInUse
"""

from __future__ import annotations

from typing import ClassVar


class GristmillError(Exception):
    """Base of all errors that a person can cause: `message` has the facts, `mend` says what to do.

    `code` is stable and machine-readable; `http_status` is what a server answers with; `param` names
    the offending request field, if there is one; `retry_after_s` is set where trying again may help.
    """

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    error_type: ClassVar[str] = "server_error"
    retry_after_s: ClassVar[int | None] = None

    def __init__(self, message: str, mend: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend
        self.param = param

    def __str__(self) -> str:
        return f"{self.message}\n  Mend: {self.mend}"


class RequestError(GristmillError):
    """The caller can mend the request; nothing else is harmed."""

    code = "invalid_request"
    http_status = 400
    error_type = "invalid_request_error"


class InvalidRequest(RequestError):
    """A field has a wrong type, a wrong range or contradicts another."""


class UnsupportedField(RequestError):
    """A known field that would change the answer and is not supported."""

    code = "unsupported_field"


class PromptTooLong(RequestError):
    """The prompt leaves no room for one token; the message has both numbers."""

    code = "context_length_exceeded"


class TemplateError(RequestError):
    """The chat template is missing or refused these messages."""

    code = "template_error"


class Unauthorized(RequestError):
    """No key, or a wrong one."""

    code = "invalid_api_key"
    http_status = 401
    error_type = "authentication_error"


class OriginRefused(RequestError):
    """A browser page of another origin, or a rebound host name, called an open loopback server."""

    code = "origin_refused"
    http_status = 403
    error_type = "permission_error"


class ModelNotFound(RequestError):
    """No model of this name is served here."""

    code = "model_not_found"
    http_status = 404


class BodyTooLarge(RequestError):
    """The request body is over the limit."""

    code = "body_too_large"
    http_status = 413


class QueueFull(RequestError):
    """Too many requests, or too many prompt tokens, are waiting."""

    code = "queue_full"
    http_status = 429
    error_type = "rate_limit_error"
    retry_after_s = 1


class ServerUnavailable(GristmillError):
    """The server is stopping, or its engine has died."""

    code = "unavailable"
    http_status = 503
    retry_after_s = 1


class RequestFailed(GristmillError):
    """This request failed inside the engine; the others go on."""

    code = "request_failed"


class OperatorError(GristmillError):
    """The person who started the process can mend it."""

    code = "operator_error"


class SettingsError(OperatorError):
    """A flag, a key of the settings file, or a value in it is wrong."""

    code = "settings_error"


class ModelFileError(OperatorError):
    """A model file is broken, hostile, or uses something unsupported; the tensor or key is named."""

    code = "model_file_error"


class ModelReferenceError(OperatorError):
    """A model reference names nothing that can be found or fetched."""

    code = "model_reference_error"


class UnsupportedArchitecture(OperatorError):
    """The model's architecture has no file in `models/`."""

    code = "unsupported_architecture"


class UnsupportedHardware(OperatorError):
    """A kernel tier was forced that this CPU lacks."""

    code = "unsupported_hardware"


class NotEnoughMemory(OperatorError):
    """Weights + activations + KV exceed the budget; the message has the arithmetic."""

    code = "not_enough_memory"


class AddressInUse(OperatorError):
    """Another process listens on this address."""

    code = "address_in_use"
