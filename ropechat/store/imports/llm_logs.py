"""The logs of `llm`: the list of `llm logs --json`, and the file logs.db.

https://llm.datasette.io/en/stable/logging.html. Since version 0.32 the file has a tree of messages, and
older prompts stay in the table `responses`; both are read.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ropechat.conversation import Role
from ropechat.errors import HistoryError
from ropechat.store.imports.said import MAX_TEXT, Said, build_chat
from ropechat.store.queries import Chat
from ropechat.util.fields import Field

SQLITE = b"SQLite format 3\0"
MAX_VALUE = 64 << 20
"""Bytes of one value in the file."""
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_STEPS = 200_000_000
"""Instructions of SQLite for the whole file, which ends queries of a file made to take for ever."""
_ROWS = """
SELECT responses.id, responses.conversation_id, conversations.name AS conversation_name, responses.model,
       responses.system, responses.prompt, responses.response, responses.datetime_utc
FROM responses LEFT JOIN conversations ON conversations.id = responses.conversation_id
"""
_FRAGMENTS = """
SELECT response_id, content FROM {table} JOIN fragments ON fragments.id = fragment_id
ORDER BY response_id, "order"
"""

Read = Callable[[], tuple[Chat | None, int]]


def is_row(value: object) -> bool:
    """Whether a value looks like one row of `llm logs --json`."""
    return isinstance(value, dict) and {"conversation_id", "prompt", "response"} <= value.keys()


def from_json(rows: list[Field]) -> Iterator[Read]:
    """A reader for each conversation of `llm logs --json`."""
    return _conversations(rows)


def _conversations(rows: list[Field]) -> Iterator[Read]:
    found: dict[str, list[Field]] = {}
    for row in rows:
        id = row.of("conversation_id").optional_text() or row.of("id").text()
        found.setdefault(id, []).append(row)
    for together in found.values():
        together.sort(key=lambda row: (row.of("datetime_utc").text(""), row.of("id").text("")))
        yield partial(_chat, together)


def _chat(rows: list[Field]) -> tuple[Chat | None, int]:
    messages: dict[str, Said] = {}
    last: str | None = None
    for number, row in enumerate(rows):
        created, model = seconds(row.of("datetime_utc").text("")), row.of("model").text("")
        system = _with_fragments(row, "system") if number == 0 else ""
        for role, text in (
            (Role.SYSTEM, system),
            (Role.USER, _with_fragments(row, "prompt")),
            (Role.ASSISTANT, row.of("response").text("")),
        ):
            id = f"{number} {role}"
            messages[id] = Said(last, role, text, created, model if role is Role.ASSISTANT else "")
            last = id
    return build_chat(rows[0].of("conversation_name").text(""), messages, last)


def _with_fragments(row: Field, name: str) -> str:
    """The prompt or the system text with the fragments before it, unless it contains them already."""
    text, fragments = row.of(name).text(""), row.of(f"{name}_fragments")
    parts = [part.of("content").text("").strip() for part in fragments.items()] if fragments.value else []
    if parts and text.startswith(parts[0]):
        return text
    return "\n\n".join(part for part in [*parts, text] if part)


def seconds(date: str) -> float:
    """The seconds since 1970 of an ISO date in UTC; 0 if it is none."""
    try:
        moment = datetime.fromisoformat(date)
        return moment.timestamp() if moment.tzinfo else datetime.fromisoformat(f"{date}+00:00").timestamp()
    except (ValueError, OverflowError):
        return 0.0


# --- logs.db ---


class _Log:
    """A logs.db, opened for reading only. Raises HistoryError if the file is not one."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
        self._connection.row_factory = sqlite3.Row
        self._left = MAX_TEXT
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        self._connection.set_progress_handler(lambda: 1, _STEPS)
        self._connection.execute("PRAGMA trusted_schema = OFF")
        tables = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {name for (name,) in tables}  # a view of a stranger could run anything

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query; what the file's queries give is at most MAX_TEXT characters or bytes."""
        found = []
        for row in self._connection.execute(query):
            self._left -= sum(len(value) for value in row if isinstance(value, str | bytes))
            if self._left < 0:
                raise HistoryError(f"must contain at most {MAX_TEXT} characters of text")
            found.append(dict(row))
        return found

    def close(self) -> None:
        self._connection.close()


