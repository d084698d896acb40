"""Chats from a file, whichever program wrote it."""

import io
import json
import re
import secrets
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ropechat.errors import FileAccessError, HistoryError
from ropechat.store import import_export
from ropechat.store.imports import chatgpt, llm_logs, open_webui
from ropechat.store.queries import Chat
from ropechat.util.fields import Field
from ropechat.util.text import count_of, format_bytes, one_line

if TYPE_CHECKING:
    from ropechat.store.store import Store

MAX_BYTES = 256 << 20
ALLOWED = "a JSON export of ropechat, an export of ChatGPT or Open WebUI, or logs of llm"
_TIMEOUT_S = 60.0  # for one chat to be on disk
_IN_ZIP = re.compile(r"(?:.*/)?conversations(?:-\d+)?\.json\Z")

Read = Callable[[], tuple[Chat | None, int]]


@dataclass
class Imported:
    """What a file contains. source: the program that wrote it; "" is ropechat.

    lost: how many messages have no place in a chat (tools, pictures). faults: why some chats are missing.
    """

    source: str
    chats: list[Chat] = field(default_factory=list)
    lost: int = 0
    faults: list[str] = field(default_factory=list)

    def keep(self, store: "Store") -> Iterator[str]:
        """Store the chats, and yield the id of each when it is on disk. Raises FileAccessError."""
        taken = {one.id for one in store.conversations().result(_TIMEOUT_S)}
        for place, chat in enumerate(self.chats):
            id = chat.id
            while id in taken:  # of thousands of chats, two random ids may be equal
                id = secrets.token_hex(4)
            taken.add(id)
            self.chats[place] = replace(chat, id=id)
            store.insert(self.chats[place]).result(_TIMEOUT_S)
            yield id

    def describe(self) -> str:
        """What was imported, as one line."""
        words = f"{count_of(len(self.chats), 'chat')} from {one_line(self.source) or 'ropechat'}"
        lost = f"; {self.lost:,} messages are not text (tools, pictures) or have no question: left out"
        return words + (lost if self.lost else "")


def read_file(path: Path) -> Imported:
    """Read the chats of a file, with new ids. Raises HistoryError, FileAccessError."""
    try:
        with path.open("rb") as stream:
            return _read(stream, str(path), path)
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror or error}; give {ALLOWED}") from None


def read_stream(stream: IO[bytes], where: str) -> Imported:
    """`read_file` for what comes from a pipe. where: its name, for messages. Raises HistoryError, OSError."""
    return _read(io.BytesIO(stream.read(MAX_BYTES + 1)), where, None)


def _read(stream: IO[bytes], where: str, path: Path | None) -> Imported:
    start = stream.read(16)
    stream.seek(0)
    try:
        if start == llm_logs.SQLITE:
            if path is None:
                raise HistoryError("a logs.db cannot come from a pipe; give its name")
            return _gather("llm", llm_logs.from_file(path))
        if start.startswith(b"PK\3\4"):
            return _gather("ChatGPT", _of_zip(stream))
        return _of_json(_bounded(stream))
    except HistoryError as error:
        raise HistoryError(f"{where}: {error}") from None


def _bounded(stream: IO[bytes]) -> bytes:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise HistoryError(f"must be at most {format_bytes(MAX_BYTES)}")
    return data


def _of_json(data: bytes) -> Imported:
    value = _parse(data)
    if isinstance(value, dict) and "ropechat" in value:
        try:
            return Imported("", [import_export.read_chat(Field(value, ""))])
        except HistoryError as error:
            raise HistoryError(f"{error}; nothing was imported") from None
    return _gather(*_foreign(value, ""))


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"not valid JSON ({error}); give {ALLOWED}") from None


def _foreign(value: Any, name: str) -> tuple[str, Iterable[Read]]:
    """The program that wrote a file of JSON, and a reader for each chat. name: a file in an archive."""
    listed = isinstance(value, list)
    first = (value[0] if value else None) if listed else value
    fields = Field(value, name).items() if listed else [Field(value, name)]
    if chatgpt.is_chat(first):
        return "ChatGPT", (partial(chatgpt.read_chat, one) for one in fields)
    if open_webui.is_chat(first):
        return "Open WebUI", (partial(open_webui.read_chat, one) for one in fields)
    if llm_logs.is_row(first):
        return "llm", llm_logs.from_json(fields)
    raise HistoryError(f"{f'{name}: ' if name else ''}unknown format; give {ALLOWED}")


def _of_zip(stream: IO[bytes]) -> Iterator[Read]:
    """A reader for each chat of the conversations.json of an archive, or of conversations-000.json etc."""
    left = MAX_BYTES
    try:
        with zipfile.ZipFile(stream) as archive:
            members = [one for one in archive.infolist() if _IN_ZIP.match(one.filename)]
            if not members:
                raise HistoryError("no conversations.json in this ZIP file; give ChatGPT's export as it is")
            for member in sorted(members, key=lambda one: one.filename):
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise HistoryError(f"{member.filename}: compressed by another method than deflate")
                with archive.open(member) as file:
                    data = file.read(left + 1)
                left -= len(data)
                if left < 0:
                    limit = format_bytes(MAX_BYTES)
                    raise HistoryError(f"{limit} of conversations at most; import them one by one")
                yield from _foreign(_parse(data), member.filename.rpartition("/")[2])[1]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise HistoryError(f"not a readable ZIP file ({error})") from None


def _gather(source: str, readers: Iterable[Read]) -> Imported:
    """Read every chat; one that cannot be read does not stop the others."""
    found = Imported(source)
    for read in readers:
        try:
            chat, lost = read()
        except HistoryError as error:
            found.faults.append(str(error))
            continue
        found.lost += lost
        found.chats += [chat] if chat is not None else []
    if not found.chats:
        raise HistoryError(found.faults[0] if found.faults else "contains no chat with a question")
    return found
