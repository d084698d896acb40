"""Reading and writing conversations and nodes as rows."""

import dataclasses
import json
import sqlite3
from dataclasses import dataclass

from ropechat.conversation import ConversationTree, Node, NodeState, Origin, Role
from ropechat.errors import HistoryError
from ropechat.sampling import Sampling
from ropechat.store import codec
from ropechat.trace import Step
from ropechat.util.text import replace_surrogates

MAX_TITLE = 200
_COLUMNS = (
    "id, conversation, parent, role, state, text, created, origin, origin_index, origin_change, given, "
    "model, sampling, prompt_tokens, finish_reason, error, first_after, ended_after, thought_seconds, start, "
    "reasoning, owner"
)
_TYPES = dict.fromkeys(("created", "first_after", "ended_after", "thought_seconds"), "REAL")
_TYPES |= dict.fromkeys(("origin_index", "given", "prompt_tokens"), "INTEGER")
_TYPED_COLUMNS = ", ".join(
    f"CAST({name} AS {_TYPES.get(name, 'TEXT')}) AS {name}" for name in _COLUMNS.split(", ")
)
"""The columns with their types, which SQLite does not enforce."""


@dataclass(frozen=True)
class Summary:
    """A conversation in a list. changed: seconds since 1970. running: whether an answer is streaming."""

    id: str
    title: str
    created: float
    changed: float
    nodes: int
    running: bool
    snippet: str = ""
    """Of a search: the text around the match."""
    node: str = ""
    """Of a search: the message that matches; "" if only the title does."""


@dataclass(frozen=True)
class Chat:
    """A conversation with all its branches. damaged: messages about unreadable parts."""

    id: str
    title: str
    tree: ConversationTree
    damaged: tuple[str, ...] = ()
    sampling: Sampling | None = None
    """The settings of its next answer; None if it has none of its own."""


def make_title(text: str) -> str:
    """The title of a chat that starts with this text: its first words on one line."""
    return replace_surrogates(" ".join(text.split()))[:MAX_TITLE]


def put_conversation(
    connection: sqlite3.Connection, id: str, title: str, created: float, changed: float
) -> None:
    """Add a conversation unless it exists."""
    connection.execute(
        "INSERT OR IGNORE INTO conversation(id, title, created, changed) VALUES(?, ?, ?, ?)",
        (id, replace_surrogates(title)[:MAX_TITLE], created, changed),
    )


def put_node(connection: sqlite3.Connection, conversation: str, node: Node, owner: str | None) -> None:
    """Add a node, without its tokens, and make it the current one."""
    origin = node.origin
    sampling = None if node.sampling is None else sampling_text(node.sampling)
    values = (
        node.id,
        conversation,
        node.parent,
        str(node.role),
        str(node.state),
        "" if node.state is NodeState.STREAMING else replace_surrogates(node.text),
        node.created,
        origin and origin.node,
        origin and origin.index,
        origin and origin.kind,
        node.prefix_length,
        replace_surrogates(node.model),
        sampling,
        node.prompt_tokens,
        node.finish_reason,
        replace_surrogates(node.error),
        node.first_after,
        node.ended_after,
        node.thought_seconds,
        node.context_start,
        "" if node.state is NodeState.STREAMING else replace_surrogates(node.reasoning),
        owner,
    )
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO node({_COLUMNS}) VALUES({marks})", values)
    connection.execute(
        "UPDATE conversation SET current = ?, changed = max(changed, ?) WHERE id = ?",
        (node.id, node.created, conversation),
    )


def sampling_text(sampling: Sampling) -> str:
    """The settings as they are stored."""
    return json.dumps(dataclasses.asdict(sampling))


def put_steps(connection: sqlite3.Connection, node: Node) -> None:
    """Add all tokens of a finished node."""
    if node.steps:
        connection.execute("INSERT INTO chunk VALUES(?, 0, ?)", (node.id, codec.encode(node.steps)))


def read_steps(connection: sqlite3.Connection, id: str) -> tuple[list[Step], str]:
    """The token records of a node up to the first unreadable one, and an error message or ""."""
    steps: list[Step] = []
    for first, data in connection.execute(
        "SELECT CAST(first AS INTEGER), CAST(data AS BLOB) FROM chunk WHERE node = ? ORDER BY first", (id,)
    ):
        if first != len(steps):
            return steps, f"node {id}: the records of tokens {len(steps)} to {first - 1} are missing"
        try:
            steps += codec.decode(data)
        except HistoryError as error:
            return steps, f"node {id}: {error}"
    return steps, ""


def _sampling(text: str | None) -> Sampling | None:
    """The settings of an answer; None if they are invalid in this version."""
    if text is None:
        return None
    try:
        return Sampling(**json.loads(text))
    except (ValueError, TypeError):
        return None


