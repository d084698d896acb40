"""Chat templates: converting messages to one text, in the form on which the model was trained.

A model's template is chat_template.jinja (with named ones in additional_chat_templates/), or chat_template
in tokenizer_config.json: a string or a list of named ones. It is compiled and rendered on use, in a process
of its own with hard limits (`sandbox`).
"""

import datetime
import functools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropechat.conversation import Message, Role
from ropechat.engine.templates import process as template_process
from ropechat.engine.templates.limits import MAX_SOURCE_BYTES
from ropechat.engine.templates.process import TemplateFailureError
from ropechat.engine.templates.thoughts import BLOCKS, ThoughtFormat, find_format
from ropechat.errors import ChatTemplateError, ModelFileError, RequestError, RopechatError
from ropechat.util.files import read_bytes

FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
CONFIG = "tokenizer_config.json"
DEFAULT = "default"
RESERVED = ("messages", "add_generation_prompt")
SYSTEM_FOLDED = (
    "this model's chat template has no system message; the text is put before the first user message"
)
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MAX_NAMED = 64
_WAY_OUT = "use --raw to continue without it"


class ChatTemplate:
    """A model's chat template. An invalid one raises only when rendered, so the model can still be used.

    source: the template's text. where: its file, for messages. special_tokens: variables for the template.
    name: its name among the model's templates. others: the model's other templates by name.
    problem: why it is invalid, if known.
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
        """Whether it rejects or omits system messages (see `prompt`); None until known."""
        self.thoughts: ThoughtFormat | None = None
        """How the model writes its thoughts, once `find_thoughts` has looked."""
        self._special_tokens = dict(special_tokens or {})
        self._problem = problem

    @classmethod
    def load(
        cls, directory: Path, config: Mapping[str, Any], where: str | None = None
    ) -> "ChatTemplate | None":
        """Load the template of a model folder (`config`: its tokenizer_config.json); None if it has none.

        where: the source of `config`, if it is another file. As in transformers, separate files take
        precedence over tokenizer_config.json. Raises UnsafePathError, FileAccessError.
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
            problem = f"no template named {DEFAULT} (available: {names:.200}); choose one with --template"
            chosen = cls("", next(iter(found.values())).where, tokens, problem=problem)
        chosen.others = found
        return chosen

    @property
    def names(self) -> list[str]:
        """The names of the model's templates, for `select`."""
        return sorted({*self.others, *([] if self._problem else [self.name])})

    def select(self, name: str) -> "ChatTemplate":
        """Return the model's template with this name. Raises ChatTemplateError listing the available ones."""
        if name == self.name:
            return self
        if name not in self.others:
            names = ", ".join(self.names) or "none"
            raise ChatTemplateError(
                f"{self.where}: chat_template: no template named {name!r}; available: {names}"
            )
        return self.others[name]

    def find_thoughts(self, tokens: Collection[str]) -> ThoughtFormat | None:
        """Find how the model writes its thoughts. tokens: the names of tokens that are no ordinary text."""

        def render(
            messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], asks: bool
        ) -> str | None:
            try:
                return self._rendered(messages, variables, asks, datetime.datetime.now())
            except (TemplateFailureError, ChatTemplateError):
                return None

        self.thoughts = find_format(self.source, tokens, render)
        return self.thoughts

    def mentions(self, variable: str) -> bool:
        """Whether the template contains this word; an unmentioned variable has no effect."""
        return variable in self.source

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        now: datetime.datetime | None = None,
    ) -> str:
        """Render a conversation; with `add_generation_prompt` the text ends where the reply starts.

        variables: for the template, JSON values (`enable_thinking`, `tools` ...). now: the time of
        strftime_now; default the local time. Raises ChatTemplateError if the template fails, rejects the
        messages or renders nothing; RequestError for invalid variables and texts.
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
        """Render the prompt of a model: `render`, with a workaround for templates without system messages.

        If a template rejects or omits the system message, its text is put before the first user message, and
        `folds_system` becomes True. Raises as `render`.
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
        """Whether the system message is rejected or has no effect; None if that cannot be determined."""

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
        """Render once. Raises TemplateFailureError; ChatTemplateError for errors found before rendering."""
        _check_unicode(messages)
        return self._rendered(
            [self._fields(message) for message in messages], variables, add_generation_prompt, now
        )

    def _fields(self, message: Message) -> dict[str, Any]:
        """A message as the template reads it."""
        fields: dict[str, Any] = {"role": str(message.role), "content": message.content}
        key = self.thoughts.key if self.thoughts is not None else None
        if message.reasoning and key == BLOCKS:
            thought = {"type": "thinking", "thinking": message.reasoning}
            fields["content"] = [thought, {"type": "text", "text": message.content}]
        elif message.reasoning and key is not None:
            fields[key] = message.reasoning
        return fields

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        now: datetime.datetime,
    ) -> str:
        """The text of messages as the template reads them. Raises as `_text`."""
        if self._problem is not None:
            raise ChatTemplateError(f"{self.where}: chat_template: {self._problem}; {_WAY_OUT}")
        if len(self.source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
            limit = f"must be at most {MAX_SOURCE_BYTES} bytes"
            raise ChatTemplateError(f"{self.where}: chat_template: {limit}; {_WAY_OUT}")
        names = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **validate_variables(variables),
        }
        text = template_process.SHARED.render(self.source, names, now)
        if not text:
            raise TemplateFailureError("failed", "rendered an empty text for these messages")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise TemplateFailureError("failed", "rendered a lone surrogate")
        return text

    def _error(self, failure: TemplateFailureError, messages: Sequence[Message]) -> ChatTemplateError:
        place = f"chat_template line {failure.line}" if failure.line else "chat_template"
        if failure.kind != "raised":
            return ChatTemplateError(f"{self.where}: {place}: {failure.what}; {_WAY_OUT}")
        fault = _role_fault(messages)
        what = f"rejects these messages: {failure.what or 'no reason given'}"
        return ChatTemplateError(f"{self.where}: {place}: {what}; {fault or _WAY_OUT}")


