"""The renderer process of chat templates: jinja2's sandbox, within limits enforced by the kernel.

The sandbox stops a template from running code, but not from using all time and memory. So untrusted templates
are rendered in a limited process (`util.limited_child`), and their output is limited here.
"""

import datetime
import json
import unicodedata  # noqa: F401  (the compiler needs it for non-ASCII names; no file can be opened later)
from collections.abc import Iterator
from encodings import ascii, latin_1, unicode_escape  # noqa: F401  (as above)
from types import TracebackType
from typing import Any

import jinja2
import jinja2.debug
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ropechat.engine.templates.limits import (
    CPU_SECONDS,
    MAX_ERROR_LENGTH,
    MAX_MEMORY_BYTES,
    MAX_OUTPUT_BYTES,
)
from ropechat.util.limited_child import answer_requests, begin, cpu_limit, lock_down

_MAX_COMPILED = 8
_UNSAFE_GLOBALS = ("lipsum", "cycler", "joiner")
_FILE = "<template>"  # jinja2's name of an unnamed template


class RefusalError(jinja2.TemplateError):
    """The template called raise_exception."""


class OutputLimitError(Exception):
    """The rendered text exceeds the limit."""


class GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's text for training; renders its content."""

    tags = {"generation"}  # noqa: RUF012  (as declared by jinja2)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`tojson` as in transformers: without HTML escapes, keys in order."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object = "") -> None:
    raise RefusalError(str(message))


def environment(*, strict: bool = False) -> jinja2.Environment:
    """The environment that templates expect: trim_blocks, lstrip_blocks, loop controls, generation, `tojson`.

    strict: an undefined variable is an error, else it is empty.
    optimized=False: constant folding would execute expressions while the template is compiled.
    """
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        extensions=[GenerationTag, loopcontrols],
        undefined=jinja2.StrictUndefined if strict else jinja2.Undefined,
    )
    for name in _UNSAFE_GLOBALS:
        made.globals.pop(name, None)
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    return made


class Renderer:
    """Renders requests, JSON of {"source", "names", "now", "strict"}; caches the last compiled templates."""

    def __init__(self) -> None:
        self._environments = {strict: environment(strict=strict) for strict in (False, True)}
        self._compiled: dict[tuple[str, bool], jinja2.Template] = {}

    def reply(self, body: bytes) -> dict[str, Any]:
        """Return {"text"}, or {"error", "line", "kind"} with the kind "raised", "failed" or "limit"."""
        try:
            request = json.loads(body)
            now = datetime.datetime.fromisoformat(request["now"])
            template = self._template(request["source"], strict=request.get("strict", False))
            if request["names"] is None:
                return {"text": " ".join(self._used(request["source"]))}
            return {"text": self._text(template, {**request["names"], "strftime_now": now.strftime})}
        except RefusalError as error:
            return _failure("raised", str(error), error)
        except OutputLimitError:
            return _failure("limit", f"must render at most {MAX_OUTPUT_BYTES >> 20} MB")
        except MemoryError:
            return _failure("limit", f"must take at most {MAX_MEMORY_BYTES >> 20} MB of memory")
        except RecursionError as error:
            return _failure("limit", "is nested or recurses too deeply", error)
        except Exception as error:
            return _failure("failed", str(error).removesuffix(".") or type(error).__name__, error)

    def _template(self, source: str, *, strict: bool) -> jinja2.Template:
        template = self._compiled.get((source, strict))
        if template is None:
            template = self._environments[strict].from_string(source)
            while len(self._compiled) >= _MAX_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[source, strict] = template
        return template

    def _used(self, source: str) -> list[str]:
        """The names that a template takes from its caller."""
        made = self._environments[False]
        names = jinja2.meta.find_undeclared_variables(made.parse(source))
        return sorted(names - {*made.globals, "strftime_now"})

    def _text(self, template: jinja2.Template, names: dict[str, Any]) -> str:
        pieces, size = [], 0
        for piece in template.generate(names):
            size += len(piece)
            if size > MAX_OUTPUT_BYTES:
                raise OutputLimitError
            pieces.append(piece)
        text = "".join(pieces)
        if len(text.encode("utf-8", "surrogatepass")) > MAX_OUTPUT_BYTES:
            raise OutputLimitError
        return text


def _failure(kind: str, what: str, error: Exception | None = None) -> dict[str, Any]:
    line = getattr(error, "lineno", None)
    if error is not None and line is None:
        lines = [at.tb_lineno for at in _frames(error.__traceback__)]
        line = lines[-1] if lines else None
    return {"error": what[:MAX_ERROR_LENGTH], "line": line, "kind": kind}


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    """The places in the template that a failure passed, outermost first."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            yield trace
        trace = trace.tb_next


def _warm_up() -> Renderer:
    """Trigger late imports while files can still be opened."""
    renderer = Renderer()
    now = "2025-01-01T00:00:00"
    for source in ("{{ 'é' ~ [1]|tojson(indent=1) }}{{ strftime_now('%d %b %Y') }}{{ x.y.z }}", "{% if %}"):
        renderer.reply(json.dumps({"source": source, "names": {}, "now": now}).encode())
    return renderer


def serve() -> None:
    """Answer requests until the input ends."""
    begin()
    renderer = _warm_up()
    lock_down(MAX_MEMORY_BYTES)

    def reply(body: bytes) -> bytes:
        with cpu_limit(CPU_SECONDS):
            return json.dumps(renderer.reply(body)).encode()

    answer_requests(reply)
