"""A deployment: one model, loaded, compiled and running, with everything that serving it needs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill import __version__
from gristmill.backends.base import BLOCK_SIZE_TOKENS, Backend, Executable, Limits
from gristmill.backends.cpu.backend import CpuBackend
from gristmill.core.clock import MonotonicClock
from gristmill.core.errors import GristmillError, SettingsError
from gristmill.core.request import Request, TokenEvent
from gristmill.core.sampling_params import SamplingParams
from gristmill.core.settings import AUTO, EngineSettings
from gristmill.engine.handle import Engine
from gristmill.engine.limits import EngineLimits
from gristmill.graph.ir import Graph
from gristmill.graph.recorder import record
from gristmill.metrics.engine_metrics import EngineMetrics
from gristmill.models.registry import Architecture, load_architecture
from gristmill.planner.fit import Demand, MemoryPlan, plan_memory
from gristmill.planner.machine import measure_machine
from gristmill.repository.packing import pack_natively
from gristmill.text.template import ChatTemplate
from gristmill.text.tokenizer import Tokenizer
from gristmill.weights.checkpoint import Checkpoint, open_checkpoint
from gristmill.weights.load import load, packed_bytes
from gristmill.weights.references import resolve

WARM_UP_TIMEOUT_S = 120.0
Listener = Callable[[list[TokenEvent]], None]


@dataclass(frozen=True, slots=True)
class Resolved:
    """What was resolved from the settings: computed once, printed at start, never changed."""

    model: str
    architecture: str
    num_threads: int
    tier: str
    memory: MemoryPlan
    end_tokens: tuple[str, ...]
    defaults: Mapping[str, Any]

    def lines(self) -> list[str]:
        """Write one line for each thing that an operator wants to see."""
        blocks = f"{self.memory.num_blocks:,} blocks of {BLOCK_SIZE_TOKENS} tokens"
        return [
            f"model      {self.model} ({self.architecture}), context {self.memory.max_model_len:,} tokens",
            f"kernels    {self.tier}, {self.num_threads} threads",
            f"memory     {self.memory.arithmetic()} ({blocks}, committed as needed)",
            f"end tokens {' '.join(self.end_tokens) or 'none'}",
            f"defaults   {', '.join(f'{k}={v}' for k, v in self.defaults.items()) or 'neutral'}",
        ]


class Deployment:
    """A model that is ready to answer. Events go to the one listener, on the engine's thread."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        resolved: Resolved,
        end_token_ids: frozenset[int],
        fingerprint: str,
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.template = template
        self.resolved = resolved
        self.end_token_ids = end_token_ids
        self.fingerprint = fingerprint
        self.engine: Engine  # set by `start`
        self._listener: Listener = _ignore
        self._executable: Executable

    @property
    def max_model_len(self) -> int:
        """Most tokens of one request, prompt and answer together."""
        return self.resolved.memory.max_model_len

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Sampling defaults of the model's generation_config, as `SamplingParams` fields."""
        return self.resolved.defaults

    def listen(self, listener: Listener) -> None:
        """Send all further events to `listener`; there is one at a time."""
        self._listener = listener

    def start(self, executable: Executable, limits: EngineLimits, metrics: EngineMetrics) -> None:
        """Start the engine and answer one warm-up token, so that ready means ready."""
        self._executable = executable
        self.engine = Engine(executable, limits, MonotonicClock(), self._dispatch, metrics)
        self.engine.start()
        try:
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop the engine and free the model; idempotent."""
        self.engine.close(timeout_s)
        self._executable.close()

    def _dispatch(self, events: list[TokenEvent]) -> None:
        self._listener(events)

    def _warm_up(self) -> None:
        done = threading.Event()
        failed: list[GristmillError] = []

        def on_events(events: list[TokenEvent]) -> None:
            failed.extend(event.error for event in events if event.error is not None)
            if any(event.finish_reason is not None for event in events):
                done.set()

        self.listen(on_events)
        params = SamplingParams(temperature=0.0, max_tokens=1, seed=0)
        self.engine.submit(Request("warm-up", [0], params))
        if not done.wait(WARM_UP_TIMEOUT_S):
            raise self.engine.error or SettingsError(
                "the warm-up token took over two minutes.", "see if the machine is overloaded."
            )
        self.listen(_ignore)
        if failed:
            raise failed[0]


def load_deployment(
    reference: str, settings: EngineSettings, *, name: str | None = None, metrics: EngineMetrics | None = None
) -> Deployment:
    """Resolve, load, compile and start a model. `name` is what it is served as; default: `reference`.

    Raises: the operator errors of `core.errors`, each before anything slow is done where that is possible.
    """
    backend = CpuBackend(num_threads=_num_threads(settings), isa=settings.cpu_isa)
    checkpoint = open_checkpoint(resolve(reference))
    architecture = load_architecture(checkpoint.config)
    source = _template_source(checkpoint, settings)
    memory = _plan(checkpoint, architecture, backend, settings)
    graph, rules = _graph(architecture, checkpoint, memory.max_model_len)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files, checkpoint.config, checkpoint.generation_config, source)
    template = _template(source, checkpoint.special_tokens(), settings)
    packed = load(checkpoint, graph.weights, rules, pack_natively)
    executable = backend.compile(graph, packed, _limits(settings, memory, backend.num_threads))
    resolved = Resolved(
        model=reference,
        architecture=str(checkpoint.config["model_type"]),
        num_threads=backend.num_threads,
        tier=executable.fingerprint(),
        memory=memory,
        end_tokens=tuple(tokenizer.id_to_token(i) for i in sorted(tokenizer.end_token_ids)),
        defaults=_sampling_defaults(checkpoint.generation_config),
    )
    fingerprint = _fingerprint(checkpoint.content_id(), graph, executable.fingerprint())
    deployment = Deployment(name or reference, tokenizer, template, resolved, tokenizer.end_token_ids, fingerprint)
    deployment.start(executable, _engine_limits(settings, memory), metrics or EngineMetrics())
    return deployment


def _ignore(events: list[TokenEvent]) -> None:
    """Drop the events of requests that nobody waits for."""


def _num_threads(settings: EngineSettings) -> int:
    return measure_machine().num_usable_cores if settings.threads == AUTO else settings.threads


def _template_source(checkpoint: Checkpoint, settings: EngineSettings) -> str | None:
    return checkpoint.chat_template if settings.chat_template is None else _read_template(settings.chat_template)


def _template(source: str | None, special_tokens: Mapping[str, str], settings: EngineSettings) -> ChatTemplate | None:
    if source is None:
        return None
    template = ChatTemplate(source, bos_token=special_tokens["bos_token"], eos_token=special_tokens["eos_token"])
    if template.problem is not None and settings.chat_template is not None:
        problem = template.problem
        mend = "mend the file there, or leave --chat-template out for the model's own."
        raise SettingsError(f"the chat template {settings.chat_template} is broken: {problem.message}", mend)
    return template


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the chat template {path} cannot be read: {error}.", "give --chat-template a Jinja file.") from error


def _graph(architecture: Architecture[Any], checkpoint: Checkpoint, max_model_len: int | None) -> tuple[Graph, Mapping[str, Any]]:
    config = architecture.parse(checkpoint.config, max_model_len)
    return record(architecture.build, config), architecture.weight_rules(config)


def _plan(checkpoint: Checkpoint, architecture: Architecture[Any], backend: Backend, settings: EngineSettings) -> MemoryPlan:
    asked = None if settings.max_model_len == AUTO else settings.max_model_len
    config = architecture.parse(checkpoint.config, asked)
    graph, rules = _graph(architecture, checkpoint, asked)
    limits = Limits(settings.max_step_tokens, settings.max_num_seqs, config.max_position, 1, 1)
    demand = Demand(
        weight_bytes=packed_bytes(checkpoint, graph.weights, rules),
        activation_bytes=backend.activation_bytes(graph, limits),
        kv_block_bytes=backend.kv_block_bytes(graph),
        block_size_tokens=BLOCK_SIZE_TOKENS,
        model_context_tokens=config.max_position,
    )
    return plan_memory(settings, demand, measure_machine().memory_available_bytes)


def _limits(settings: EngineSettings, memory: MemoryPlan, num_threads: int) -> Limits:
    return Limits(settings.max_step_tokens, settings.max_num_seqs, memory.max_model_len, memory.num_blocks, num_threads)


def _engine_limits(settings: EngineSettings, memory: MemoryPlan) -> EngineLimits:
    return EngineLimits(
        max_num_seqs=settings.max_num_seqs,
        max_step_tokens=settings.max_step_tokens,
        target_step_ns=int(settings.target_step_ms * 1e6),
        max_model_len=memory.max_model_len,
        num_blocks=memory.num_blocks,
        prefix_cache=settings.prefix_cache,
        max_waiting_requests=settings.max_waiting_requests,
        max_waiting_tokens=settings.max_waiting_tokens,
    )


def _sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Take what generation_config says of sampling; `do_sample: false` is greedy, as Hugging Face has it."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: generation_config[name] for name in names if generation_config.get(name) is not None}
    if generation_config.get("do_sample") is False and "temperature" not in given:
        given["temperature"] = 0.0
    return given


def _fingerprint(content_id: str, graph: Graph, tier: str) -> str:
    """Name what equal bytes are promised for: version, weights' content, the graph, kernel tier and KV type.

    The graph, because settings may change it: longrope's frequencies depend on `max_model_len`.
    """
    digest = hashlib.sha256(f"{__version__}|{content_id}|{graph.nodes!r}|{tier}".encode()).hexdigest()
    return f"gm-{__version__}-{tier}-{digest[:12]}"