def warm(model: str) -> None:
    """Start the renderer process early if the model may have a template."""
    folder = Path(model)
    if folder.is_dir() and not (folder / FILE).exists():
        try:
            config = read_bytes(folder, CONFIG)
        except RopechatError:
            return  # loading the model reports it
        if config is None or b'"chat_template"' not in config:
            return
    template_process.SHARED.start()


def validate_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Validate template variables. Raises RequestError for an invalid name or value."""
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise RequestError(
                f"template variable: must be a name of letters, digits and _ (got {name!r:.60})"
            )
        if name in RESERVED:
            raise RequestError(f"template variable: {name}: cannot be set; it comes from the conversation")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise RequestError(
                f"template variable: {name}: must be a JSON value (got {value!r:.60})"
            ) from None
    return dict(variables)


def _check_unicode(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages, 1):
        try:
            message.content.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"message {number}: must be valid Unicode (got a lone surrogate at character {error.start})"
            ) from None


def _fold_system(messages: Sequence[Message]) -> list[Message] | None:
    """Put a leading system message before the text of the user message after it; None if not applicable."""
    if len(messages) < 2 or messages[0].role is not Role.SYSTEM or messages[1].role is not Role.USER:
        return None
    text = f"{messages[0].content}\n\n{messages[1].content}"
    return [Message(Role.USER, text), *messages[2:]]


def _role_fault(messages: Sequence[Message]) -> str | None:
    """Describe where user and assistant do not alternate, the most common reason for a rejection."""
    turns = [message.role for message in messages]
    offset = 1 if turns and turns[0] is Role.SYSTEM else 0
    for index, role in enumerate(turns[offset:]):
        expected = (Role.USER, Role.ASSISTANT)[index % 2]
        if role is not expected:
            return (
                f"message {index + offset + 1} is from the {role}, but most templates expect the {expected}: "
                "user and assistant must alternate, after at most one system message"
            )
    return None


def _of_files(directory: Path, tokens: Mapping[str, str]) -> Iterator[ChatTemplate]:
    """Yield the templates in separate files."""
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
            problem = f"must be UTF-8 (byte {error.start} is not)"
            yield ChatTemplate("", where, tokens, name=name, problem=problem)
        except ModelFileError as error:
            problem = str(error).removeprefix(f"{where}: ")
            yield ChatTemplate("", where, tokens, name=name, problem=problem)


def _of_config(where: str, config: Mapping[str, Any], tokens: Mapping[str, str]) -> Iterator[ChatTemplate]:
    """Yield the templates in tokenizer_config.json."""
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
        problem = f"must be a string or a list of objects with name and template (got {value!r:.60})"
        yield ChatTemplate("", where, tokens, problem=problem)
    for name, source in named[:_MAX_NAMED]:
        yield ChatTemplate(source, where, tokens, name=name)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens of tokenizer_config.json, as variables for the template."""
    tokens = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens
