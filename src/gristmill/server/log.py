"""One structured line per request: ids, tokens, times and how it ended; never its content."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from typing import Any

from gristmill.service.generation import Generation

access_log = logging.getLogger("gristmill.access")


@dataclass(slots=True)
class RequestRecord:
    """What is known of a request when it ends; routes fill in what they learn."""

    id: str
    method: str
    path: str
    started_ns: int
    tenant: str = ""
    status: int = 0
    generation: Generation | None = None


def write_record(record: RequestRecord, now_ns: int) -> None:
    """Log the line of a request that has ended."""
    fields: dict[str, Any] = {
        "id": record.id,
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "wall_ms": _ms(now_ns - record.started_ns),
    }
    if record.tenant:
        fields["tenant"] = record.tenant
    if record.generation is not None:
        fields |= _generation_fields(record.generation)
    access_log.info("request", extra={"fields": fields})


def configure_logging(log_format: str) -> None:
    """Send the log to stderr, as text or as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    for name, level in (("gristmill", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


def _generation_fields(generation: Generation) -> dict[str, Any]:
    usage = generation.usage
    return {
        "model": generation.deployment.name,
        "seed": generation.seed,
        "prompt_tokens": usage.prompt_tokens or sum(map(len, generation.prompts)),
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "preemptions": usage.preemptions,
        "queue_ms": _ms(usage.queue_ns),
        "prefill_ms": _ms(usage.prefill_ns),
        "decode_ms": _ms(usage.decode_ns),
        "finish": _outcome(generation),
    }


def _outcome(generation: Generation) -> str:
    if generation.error is not None:
        return generation.error.code
    return "cancelled" if generation.is_cancelled else ",".join(generation.finish_reasons)


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        line |= {"event": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        words = [self.formatTime(record, "%H:%M:%S"), record.levelname.lower(), record.getMessage()]
        line = " ".join([*words, *(f"{key}={_word(value)}" for key, value in fields.items())])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _word(value: Any) -> str:
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text and '"' not in text else json.dumps(text)