def to_node(row: sqlite3.Row, steps: list[Step]) -> Node:
    """Convert a row of `_TYPED_COLUMNS` to a node. Raises HistoryError."""
    for name, kinds in (("role", Role), ("state", NodeState)):
        if row[name] not in set(kinds):
            allowed = ", ".join(kinds)
            raise HistoryError(f"node {row['id']}: {name}: must be one of {allowed} (got {row[name]!r:.40})")
    origin = None
    if row["origin"]:
        origin = Origin(row["origin"], row["origin_index"] or 0, row["origin_change"] or "fork")
    return Node(
        id=row["id"],
        parent=row["parent"],
        role=Role(row["role"]),
        final_text=row["text"],
        state=NodeState(row["state"]),
        created=row["created"],
        steps=steps,
        origin=origin,
        prefix_length=row["given"],
        model=row["model"],
        sampling=_sampling(row["sampling"]),
        prompt_tokens=row["prompt_tokens"],
        finish_reason=row["finish_reason"],
        error=row["error"],
        first_after=row["first_after"],
        ended_after=row["ended_after"],
        thought_seconds=row["thought_seconds"],
        context_start=row["start"],
        final_reasoning=row["reasoning"],
    )


def read_chat(connection: sqlite3.Connection, id: str) -> Chat:
    """Read a conversation by its id or a prefix of it. Raises HistoryError for no match or several."""
    found = connection.execute(
        "SELECT CAST(id AS TEXT), CAST(title AS TEXT), CAST(current AS TEXT), CAST(sampling AS TEXT) "
        "FROM conversation "
        "WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id != ?1 LIMIT 2",
        (id,),
    ).fetchall()
    if not found or not id:
        raise HistoryError(f"conversation {id!r:.40}: not found; `ropechat chats list` shows all ids")
    if len(found) > 1 and found[0][0] != id:
        raise HistoryError(f"conversation {id!r:.40}: several ids start with this; give more of the id")
    whole, title, current, sampling = found[0]
    cursor = connection.execute(
        f"SELECT {_TYPED_COLUMNS} FROM node WHERE conversation = ? ORDER BY number", (whole,)
    )
    cursor.row_factory = sqlite3.Row
    tree, damaged = ConversationTree(), []
    for row in cursor.fetchall():
        steps, fault = read_steps(connection, row["id"])
        damaged += [fault] if fault else []
        node = to_node(row, [] if fault and row["state"] != "streaming" else steps)
        if node.parent not in tree.nodes:
            node.parent = None  # its parent was lost
        tree.restore(node)
    if tree.nodes:
        tree.current = tree.go(current if current in tree.nodes else next(reversed(tree.nodes))).id
    return Chat(whole, title, tree, tuple(damaged), _sampling(sampling))


def read_summaries(connection: sqlite3.Connection, limit: int) -> list[Summary]:
    """Read conversations, newest first."""
    rows = connection.execute(
        "SELECT CAST(id AS TEXT), CAST(title AS TEXT), CAST(created AS REAL), CAST(changed AS REAL), "
        "(SELECT count(*) FROM node WHERE conversation = c.id), "
        "EXISTS(SELECT 1 FROM node WHERE conversation = c.id AND state = 'streaming') "
        "FROM conversation AS c ORDER BY changed DESC, id LIMIT ?",
        (limit,),
    )
    return [
        Summary(id, title, created, changed, nodes, bool(running))
        for id, title, created, changed, nodes, running in rows
    ]


def read_questions(connection: sqlite3.Connection, limit: int) -> list[str]:
    """The newest questions of all conversations, oldest first, without immediate repetitions."""
    query = "SELECT CAST(text AS TEXT) FROM node WHERE role = 'user' ORDER BY number DESC LIMIT ?"
    found = [text for (text,) in connection.execute(query, (limit,))][::-1]
    return [text for index, text in enumerate(found) if index == 0 or text != found[index - 1]]


def search(connection: sqlite3.Connection, query: str, limit: int, indexed: bool) -> list[Summary]:
    """Conversations in which one message (or the title) contains every word of the query, newest first.

    Matches parts of words and ignores case. indexed: whether there is a full-text index.
    """
    words = [word.lower() for word in replace_surrogates(query).replace("\0", " ").split()]
    if not words:
        return read_summaries(connection, limit)
    long = [word for word in words if len(word) >= 3] if indexed else []
    clauses = [f"instr(fold(CAST(text AS TEXT)), ?{number + 2})" for number in range(len(words))]
    if long:  # preselects; the exact test is the same without the index
        clauses.insert(0, "number IN (SELECT rowid FROM node_search WHERE node_search MATCH ?1)")
    match = " AND ".join('"' + word.replace('"', '""') + '"' for word in long)
    hits = connection.execute(
        "SELECT CAST(conversation AS TEXT), CAST(id AS TEXT), CAST(text AS TEXT) FROM node "
        f"WHERE ?1 = ?1 AND {' AND '.join(clauses)} ORDER BY number DESC",
        (match, *words),
    )
    snippets: dict[str, tuple[str, str]] = {}
    for conversation, node, text in hits:
        snippets.setdefault(conversation, (_snippet(text, words[0]), node))
    found = []
    for summary in read_summaries(connection, -1):
        title = summary.title.lower()
        if summary.id in snippets or all(word in title for word in words):
            snippet, node = snippets.get(summary.id, ("", ""))
            found.append(dataclasses.replace(summary, snippet=snippet, node=node))
    return found[:limit] if limit >= 0 else found


def _snippet(text: str, word: str) -> str:
    """The text around the first occurrence of `word`."""
    at = max(0, text.lower().find(word))
    start = max(0, at - 30)
    piece = " ".join(text[start : at + len(word) + 50].split())
    return ("…" if start else "") + piece + ("…" if at + len(word) + 50 < len(text) else "")