def from_file(path: Path) -> list[Read]:
    """A reader for each conversation of a logs.db. Raises HistoryError."""
    try:
        log = _Log(path)
        try:
            return [*_old(log), *_threads(log)]
        finally:
            log.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite may quote bytes of the file
        raise HistoryError(f"not a readable logs.db of llm ({error})") from None


def _old(log: _Log) -> Iterator[Read]:
    """The conversations of the table `responses`."""
    if not {"responses", "conversations"} <= log.tables:
        return
    rows = log.rows(_ROWS)
    for name in ("prompt", "system"):
        if {table := f"{name}_fragments", "fragments"} <= log.tables:
            parts: dict[Any, list[Any]] = {}
            for part in log.rows(_FRAGMENTS.format(table=table)):
                parts.setdefault(part["response_id"], []).append({"content": part["content"]})
            for row in rows:
                row[table] = parts.get(row["id"])
    yield from _conversations([Field(row, f"responses[{at}]") for at, row in enumerate(rows)])


def _threads(log: _Log) -> Iterator[Read]:
    """The conversations of the tree of messages: each thread names its last one."""
    if not {"threads", "turns", "messages", "parts"} <= log.tables:
        return
    fragments = {row["id"]: row["content"] for row in log.rows("SELECT id, content FROM fragments")}
    texts: dict[Any, list[str]] = {}
    for at, row in enumerate(
        log.rows("SELECT message_hash, * FROM parts WHERE type = 'text' ORDER BY position")
    ):
        text = _part(Field(row, f"parts[{at}]"), fragments)
        texts.setdefault(row["message_hash"], []).append(text)
    turns: dict[Any, Field] = {}  # the first turn that wrote, or asked, a message
    for at, row in enumerate(
        log.rows("SELECT tip_message_hash, parent_message_hash, * FROM turns ORDER BY datetime_utc")
    ):
        for end in ("tip_message_hash", "parent_message_hash"):
            turns.setdefault(row[end], Field(row, f"turns[{at}]"))
    messages: dict[Any, Said] = {}
    for at, row in enumerate(log.rows("SELECT hash, parent_hash, role FROM messages")):
        message, turn = Field(row, f"messages[{at}]"), turns.get(row["hash"])
        role = _ROLES.get(message.of("role").text())
        text = "".join(texts.get(row["hash"], [])) or ("" if role is not None else "-")
        created = seconds(turn.of("datetime_utc").text("")) if turn is not None else 0.0
        model = turn.of("model").text("") if turn is not None and role is Role.ASSISTANT else ""
        messages[message.of("hash").text()] = Said(
            message.of("parent_hash").optional_text(), role, text, created, model
        )
    for at, row in enumerate(
        log.rows("SELECT id, name, tip_message_hash FROM threads ORDER BY datetime_utc")
    ):
        thread = Field(row, f"threads[{at}]")
        yield partial(_thread, thread, messages)


def _thread(thread: Field, messages: dict[str, Said]) -> tuple[Chat | None, int]:
    path: dict[str, Said] = {}
    at = tip = thread.of("tip_message_hash").optional_text()
    while at is not None and at in messages and at not in path:
        path[at] = messages[at]
        at = messages[at].parent
    return build_chat(thread.of("name").text(""), path, tip)


def _part(part: Field, fragments: dict[Any, Any]) -> str:
    """The text of a part; a long one is put together from fragments and literals."""
    if part.of("text").value is not None:
        return part.of("text").text()
    payload = part.of("payload").text("")
    if not payload:
        return ""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise part.of("payload").fail("JSON") from None
    found = []
    for piece in Field(value, part.of("payload").place).of("text_ref").items():
        text = piece.of("literal")
        if text.value is None:
            text = Field(fragments.get(piece.of("fragment").count()), piece.place)
        found.append(text.text(""))
    return "".join(found)
