"""Lines of a batch file: `{"id", "prompt"}` or `{"id", "messages"}`, each checked on its own.

Lines end at "\\n" bytes only. Nothing is guessed: a line that is not exactly what is described becomes an
error record in the output, and the run goes on.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from ropechat.conversation import Message, Role
from ropechat.errors import BatchInputError, FileAccessError, RequestError, RopechatError

MAX_LINE_BYTES = 16 << 20
MAX_ID_LENGTH = 512
MAX_MESSAGES = 2000
_ID_FIELDS = ("id", "custom_id")
_ROLES = [role.value for role in Role]
_NOT_JSON_LINES = {
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
    b"PK": "a zip archive; unpack it first",
}

Content = str | list[Message]


@dataclass(frozen=True)
class BatchRow:
    """A line of the input. With an `error` there is no content."""

    index: int
    """Which row: 0 for the first line that is not blank."""
    line: int
    """Line number in the file, from 1."""
    id: str | int
    content: Content | None
    error: RopechatError | None = None


class _Reject(ValueError):
    """A fault in a line: `<field>: <what it is>`."""


def _reject(text: str) -> NoReturn:
    raise _Reject(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            _reject(f"{key}: the key stands twice in the JSON object; once is allowed")
        found[key] = value
    return found


def _parse(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        _reject(f"line: byte {error.start} is not UTF-8")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=lambda name: _reject(
                f"JSON: {name} is no JSON number; a finite number is allowed"
            ),
        )
    except _Reject:
        raise
    except RecursionError:
        _reject("JSON: nested too deep")
    except json.JSONDecodeError as error:
        _reject(f"JSON: {error.msg} at character {error.pos}")
    except ValueError as error:
        _reject(f"JSON: {str(error).split(';')[0]}")
    if not isinstance(value, dict):
        _reject(f"JSON: a {type(value).__name__}; an object is required")
    return value


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        _reject(f"{field}: {value!r:.40}; a text is required")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        _reject(f"{field}: a lone surrogate at character {error.start}; valid Unicode is required")
    return value


def _id(record: dict[str, Any], line: int) -> str | int:
    """The row's id; "line-<n>" where none is given."""
    given = [field for field in _ID_FIELDS if field in record]
    if len(given) == 2:
        _reject("custom_id: stands beside id; one of them is allowed")
    if not given:
        return f"line-{line}"
    field = given[0]
    value = record[field]
    if field == "id" and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 2**63:
            _reject("id: an integer beyond 64 bits; a text is allowed")
        return value
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_LENGTH:
        _reject(f"{field}: {value!r:.40}; a text of 1 to {MAX_ID_LENGTH} characters is required")
    return _text(field, value)


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        _reject(f"messages: {value!r:.40}; a list with at least one message is required")
    if len(value) > MAX_MESSAGES:
        _reject(f"messages: {len(value)} of them; at most {MAX_MESSAGES} are allowed")
    messages = []
    for number, message in enumerate(value):
        field = f"messages[{number}]"
        if not isinstance(message, dict):
            _reject(f"{field}: {message!r:.40}; an object with role and content is required")
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            _reject(f"{field}.role: {role!r:.40}; one of {', '.join(_ROLES)} is required")
        if "content" not in message:
            _reject(f"{field}.content: missing; a text is required")
        unknown = message.keys() - {"role", "content"}
        if unknown:
            _reject(f"{field}.{min(unknown)}: not known; role and content are allowed")
        messages.append(Message(Role(role), _text(f"{field}.content", message["content"])))
    return messages


def _content(record: dict[str, Any], prompt_field: str) -> Content:
    if prompt_field != "prompt":
        if prompt_field not in record:
            _reject(f"{prompt_field}: missing; --prompt-field names it")
        prompt: object = record[prompt_field]
    else:
        unknown = record.keys() - {*_ID_FIELDS, "prompt", "messages"}
        both = "prompt" in record and "messages" in record
        if both:
            _reject("messages: stands beside prompt; one of them is allowed")
        if "messages" in record and not unknown:
            return _messages(record["messages"])
        if "prompt" not in record and "messages" not in record:
            names = ", ".join(sorted(record)) or "none"
            _reject(f"prompt: missing; the fields are {names:.200}; --prompt-field can name another one")
        if unknown:
            _reject(f"{min(unknown):.60}: not known; id, prompt and messages are allowed")
        prompt = record["prompt"]
    text = _text(prompt_field, prompt)
    if not text:
        _reject(f"{prompt_field}: empty; at least one character is required")
    return text


class BatchReader:
    """Reads a batch file row by row; memory does not grow with the file, but for 16 bytes per id."""

    def __init__(self, path: Path, prompt_field: str = "prompt") -> None:
        self.path = path
        self.prompt_field = prompt_field
        self._seen: set[bytes] = set()

    def _open(self) -> IO[bytes]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BatchInputError(f"{self.path}: no such file") from None
        except OSError as error:
            raise FileAccessError(f"{self.path}: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BatchInputError(f"{self.path}: not a regular file; a JSONL file is required")
        return os.fdopen(descriptor, "rb")

    def check(self) -> int:
        """Refuse a file that is no JSONL at all; returns how many rows it has.

        Raises BatchInputError, FileAccessError.
        """
        with self._open() as file:
            first, count, head = b"", 0, file.read(4)
            for magic, what in _NOT_JSON_LINES.items():
                if head.startswith(magic):
                    raise BatchInputError(f"{self.path}: {what}")
            file.seek(0)
            while line := file.readline(MAX_LINE_BYTES + 1):
                if line.strip():
                    count += 1
                    first = first or line[: MAX_LINE_BYTES >> 4]
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
        self._check_first(first.removeprefix(b"\xef\xbb\xbf").strip())
        return count

    def _check_first(self, line: bytes) -> None:
        if not line:
            return
        if b"\r" in line:
            raise BatchInputError(f"{self.path}: lines end in CR alone; LF or CRLF is required")
        if line == b"[" or line.startswith(b"[{") or not _looks_like_json(line):
            raise BatchInputError(
                f"{self.path}: line 1 is {line[:40]!r}; JSON lines are required, one object a line"
            )

    def __iter__(self) -> Iterator[BatchRow]:
        with self._open() as file:
            index = number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                whole = len(line) <= MAX_LINE_BYTES
                while not line.endswith(b"\n") and not whole:
                    rest = file.readline(MAX_LINE_BYTES)
                    if not rest or rest.endswith(b"\n"):
                        break
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield self._row(index, number, line.rstrip(b"\r\n"), whole)
                    index += 1

    def _row(self, index: int, number: int, line: bytes, whole: bool) -> BatchRow:
        id: str | int = f"line-{number}"
        try:
            if not whole:
                _reject(f"line: more than {MAX_LINE_BYTES} bytes; that is the limit")
            record = _parse(line)
            id = _id(record, number)
            self._once(id)
            return BatchRow(index, number, id, _content(record, self.prompt_field))
        except _Reject as fault:
            error = RequestError(f"{self.path.name}: line {number}: {fault}")
            return BatchRow(index, number, id, None, error)

    def _once(self, id: str | int) -> None:
        digest = hashlib.blake2b(json.dumps(id).encode(), digest_size=16).digest()
        if digest in self._seen:
            _reject(f"id: {id!r:.60} stands on an earlier line; each id may stand once")
        self._seen.add(digest)


def _looks_like_json(line: bytes) -> bool:
    """Whether a line begins as some JSON value does; a CSV header or a binary file does not."""
    return line[:1] in b'{["-0123456789' or line in (b"null", b"true", b"false")
