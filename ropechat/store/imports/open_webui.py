"""Open WebUI's chat export: a list of chats, each with `chat.history`, its messages by id.

Facts from https://github.com/open-webui/open-webui, backend/open_webui/models/chats.py.
"""

from ropechat.conversation import Role
from ropechat.store.imports.said import Said, build_chat
from ropechat.store.queries import Chat
from ropechat.util.fields import Field

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_DETAILS, _END = '<details type="', "</details>"
_SUMMARY_END, _REASONING = "</summary>", "reasoning"
_NOT_SAID = ("reasoning", "code_interpreter", "tool_calls")
_SYSTEM = "system"
"""The id of the system text, which the file keeps apart from the messages."""


def is_chat(value: object) -> bool:
    """Whether a value looks like one chat of such a file."""
    return isinstance(value, dict) and (isinstance(value.get("chat"), dict) or "history" in value)


def read_chat(field: Field) -> tuple[Chat | None, int]:
    """A chat with all its branches, and how many messages it lost. Raises HistoryError."""
    chat = field.of("chat") if field.of("chat").value is not None else field
    title = field.of("title").text("") or chat.of("title").text("")
    begun = field.of("created_at").time_or_unknown()
    history, params = chat.of("history"), chat.of("params")
    system = params.of("system").text("") if params.value else ""
    if history.value is None:  # of an early version: one branch as a list
        items = chat.of("messages").items()
        messages = {f"{at}": _said(item, f"{at - 1}", begun) for at, item in enumerate(items)}
        current = f"{len(items) - 1}"
    else:
        found = history.of("messages")
        messages = {
            id: _said(found.of(id), found.of(id).of("parentId").optional_text(), begun)
            for id in found.names()
        }
        current = history.of("currentId").text("")
    if system and _SYSTEM not in messages:
        under = {
            id: said if said.parent in messages else Said(_SYSTEM, said.role, *_rest(said))
            for id, said in messages.items()
        }
        messages = {_SYSTEM: Said(None, Role.SYSTEM, system, begun), **under}
    return build_chat(title, messages, current)


def _rest(said: Said) -> tuple[str, float, str, str]:
    return said.text, said.created, said.model, said.reasoning


def _said(message: Field, parent: str | None, begun: float) -> Said:
    role = _ROLES.get(message.of("role").text())
    created = message.of("timestamp").time_or_unknown() or begun
    content = message.of("content")
    if isinstance(content.value, list):
        parts = [part.of("text").text("") for part in content.items()]
        text = "\n\n".join(part for part in parts if part)
    else:
        text = content.text("")
    model = message.of("model").text("") if role is Role.ASSISTANT else ""
    text, reasoning = _answer(text) if role is Role.ASSISTANT else (text, "")
    return Said(parent, role, text, created, model, reasoning)


def _answer(text: str) -> tuple[str, str]:
    """An answer without the blocks of reasoning and tools that the page folds; and its reasoning."""
    parts, thoughts, at = list[str](), list[str](), 0
    while (start := text.find(_DETAILS, at)) >= 0 and (end := text.find(_END, start)) >= 0:
        end += len(_END)
        folded = text.startswith(_NOT_SAID, start + len(_DETAILS))
        parts.append(text[at : start if folded else end])
        if text.startswith(_REASONING, start + len(_DETAILS)):
            thoughts.append(_folded(text[start : end - len(_END)]))
        at = end
    return ("".join([*parts, text[at:]]).strip() if parts else text), "\n\n".join(filter(None, thoughts))


def _folded(block: str) -> str:
    """The text of a folded block: quoted lines below a summary."""
    quoted = block.partition(_SUMMARY_END)[2] or block.partition(">")[2]
    lines = [line.removeprefix(">").removeprefix(" ") for line in quoted.strip().split("\n")]
    return "\n".join(lines).strip()
