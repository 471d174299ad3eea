"""What the operator asked for: frozen, every field with help, unit, range and neutral value.

The flag (`--max-num-seqs`), the environment name (`GRISTMILL_MAX_NUM_SEQS`), the file key (`max_num_seqs`) and the
table in the documents all derive from the field. What was *resolved* from it is another type, computed once.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from gristmill.core.errors import SettingsError
from gristmill.core.units import parse_bytes

AUTO: Literal["auto"] = "auto"
ENVIRONMENT_PREFIX = "GRISTMILL_"
DAY_S = 86_400.0

S = TypeVar("S", bound="EngineSettings")


class EngineSettings(BaseModel):
    """How a model is loaded and run; shared by every command and by the Python class."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    max_model_len: Annotated[int, Field(ge=2)] | Literal["auto"] = Field(
        AUTO,
        description="Most tokens of one request, prompt and answer together; auto = the model's context, "
        "lowered until it fits in memory. Unit: tokens.",
    )
    kv_memory: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        AUTO,
        description="Memory for the KV cache, like 512MiB; auto = the smaller of max_num_seqs x max_model_len and a quarter "
        "of the available memory. Unit: bytes.",
    )
    memory_utilization: float = Field(
        0.9,
        gt=0.0,
        le=1.0,
        description="Share of the available memory that weights, activations and KV may take together. 1 = all of it.",
    )
    max_num_seqs: int = Field(64, ge=1, le=1024, description="Most sequences that run at once. Unit: sequences.")
    max_step_tokens: int = Field(512, ge=16, le=65536, description="Most tokens computed in one step. Unit: tokens.")
    target_step_ms: float = Field(
        100.0,
        ge=0.0,
        le=3_600_000.0,
        description="A prefill chunk is cut so that a step beside decoding streams takes no longer; 0 = no cap. Unit: ms.",
    )
    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        AUTO, description="Compute threads; auto = the usable physical cores."
    )
    cpu_isa: Literal["auto", "portable", "avx2", "avx512"] = Field(
        "auto", description="Kernel tier; auto = the best that this CPU has."
    )
    prefix_cache: bool = Field(True, description="Reuse the KV blocks of equal prompt beginnings (on/off).")
    chat_template: Path | None = Field(None, description="A Jinja file that replaces the model's chat template.")
    max_waiting_requests: int = Field(4096, ge=1, description="Requests that may wait; one more is refused with 429.")
    max_waiting_tokens: int = Field(
        4_194_304, ge=1, description="Prompt tokens that may wait; more are refused with 429. Unit: tokens."
    )

    @field_validator("kv_memory", mode="before")
    @classmethod
    def _read_bytes(cls, value: Any) -> Any:
        return parse_bytes(value, "kv_memory") if isinstance(value, str) and value != AUTO else value

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        # Python takes True for 1: `threads = true` in a file would be one thread.
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("must not be true or false")
        return value

    @field_validator("max_model_len", "threads", mode="before")
    @classmethod
    def _read_count(cls, value: Any) -> Any:
        return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


class ServeSettings(EngineSettings):
    """`gristmill serve`: the engine's settings and the server's."""

    host: str = Field("127.0.0.1", description="Address to listen on; any but loopback needs keys, or --no-auth.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 = any free one.")
    name: str | None = Field(None, description="Name under which the model is served; default: its reference.")
    api_key_file: Path | None = Field(
        None, description="A file with one key per line; every route but /health and /ready then needs one."
    )
    no_auth: bool = Field(
        False, description="Serve without keys on an address that is not loopback: whoever reaches it may use it."
    )
    cors_origin: tuple[str, ...] = Field(
        (), description="A browser origin that may call this server; several: the flag again, in one text commas between."
    )
    metrics_open: bool = Field(False, description="/metrics needs no key.")
    drain_timeout_s: float = Field(
        30.0, ge=0.0, le=DAY_S, description="After SIGTERM, how long running requests may go on. Unit: s."
    )
    sse_comment_s: float = Field(
        15.0, ge=0.01, le=DAY_S, description="A stream silent for so long gets a comment line, so that no proxy cuts it. Unit: s."
    )
    body_limit: int = Field(32 * 2**20, ge=1024, description="Largest request body. Unit: bytes.")
    log_format: Literal["text", "json"] = Field("text", description="How log lines are written.")

    @field_validator("cors_origin", mode="before")
    @classmethod
    def _read_list(cls, value: Any) -> Any:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("body_limit", mode="before")
    @classmethod
    def _read_body_limit(cls, value: Any) -> Any:
        return parse_bytes(value, "body_limit") if isinstance(value, str) else value


def resolve_settings(kind: type[S], flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> S:
    """Merge file, environment and flags, the later winning, into settings.

    Raises: SettingsError naming the key, its value and the nearest known key.
    """
    merged = _from_file(kind, file) if file is not None else {}
    merged |= _from_environment(kind, environment)
    for key in flags:
        _check_known(kind, key, f"there is no setting {key!r}.")
    merged |= {key: value for key, value in flags.items() if value is not None}
    try:
        return kind(**merged)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else "settings"
        raise SettingsError(
            f"{key} is {merged.get(key)!r}: {first['msg'].removeprefix('Value error, ')}.",
            f"give --{key.replace('_', '-')} a value within its range: {_help_of(kind, key)}",
        ) from error


def _help_of(kind: type[EngineSettings], key: str) -> str:
    field = kind.model_fields.get(key)
    return field.description or "" if field is not None else ""


def _from_file(kind: type[EngineSettings], file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            f"the settings file {file} cannot be read: {error}.", "give --config a TOML file of `key = value` lines."
        ) from error
    values = {key.replace("-", "_"): value for key, value in values.items()}
    for key in values:
        _check_known(kind, key, f"the settings file {file} has the key {key!r}, which is unknown here.")
    return values


def _from_environment(kind: type[EngineSettings], environment: Mapping[str, str]) -> dict[str, Any]:
    names = {ENVIRONMENT_PREFIX + key.upper(): key for key in kind.model_fields}
    return {key: environment[name] for name, key in names.items() if name in environment}


def _check_known(kind: type[EngineSettings], key: str, message: str) -> None:
    if key not in kind.model_fields:
        if key in ServeSettings.model_fields:
            raise SettingsError(message, "it is a setting of `gristmill serve` only: take it out here.")
        nearest = difflib.get_close_matches(key, kind.model_fields, n=1, cutoff=0.0)
        raise SettingsError(message, f"did you mean {nearest[0]!r}?")
