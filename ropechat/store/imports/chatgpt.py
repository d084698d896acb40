"""ChatGPT's data export: conversations.json, a list of conversations.

https://help.openai.com/en/articles/7260999 says how to get one. Its form is not documented: each conversation
has a `mapping` of ids to {message, parent}, which is a tree as ropechat's own, and `current_node`.
"""

import re

from ropechat.conversation import Role
from ropechat.store.imports.said import Said, build_chat
from ropechat.store.queries import Chat
from ropechat.util.fields import Field

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_TEXTS = ("text", "multimodal_text")
_HIDDEN = ("user_editable_context", "model_editable_context", "thoughts", "reasoning_recap")
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201")  # a mark that only ChatGPT's page can show


def is_chat(value: object) -> bool:
    """Whether a value looks like one conversation of such a file."""
    return isinstance(value, dict) and "mapping" in value


def read_chat(field: Field) -> tuple[Chat | None, int]:
    """A conversation with all its branches, and how many messages it lost. Raises HistoryError."""
    mapping = field.of("mapping")
    begun = field.of("create_time").time_or_unknown()
    model = field.of("default_model_slug").text("")
    messages = {id: _said(mapping.of(id), begun, model) for id in mapping.names()}
    current = field.of("current_node").optional_text()
    return build_chat(field.of("title").text(""), messages, current)


def _said(node: Field, begun: float, model: str) -> Said:
    parent, message = node.of("parent").optional_text(), node.of("message")
    if message.value is None:
        return Said(parent, None)
    metadata, content = message.of("metadata"), message.of("content")
    form = content.of("content_type").text("text")
    hidden = metadata.value and metadata.of("is_visually_hidden_from_conversation").value is True
    if hidden or form in _HIDDEN:
        return Said(parent, None)
    role = _ROLES.get(message.of("author").of("role").text())
    called = message.of("recipient").text("all") != "all"  # a call of a tool
    if called or form not in _TEXTS:
        role = None
    if metadata.value:
        model = metadata.of("model_slug").text(model)
    created = message.of("create_time").time_or_unknown() or begun
    text = _text(content) if role is not None else "-"
    return Said(parent, role, text, created, model if role is Role.ASSISTANT else "")


def _text(content: Field) -> str:
    """The text of a message; pictures and sounds have none, but what was spoken has."""
    parts = []
    for part in content.of("parts").items():
        if isinstance(part.value, dict):
            parts.append(part.of("text").text(""))
        elif part.value is not None:
            parts.append(part.text())
    return _CITATION.sub("", "\n\n".join(part for part in parts if part))
