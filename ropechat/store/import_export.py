"""Export of conversations, and import of what was exported; `imports` reads other programs' files.

JSON contains everything and can be imported: {"ropechat": 1, "title", "current", "nodes": [...]}; nodes have
the fields of conversation.Node (with the shorter names of `_node`), tokens those of trace.Step. NaN is null,
bytes are hex. Markdown contains the branch on screen. Control characters are escaped (JSON) or
replaced.
"""

import dataclasses
import json
import secrets
from collections.abc import Callable
from typing import Any

from ropechat.conversation import ConversationTree, Node, NodeState, Origin, Role
from ropechat.errors import HistoryError
from ropechat.sampling import Sampling
from ropechat.store.codec import CHANNELS, REASONS
from ropechat.store.queries import MAX_TITLE, Chat
from ropechat.trace import Candidate, Stage, Step, TokenDistribution
from ropechat.util.fields import Field
from ropechat.util.records import finite
from ropechat.util.text import clean, escape_json, local_time

FORMAT = 1
CHANGES = ("fork", "edit", "continue")


def to_markdown(chat: Chat) -> str:
    """The branch on screen as Markdown, with control characters replaced."""
    lines = [f"# {' '.join(chat.title.split())}", ""]
    for node in chat.tree.path():
        who = {Role.SYSTEM: "System", Role.USER: "You", Role.ASSISTANT: node.model or "Answer"}[node.role]
        date = f"{local_time(node.created):%Y-%m-%d %H:%M}"
        lines += [f"## {who} · {date}", ""]
        if thought := node.reasoning.strip():
            lines += ["<details><summary>thought</summary>", "", thought, "", "</details>", ""]
        lines += [node.text.rstrip("\n"), ""]
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


def _node(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "parent": node.parent,
        "role": str(node.role),
        "text": node.text,
        **({"reasoning": node.reasoning} if node.reasoning else {}),
        "state": str(node.state),
        "created": finite(node.created),
        "origin": None if node.origin is None else _origin_record(node.origin),
        "given": node.prefix_length,
        "model": node.model,
        "sampling": None if node.sampling is None else dataclasses.asdict(node.sampling),
        "prompt_tokens": node.prompt_tokens,
        "finish_reason": node.finish_reason,
        "error": node.error,
        "first_after": finite(node.first_after),
        "ended_after": finite(node.ended_after),
        **({"thought_seconds": finite(node.thought_seconds)} if node.thought_seconds is not None else {}),
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
        **({"reasoning": step.reasoning, "channel": step.channel} if step.channel != "answer" else {}),
        "position": step.position,
        "logprob": finite(step.logprob),
        "rank": step.rank,
        "entropy": finite(step.entropy),
        **({} if row is None or row.varentropy is None else {"varentropy": finite(row.varentropy)}),
        "u": step.u,
        "top": [[id, finite(logprob)] for id, logprob in step.top],
        "row": None if row is None else [row.position, finite(row.logsumexp), finite(row.top_mass)],
        "stages": [
            [stage.name, stage.kept, finite(stage.mass), finite(stage.entropy)] for stage in step.stages
        ],
        "candidates": [one[:5] for one in step.candidates],
        "interval": step.interval,
        "finish_reason": step.finish_reason,
    }


# --- reading ---


def read_chat(root: Field) -> Chat:
    """The chat of an export, with new ids. Raises HistoryError."""
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


def _read_node(field: Field, ids: dict[str, str]) -> Node:
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
        final_reasoning=field.of("reasoning").text(""),
        state=NodeState.STOPPED if state is NodeState.STREAMING else state,
        created=field.of("created").time(),
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
        thought_seconds=field.of("thought_seconds").optional(),
    )
    ids[old] = node.id
    start = field.of("start")
    node.context_start = None if start.value is None else ids.get(start.text())
    return node


def _origin(field: Field, ids: dict[str, str]) -> Origin | None:
    """Read an origin; None if its node is not in the file (because its branch was deleted)."""
    node, index = field.of("node").text(), field.of("index").count()
    change = field.of("change").one_of(CHANGES)
    return Origin(ids[node], index, change) if node in ids else None


def _read_sampling(field: Field) -> Sampling | None:
    if field.value is None:
        return None
    try:
        return Sampling(**field.value)
    except (TypeError, ValueError) as error:
        raise HistoryError(f"{field.place}: {error}") from None


def _read_step(field: Field) -> Step:
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
        row=None if row.value is None else _row(row, top, entropy, field.of("varentropy").optional()),
        stages=tuple(_read_stage(stage) for stage in stages),
        u=field.of("u").optional(),
        candidates=tuple(_read_candidate(candidate) for candidate in candidates),
        interval=_read_interval(field.of("interval")),
        reasoning=field.of("reasoning").text(""),
        channel=field.of("channel").one_of(CHANNELS, "answer"),
    )


def _parts(field: Field, *kinds: Callable[[Field], Any]) -> list[Any]:
    items = field.items()
    if len(items) != len(kinds):
        raise field.fail(f"a list of {len(kinds)}")
    return [kind(item) for kind, item in zip(kinds, items, strict=True)]


def _pair(field: Field) -> tuple[int, float]:
    id, logprob = _parts(field, Field.count, Field.number)
    return id, logprob


def _row(
    field: Field, top: tuple[tuple[int, float], ...], entropy: float, varentropy: float | None
) -> TokenDistribution:
    position, logsumexp, mass = _parts(field, Field.count, Field.number, Field.number)
    return TokenDistribution(position, top, logsumexp, entropy, mass, varentropy)


def _read_candidate(field: Field) -> Candidate:
    kinds = Field.count, Field.count, Field.optional_text, Field.flag, Field.share
    return Candidate(*_parts(field, *kinds))


def _read_interval(field: Field) -> tuple[float, float] | None:
    if field.value is None:
        return None
    start, end = _parts(field, Field.share, Field.share)
    return start, end


def _read_stage(field: Field) -> Stage:
    return Stage(*_parts(field, Field.text, Field.count, Field.number, Field.number))
