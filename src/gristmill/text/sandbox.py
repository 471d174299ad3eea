"""Where chat templates run: Jinja2's immutable sandbox, with what Hugging Face gives templates, and bounds.

A template comes with a model, so that it is as little trusted as the model's file. The sandbox keeps it from Python's
objects; the bounds here keep its loops, its products and its output finite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# A template goes through the messages a few times; some compare each with all that follow. Each step takes about 2 µs.
LOOP_STEPS_BASE = 100_000
LOOP_STEPS_PER_MESSAGE = 1_000
LOOP_STEPS_MAX = 2_000_000
OUTPUT_CHARS_MAX = 32 * 2**20
_POWER_MAX = 4096
_COUNT_STEP = "gristmill_count_step"
_JOIN = "gristmill_join"
RESERVED_NAMES = frozenset({_COUNT_STEP, _JOIN})


def compile_template(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    """Compile a chat template. `now` is what `strftime_now` formats. Raises: jinja2.TemplateSyntaxError."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    environment.globals[_JOIN] = _join
    tree: nodes.Template = _Bounds().visit(environment.parse(source))
    tree.set_environment(environment)
    return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def render_bounded(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Render, and stop a template that loops or writes without end; `variables` has at least `messages`.

    Raises: whatever the template causes.
    """
    steps_max = min(LOOP_STEPS_BASE + LOOP_STEPS_PER_MESSAGE * len(variables["messages"]), LOOP_STEPS_MAX)
    steps = iter(range(steps_max))

    def count_step() -> str:
        if next(steps, None) is None:
            raise SecurityError(f"the template took over {steps_max:,} steps in its loops")
        return ""

    return "".join(_bounded(template.generate({**variables, _COUNT_STEP: count_step})))


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        _check_size(num_chars)
        yield piece


def _check_size(num_chars: int) -> None:
    if num_chars > OUTPUT_CHARS_MAX:
        raise SecurityError(f"the template made a text of over {OUTPUT_CHARS_MAX:,} characters")


def _join(*values: Any) -> str:
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


class _GenerationTag(Extension):
    """`{% generation %}` marks what a trainer learns from; for us its body is all there is to it."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (Jinja declares it as an instance's)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Bounds(NodeTransformer):
    """Makes every turn of a loop count, and every `~` check the size of what it makes."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call(_COUNT_STEP, [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call(_JOIN, node.nodes, node.lineno)


def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load", lineno=line), arguments, [], None, None, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with sums, products and powers that cannot take all memory."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would be absurdly large, compute the rest."""
        if operator == "**" and isinstance(right, int) and right > _POWER_MAX:
            raise SecurityError(f"the power {right:,} is too large")
        if operator == "+":
            _check_size(_size(left) + _size(right))
        if operator == "*":
            _check_size(_product_size(left, right))
        return super().call_binop(context, operator, left, right)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _product_size(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    times = [_size(one) * abs(other) for one, other in ((left, right), (right, left)) if isinstance(other, int)]
    return max(times, default=0)
