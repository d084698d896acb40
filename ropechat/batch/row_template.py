"""Prompts made from the fields of a row by Jinja templates, in the sandboxed process of the chat templates.

`{{ field }}` is a field of the row, `{{ row }}` all of them (`{{ row | tojson }}`, `{{ row["a name"] }}`),
`{{ index }}` the row's number from 0. A field that the row does not have is an error of the row.
"""

import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ropechat.batch.line import Content, LineError, names_of, parse_request, parse_value, reject
from ropechat.conversation import Message, Role
from ropechat.engine.templates import process
from ropechat.engine.templates.limits import MAX_SOURCE_BYTES
from ropechat.engine.templates.process import TemplateFailureError
from ropechat.errors import FileAccessError, RequestError

_SINGLE = re.compile(r"(?<![{%])\{\s*(\w{1,40})\s*\}(?!\})")
"""A name in single braces, as in Python's format strings."""


class _Part(NamedTuple):
    """One template. role: of the message that it makes; None for a prompt. name: for messages."""

    role: Role | None
    source: str
    name: str


class RowTemplate:
    """The templates of a prompt: of one text, or of each message of a conversation."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = tuple(parts)
        self.names: frozenset[str] = frozenset()
        """What the templates take from a row, once `check` has compiled them."""
        for part in self._parts:
            if len(part.source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
                raise RequestError(f"{part.name}: must be at most {MAX_SOURCE_BYTES} bytes")

    @classmethod
    def of_text(cls, source: str, name: str = "--prompt") -> "RowTemplate":
        """A template of the prompt."""
        return cls([_Part(None, source, name)])

    @classmethod
    def of_file(cls, path: Path) -> "RowTemplate":
        """A template of the prompt in a file. Raises RequestError, FileAccessError."""
        try:
            return cls.of_text(_read(path).decode("utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise RequestError(f"{path}: must be UTF-8 (byte {error.start} is not)") from None

    @classmethod
    def of_messages(cls, path: Path) -> "RowTemplate":
        """Templates of messages in a JSON file: [{"role", "content"}, ...]. Raises as `of_file`."""
        try:
            value = parse_value(_read(path))
            found = parse_request({"messages": value}).content
        except LineError as error:
            raise RequestError(f"{path}: {error}") from None
        parts = [
            _Part(message.role, message.content, f"{path}: message {number}")
            for number, message in enumerate(found, 1)
            if isinstance(message, Message)
        ]
        return cls(parts)

    @property
    def sources(self) -> list[list[str | None]]:
        """Roles and templates, for the header of a journal."""
        return [[part.role, part.source] for part in self._parts]

    def check(self) -> None:
        """Compile the templates. Raises RequestError naming the line of a syntax error."""
        for part in self._parts:
            try:
                used = process.SHARED.render(part.source, None, datetime.datetime.now(), strict=True)
            except TemplateFailureError as failure:
                raise RequestError(_describe(part, failure)) from None
            self.names |= frozenset(used.split())

    def warning(self, fields: Iterable[str] = ()) -> str | None:
        """A warning about a prompt that is the same for all rows, or names a field in single braces.

        fields: of a row. Use it after `check`.
        """
        name = self._parts[0].name.partition(": message")[0]
        single = [found for part in self._parts for found in _SINGLE.findall(part.source)]
        if not self.names:
            wanted = single[0] if single else "field"
            got = f" (got {{{single[0]}}})" if single else ""
            return (
                f"warning: {name}: uses no field, so every row has the same prompt; write {{{{ {wanted} }}}} "
                f"where a field belongs{got}"
            )
        if plain := [found for found in single if found in frozenset(fields)]:
            return f"warning: {name}: {{{plain[0]}}} stays text; write {{{{ {plain[0]} }}}} for that field"
        return None

    def content(self, fields: Mapping[str, Any], index: int) -> Content:
        """The prompt of a row. Raises LineError."""
        texts = [self._render(part, fields, index) for part in self._parts]
        if self._parts[0].role is None:
            if not texts[0].strip():
                reject(f"{self._parts[0].name}: must render a text (got none)")
            return texts[0]
        return [
            Message(part.role, text)
            for part, text in zip(self._parts, texts, strict=True)
            if part.role is not None
        ]

    def _render(self, part: _Part, fields: Mapping[str, Any], index: int) -> str:
        names = {"row": fields, "index": index, **fields}
        try:
            text = process.SHARED.render(part.source, names, datetime.datetime.now(), strict=True)
        except TemplateFailureError as failure:
            is_missing = failure.what.endswith(" is undefined")
            reject(_describe(part, failure) + (f" (got {names_of(fields)})" if is_missing else ""))
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            reject(f"{part.name}: must render valid Unicode (got a lone surrogate)")
        return text


def _describe(part: _Part, failure: TemplateFailureError) -> str:
    line = f" line {failure.line}" if failure.line and "\n" in part.source else ""
    return f"{part.name}{line}: {failure.what}"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_SOURCE_BYTES + (1 << 20))
    except FileNotFoundError:
        raise RequestError(f"{path}: file not found") from None
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror}") from None


canonical = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode
"""A value as JSON that does not depend on the order of keys."""
