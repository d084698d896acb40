"""Chat templates: the messages of a conversation as one text, as the model was trained on it.

The template is the model's (chat_template.jinja, or chat_template of tokenizer_config.json). It runs in the
sandbox of jinja2, with what templates rely on: trim_blocks, lstrip_blocks, loop controls, the generation tag,
`tojson` without HTML escapes, `raise_exception`, `strftime_now`. jinja2 is imported when one is rendered.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.conversation import Message
from ropechat.errors import ChatTemplateError
from ropechat.model_files import read_bytes

if TYPE_CHECKING:
    import jinja2

FILE = "chat_template.jinja"
MAX_SOURCE_BYTES = 256 << 10
MAX_OUTPUT_BYTES = 4 << 20
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_UNSAFE_GLOBALS = ("lipsum", "cycler", "joiner")


class ChatTemplate:
    """A model's chat template. Compiled at the first rendering, so that a bad one does not stop a model.

    source: the template's text. where: the file it stands in, for messages. variables: names it may use.
    """

    def __init__(self, source: str, where: str, variables: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.where = where
        self._variables = dict(variables or {})
        self._compiled: jinja2.Template | None = None

    @classmethod
    def load(
        cls, directory: Path, config: Mapping[str, Any], where: str | None = None
    ) -> "ChatTemplate | None":
        """The template of a model folder (`config`: its tokenizer_config.json), or None when it has none.

        where: what `config` was read from, if that is another file.
        Raises ChatTemplateError for a value that is no template.
        """
        variables = _special_tokens(config)
        data = read_bytes(directory, FILE, MAX_SOURCE_BYTES)
        if data is not None:
            where = str(directory / FILE)
            try:
                return cls(data.decode("utf-8"), where, variables)
            except UnicodeDecodeError as error:
                raise ChatTemplateError(f"{where}: chat_template: byte {error.start} is not UTF-8") from None
        where = where or str(directory / "tokenizer_config.json")
        value = config.get("chat_template")
        if value is None:
            return None
        if isinstance(value, list):
            value = _named(value, where)
        if not isinstance(value, str):
            raise ChatTemplateError(
                f"{where}: chat_template: {value!r:.60}; a text or a list of {{name, template}} is required"
            )
        return cls(value, where, variables)

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The text of a conversation; with `add_generation_prompt` it ends where the reply begins.

        variables: more names for the template (`enable_thinking`, `tools` ...).
        Raises ChatTemplateError for a template that fails, refuses these messages, or renders nothing.
        """
        names = {
            "messages": [{"role": str(message.role), "content": message.content} for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **self._variables,
            **variables,
        }
        if self._compiled is None:
            self._compiled = self._compile()
        try:
            pieces, size = [], 0
            for piece in self._compiled.generate(names):
                size += len(piece)
                if size > MAX_OUTPUT_BYTES:
                    limit = f"more than {MAX_OUTPUT_BYTES} bytes; that is the limit"
                    raise ChatTemplateError(f"{self.where}: chat_template: renders {limit}")
                pieces.append(piece)
            text = "".join(pieces)
        except ChatTemplateError:
            raise
        except Exception as error:
            raise self._failure(error) from None
        if not text:
            raise ChatTemplateError(f"{self.where}: chat_template: renders an empty text for these messages")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ChatTemplateError(f"{self.where}: chat_template: renders a lone surrogate")
        return text

    def _compile(self) -> "jinja2.Template":
        if len(self.source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
            raise ChatTemplateError(
                f"{self.where}: chat_template: longer than {MAX_SOURCE_BYTES} bytes; that is the limit"
            )
        try:
            return _environment().from_string(self.source)
        except Exception as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> ChatTemplateError:
        line = getattr(error, "lineno", None)
        if isinstance(error, RecursionError | MemoryError):
            what = "exceeds a limit (nested or recursing too deep, or too large)"
        else:
            what = str(error) or type(error).__name__
        place = f"chat_template line {line}" if line else "chat_template"
        return ChatTemplateError(f"{self.where}: {place}: {what}; use --raw to go on without it")


def _named(value: list[Any], where: str) -> str:
    """The template named default of a list of named ones."""
    found = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    template = found.get("default")
    if not isinstance(template, str):
        raise ChatTemplateError(f"{where}: chat_template: a list without a template named default")
    return template


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a template sees: those that tokenizer_config.json gives a text."""
    tokens = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _environment() -> "jinja2.Environment":
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}` marks the assistant's text for training; here it means its content."""

        tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[GenerationTag, loopcontrols]
    )
    for name in _UNSAFE_GLOBALS:
        environment.globals.pop(name, None)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment
