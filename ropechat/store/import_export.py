"""Export and import of conversations.

JSON contains everything and can be imported: {"ropechat": 1, "title", "current", "nodes": [...]}; nodes have
the fields of conversation.Node (with the shorter names of `_node`), tokens those of trace.Step. NaN is null,
bytes are hex. Markdown contains the branch on screen. Control characters are escaped (JSON) or
replaced.
"""

import dataclasses
import json
import math
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ropechat.conversation import ConversationTree, Node, NodeState, Origin, Role
from ropechat.errors import FileAccessError, HistoryError
from ropechat.sampling import Sampling
from ropechat.store.codec import REASONS
from ropechat.store.queries import MAX_TITLE, Chat, replace_surrogates
from ropechat.trace import Candidate, Stage, Step, TokenDistribution
from ropechat.util.text import clean, escape_json, format_bytes

FORMAT = 1
MAX_BYTES = 256 << 20
CHANGES = ("fork", "edit", "continue")


def to_markdown(chat: Chat) -> str:
    """The branch on screen as Markdown, with control characters replaced."""
    lines = [f"# {' '.join(chat.title.split())}", ""]
    for node in chat.tree.path():
        who = {Role.SYSTEM: "System", Role.USER: "You", Role.ASSISTANT: node.model or "Answer"}[node.role]
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(node.created))
        lines += [f"## {who} · {date}", "", node.text.rstrip("\n"), ""]
    return clean("\n".join(lines))


def to_json(chat: Chat) -> str:
    """The whole tree with all token records as JSON."""
    data = {
        "ropechat": FORMAT,
        "title": chat.title,
        "current": chat.tree.current,
        "nodes": [_node(node) for node in chat.tree.nodes.values()],
    }
    return escape_json(json.dumps(data, allow_nan=False, ensure_ascii=False)) + "\n"


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _node(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "parent": node.parent,
        "role": str(node.role),
        "text": node.text,
        "state": str(node.state),
        "created": node.created,
        "origin": None if node.origin is None else _origin_record(node.origin),
        "given": node.prefix_length,
        "model": node.model,
        "sampling": None if node.sampling is None else dataclasses.asdict(node.sampling),
        "prompt_tokens": node.prompt_tokens,
        "finish_reason": node.finish_reason,
        "error": node.error,
        "first_after": node.first_after,
        "ended_after": node.ended_after,
        "start": node.context_start,
        "tokens": [_step(step) for step in node.steps],
    }


def _origin_record(origin: Origin) -> dict[str, Any]:
    return {"node": origin.node, "index": origin.index, "change": origin.kind}


def _step(step: Step) -> dict[str, Any]:
    row = step.row
    return {
        "id": step.id,
        "bytes": step.bytes.hex(),
        "text": step.text,
        "position": step.position,
        "logprob": _number(step.logprob),
        "rank": step.rank,
        "entropy": _number(step.entropy),
        "u": step.u,
        "top": [[id, _number(logprob)] for id, logprob in step.top],
        "row": None if row is None else [row.position, _number(row.logsumexp), _number(row.top_mass)],
        "stages": [
            [stage.name, stage.kept, _number(stage.mass), _number(stage.entropy)] for stage in step.stages
        ],
        "candidates": [one[:5] for one in step.candidates],
        "interval": step.interval,
        "finish_reason": step.finish_reason,
    }


# --- reading ---


class _Field:
    """A value of the file with its path; invalid values raise HistoryError naming the path.

    By hand: msgspec would be one more compiled dependency, and its errors do not show the value.
    """

    def __init__(self, value: Any, place: str) -> None:
        self.value, self.place = value, place

    def fail(self, allowed: str) -> HistoryError:
        return HistoryError(f"{self.place}: must be {allowed} (got {self.value!r:.40}); nothing was imported")

    def of(self, name: str) -> "_Field":
        if not isinstance(self.value, dict):
            raise self.fail("an object")
        return _Field(self.value.get(name), f"{self.place}.{name}" if self.place else name)

    def items(self, most: int = 10_000_000) -> "list[_Field]":
        if not isinstance(self.value, list) or len(self.value) > most:
            raise self.fail("a list")
        return [_Field(value, f"{self.place}[{index}]") for index, value in enumerate(self.value)]

    def text(self, default: str | None = None) -> str:
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str):
            raise self.fail("a string")
        return replace_surrogates(self.value)

    def one_of(self, allowed: Any, default: str | None = None) -> Any:
        value = default if self.value is None else self.value
        if not isinstance(value, str | None) or value not in allowed:
            raise self.fail(f"one of {', '.join(map(str, allowed))}")
        return value

    def count(self, limit: int = 2**32 - 1) -> int:
        value = 0 if self.value is None else self.value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise self.fail(f"an integer from 0 to {limit}")
        return value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.fail("true or false")
        return self.value

    def optional_text(self) -> str | None:
        return None if self.value is None else self.text()

    def number(self) -> float:
        """The number; NaN for null."""
        if self.value is None:
            return math.nan
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.fail("a number")
        try:
            return float(self.value)
        except OverflowError:
            raise self.fail("a number") from None

    def share(self) -> float:
        value = self.number()
        if not 0.0 <= value <= 1.0:
            raise self.fail("a number from 0 to 1")
        return value

    def optional(self) -> float | None:
        value = self.number()
        return None if math.isnan(value) else value


def read_json(path: Path) -> Chat:
    """Read a chat from a JSON export, with new ids. Raises HistoryError, FileAccessError."""
    try:
        with path.open("rb") as file:
            return read_json_stream(file, str(path))
    except OSError as error:
        raise FileAccessError(
            f"{path}: {error.strerror or error}; give a file from `chats export --format json`"
        ) from None


def read_json_stream(stream: IO[bytes], where: str) -> Chat:
    """`read_json` for an open file. where: its name, for messages. Raises HistoryError, OSError."""
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise HistoryError(f"{where}: must be at most {format_bytes(MAX_BYTES)}")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HistoryError(
            f"{where}: not valid JSON ({error}); give a file from `chats export --format json`"
        ) from None
    try:
        return _chat(_Field(value, ""))
    except HistoryError as error:
        raise HistoryError(f"{where}: {error}") from None


def _chat(root: _Field) -> Chat:
    version = root.of("ropechat").value
    if version != FORMAT:
        raise HistoryError(f"ropechat: must be {FORMAT} (got {version!r:.20}); export the chat again")
    title = root.of("title").text("")[:MAX_TITLE]
    tree, ids = ConversationTree(), dict[str, str]()
    for field in root.of("nodes").items():
        node = _read_node(field, ids)
        tree.restore(node)
    current = root.of("current").value
    if tree.nodes:
        known = ids.get(current) if isinstance(current, str) else None
        tree.current = tree.go(known or next(reversed(tree.nodes))).id
    return Chat(secrets.token_hex(4), title, tree)


def _read_node(field: _Field, ids: dict[str, str]) -> Node:
    old = field.of("id").text()
    if old in ids:
        raise field.of("id").fail("a unique id")
    parent = field.of("parent")
    if parent.value is not None and parent.text() not in ids:
        raise parent.fail("the id of an earlier node, or null")
    role = Role(field.of("role").one_of([str(role) for role in Role if role is not Role.TOOL]))
    state = NodeState(field.of("state").one_of([str(state) for state in NodeState], "done"))
    steps = [_read_step(item) for item in field.of("tokens").items()] if field.of("tokens").value else []
    origin = field.of("origin")
    node = Node(
        id=secrets.token_hex(8),
        parent=None if parent.value is None else ids[parent.text()],
        role=role,
        final_text=field.of("text").text(""),
        state=NodeState.STOPPED if state is NodeState.STREAMING else state,
        created=field.of("created").optional() or 0.0,
        steps=steps if role is Role.ASSISTANT else [],
        origin=None if origin.value is None else _origin(origin, ids),
        prefix_length=min(field.of("given").count(), len(steps)),
        model=field.of("model").text(""),
        sampling=_read_sampling(field.of("sampling")),
        prompt_tokens=field.of("prompt_tokens").count(),
        finish_reason=field.of("finish_reason").one_of(REASONS),
        error=field.of("error").text(""),
        first_after=field.of("first_after").optional(),
        ended_after=field.of("ended_after").optional(),
    )
    ids[old] = node.id
    start = field.of("start")
    node.context_start = None if start.value is None else ids.get(start.text())
    return node


def _origin(field: _Field, ids: dict[str, str]) -> Origin | None:
    """Read an origin; None if its node is not in the file (because its branch was deleted)."""
    node, index = field.of("node").text(), field.of("index").count()
    change = field.of("change").one_of(CHANGES)
    return Origin(ids[node], index, change) if node in ids else None


def _read_sampling(field: _Field) -> Sampling | None:
    if field.value is None:
        return None
    try:
        return Sampling(**field.value)
    except (TypeError, ValueError) as error:
        raise HistoryError(f"{field.place}: {error}; nothing was imported") from None


def _read_step(field: _Field) -> Step:
    top = tuple(_pair(item) for item in field.of("top").items(65535)) if field.of("top").value else ()
    row = field.of("row")
    position = field.of("position").count()
    entropy = field.of("entropy").number()
    stages = field.of("stages").items(255) if field.of("stages").value else []
    candidates = field.of("candidates").items(65535) if field.of("candidates").value else []
    try:
        data = bytes.fromhex(field.of("bytes").text(""))[:65535]
    except ValueError:
        raise field.of("bytes").fail("bytes in hex") from None
    return Step(
        id=field.of("id").count(),
        bytes=data,
        text=field.of("text").text(""),
        logprob=field.of("logprob").number(),
        rank=field.of("rank").count(),
        entropy=entropy,
        top=top,
        finish_reason=field.of("finish_reason").one_of(REASONS),
        position=position,
        row=None if row.value is None else _row(row, top, entropy),
        stages=tuple(_read_stage(stage) for stage in stages),
        u=field.of("u").optional(),
        candidates=tuple(_read_candidate(candidate) for candidate in candidates),
        interval=_read_interval(field.of("interval")),
    )


def _parts(field: _Field, *kinds: Callable[[_Field], Any]) -> list[Any]:
    items = field.items()
    if len(items) != len(kinds):
        raise field.fail(f"a list of {len(kinds)}")
    return [kind(item) for kind, item in zip(kinds, items, strict=True)]


def _pair(field: _Field) -> tuple[int, float]:
    id, logprob = _parts(field, _Field.count, _Field.number)
    return id, logprob


def _row(field: _Field, top: tuple[tuple[int, float], ...], entropy: float) -> TokenDistribution:
    position, logsumexp, mass = _parts(field, _Field.count, _Field.number, _Field.number)
    return TokenDistribution(position, top, logsumexp, entropy, mass)


def _read_candidate(field: _Field) -> Candidate:
    kinds = _Field.count, _Field.count, _Field.optional_text, _Field.flag, _Field.share
    return Candidate(*_parts(field, *kinds))


def _read_interval(field: _Field) -> tuple[float, float] | None:
    if field.value is None:
        return None
    start, end = _parts(field, _Field.share, _Field.share)
    return start, end


def _read_stage(field: _Field) -> Stage:
    return Stage(*_parts(field, _Field.text, _Field.count, _Field.number, _Field.number))
