"""Chat templates: the messages of a conversation as one text, as the model was trained on it.

A template is the model's: chat_template.jinja (with others by name in additional_chat_templates/), or
chat_template of tokenizer_config.json, a text or a list of named ones. It is rendered, and compiled, in a
process of its own with hard limits (`template_child`), when it is first used.
"""

import datetime
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropechat.conversation import Message, Role
from ropechat.engine.templates import process as template_process
from ropechat.engine.templates.limits import MAX_SOURCE_BYTES
from ropechat.engine.templates.process import TemplateFailureError
from ropechat.errors import ChatTemplateError, ModelFileError, RequestError, RopechatError
from ropechat.util.files import read_bytes

FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
CONFIG = "tokenizer_config.json"
DEFAULT = "default"
RESERVED = ("messages", "add_generation_prompt")
SYSTEM_FOLDED = (
    "this model's chat template takes no system message; it is put before the first user message instead"
)
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MAX_NAMED = 64
_WAY_OUT = "use --raw to go on without it"


class ChatTemplate:
    """A model's chat template. One that cannot be used says so when it is rendered: the model still runs.

    source: the template's text. where: the file it stands in, for messages. special_tokens: names it may use.
    name: what it is called beside others. others: the model's other templates by name.
    problem: why it cannot be used, if that is known.
    """

    def __init__(
        self,
        source: str,
        where: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        name: str = DEFAULT,
        problem: str | None = None,
    ) -> None:
        self.source = source
        self.where = where
        self.name = name
        self.others: dict[str, ChatTemplate] = {}
        self.folds_system: bool | None = None
        """Whether it refuses system messages or leaves them out (see `prompt`); None until that is known."""
        self._special_tokens = dict(special_tokens or {})
        self._problem = problem

    @classmethod
    def load(
        cls, directory: Path, config: Mapping[str, Any], where: str | None = None
    ) -> "ChatTemplate | None":
        """The template of a model folder (`config`: its tokenizer_config.json), or None when it has none.

        where: what `config` was read from, if that is another file. As in transformers, files go before
        tokenizer_config.json. Raises UnsafePathError, FileAccessError.
        """
        tokens = _special_tokens(config)
        found = {made.name: made for made in _of_files(directory, tokens)}
        if not found:
            found = {made.name: made for made in _of_config(where or str(directory / CONFIG), config, tokens)}
        if not found:
            return None
        chosen = found.pop(DEFAULT, None)
        if chosen is None:
            names = ", ".join(sorted(found))
            problem = f"no template named {DEFAULT}; there is {names:.200}; choose one with --template"
            chosen = cls("", next(iter(found.values())).where, tokens, problem=problem)
        chosen.others = found
        return chosen

    @property
    def names(self) -> list[str]:
        """The names of the model's templates that `select` takes."""
        return sorted({*self.others, *([] if self._problem else [self.name])})

    def select(self, name: str) -> "ChatTemplate":
        """Another of the model's templates. Raises ChatTemplateError that lists them."""
        if name == self.name:
            return self
        if name not in self.others:
            names = ", ".join(self.names) or "none"
            raise ChatTemplateError(
                f"{self.where}: chat_template: no template named {name!r}; there is {names}"
            )
        return self.others[name]

    def mentions(self, variable: str) -> bool:
        """Whether the template's text has this word; a variable that it does not mention changes nothing."""
        return variable in self.source

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        now: datetime.datetime | None = None,
    ) -> str:
        """The text of a conversation; with `add_generation_prompt` it ends where the reply begins.

        variables: more names for the template, JSON values (`enable_thinking`, `tools` ...). now: what
        strftime_now tells; default the local time.
        Raises ChatTemplateError for a template that fails, refuses these messages, or renders nothing;
        RequestError for variables and texts that are at fault.
        """
        try:
            return self._text(
                variables or {}, add_generation_prompt, now or datetime.datetime.now(), messages
            )
        except TemplateFailureError as failure:
            raise self._error(failure, messages) from None

    def prompt(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """What a model is fed: `render`, with the system message where this template can take it.

        A template that refuses a system message, or silently leaves it out, is given its text at the head of
        the first user message; `folds_system` tells so from then on. Raises as `render`.
        """
        folded = _fold_system(messages)
        if folded is not None:
            if self.folds_system is None:
                now = datetime.datetime.now()
                once = functools.partial(self._text, variables or {}, add_generation_prompt, now)
                self.folds_system = self._must_fold(messages, folded, once)
            if self.folds_system:
                messages = folded
        return self.render(messages, variables, add_generation_prompt=add_generation_prompt)

    def _must_fold(
        self,
        messages: Sequence[Message],
        folded: Sequence[Message],
        render: Callable[[Sequence[Message]], str],
    ) -> bool | None:
        """Whether the system message is refused, or makes no difference; None where that cannot be told."""

        def text_of(these: Sequence[Message]) -> str | None:
            try:
                return render(these)
            except TemplateFailureError as failure:
                if failure.kind in ("raised", "failed"):
                    return None
                raise self._error(failure, these) from None

        text = text_of(messages)
        if text is None:
            return True if text_of(folded) is not None else None
        return messages[0].content.strip() not in text and text == text_of(messages[1:])

    def _text(
        self,
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        now: datetime.datetime,
        messages: Sequence[Message],
    ) -> str:
        """One rendering. Raises TemplateFailureError, and ChatTemplateError for what no process need see."""
        if self._problem is not None:
            raise ChatTemplateError(f"{self.where}: chat_template: {self._problem}; {_WAY_OUT}")
        if len(self.source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
            limit = f"longer than {MAX_SOURCE_BYTES} bytes; that is the limit"
            raise ChatTemplateError(f"{self.where}: chat_template: {limit}; {_WAY_OUT}")
        _check_unicode(messages)
        names = {
            "messages": [{"role": str(message.role), "content": message.content} for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **validate_variables(variables),
        }
        text = template_process.SHARED.render(self.source, names, now)
        if not text:
            raise TemplateFailureError("failed", "renders an empty text for these messages")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise TemplateFailureError("failed", "renders a lone surrogate")
        return text

    def _error(self, failure: TemplateFailureError, messages: Sequence[Message]) -> ChatTemplateError:
        place = f"chat_template line {failure.line}" if failure.line else "chat_template"
        if failure.kind != "raised":
            return ChatTemplateError(f"{self.where}: {place}: {failure.what}; {_WAY_OUT}")
        fault = _role_fault(messages)
        what = f"refuses these messages: {failure.what or 'without a reason'}"
        return ChatTemplateError(f"{self.where}: {place}: {what}; {fault or _WAY_OUT}")


def warm(model: str) -> None:
    """Start the process that renders if this model may have a template, so that it gets ready meanwhile."""
    folder = Path(model)
    if folder.is_dir() and not (folder / FILE).exists():
        try:
            config = read_bytes(folder, CONFIG)
        except RopechatError:
            return  # loading the model says so
        if config is None or b'"chat_template"' not in config:
            return
    template_process.SHARED.start()


def validate_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for a template. Raises RequestError for a name or value that none can have."""
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise RequestError(
                f"template variable: {name!r:.60}; a name of letters, digits and _ is required"
            )
        if name in RESERVED:
            raise RequestError(f"template variable: {name}: comes from the conversation; it cannot be set")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise RequestError(
                f"template variable: {name}: {value!r:.60}; what JSON can hold is allowed"
            ) from None
    return dict(variables)


def _check_unicode(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages, 1):
        try:
            message.content.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"message {number}: character {error.start} is a lone surrogate; text must be valid Unicode"
            ) from None


def _fold_system(messages: Sequence[Message]) -> list[Message] | None:
    """The messages with the leading system message at the head of the user message after it, if so it is."""
    if len(messages) < 2 or messages[0].role is not Role.SYSTEM or messages[1].role is not Role.USER:
        return None
    text = f"{messages[0].content}\n\n{messages[1].content}"
    return [Message(Role.USER, text), *messages[2:]]


def _role_fault(messages: Sequence[Message]) -> str | None:
    """Where the roles do not take turns, which is what most templates that refuse are about."""
    turns = [message.role for message in messages]
    offset = 1 if turns and turns[0] is Role.SYSTEM else 0
    for index, role in enumerate(turns[offset:]):
        expected = (Role.USER, Role.ASSISTANT)[index % 2]
        if role is not expected:
            return (
                f"message {index + offset + 1} is of the {role}, where most templates want the {expected}: "
                "let user and assistant take turns, after at most one system message"
            )
    return None


def _of_files(directory: Path, tokens: Mapping[str, str]) -> Iterator[ChatTemplate]:
    """The templates that are files of their own."""
    names = {DEFAULT: FILE}
    folder = directory / FOLDER
    if folder.is_dir():
        files = sorted(path.name for path in folder.iterdir() if path.suffix == ".jinja")
        names |= {name.removesuffix(".jinja"): f"{FOLDER}/{name}" for name in files[:_MAX_NAMED]}
    for name, file in names.items():
        where = str(directory / file)
        try:
            data = read_bytes(directory, file, MAX_SOURCE_BYTES)
            if data is not None:
                yield ChatTemplate(data.decode("utf-8"), where, tokens, name=name)
        except UnicodeDecodeError as error:
            problem = f"byte {error.start} is not UTF-8"
            yield ChatTemplate("", where, tokens, name=name, problem=problem)
        except ModelFileError as error:
            problem = str(error).removeprefix(f"{where}: ")
            yield ChatTemplate("", where, tokens, name=name, problem=problem)


def _of_config(where: str, config: Mapping[str, Any], tokens: Mapping[str, str]) -> Iterator[ChatTemplate]:
    """The templates that stand in tokenizer_config.json."""
    value = config.get("chat_template")
    if value is None:
        return
    if isinstance(value, str):
        yield ChatTemplate(value, where, tokens)
        return
    named = [
        (entry["name"], entry["template"])
        for entry in (value if isinstance(value, list) else [])
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    ]
    if not named:
        problem = f"{value!r:.60}; a text, or a list of objects with name and template, is required"
        yield ChatTemplate("", where, tokens, problem=problem)
    for name, source in named[:_MAX_NAMED]:
        yield ChatTemplate(source, where, tokens, name=name)


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
