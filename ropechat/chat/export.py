"""Export of a conversation: to Markdown and JSON (see `store.import_export`) and to an HTML page."""

from pathlib import Path

from ropechat.inspector.chat_page import Spell, to_html
from ropechat.store.files import write_private
from ropechat.store.import_export import to_json, to_markdown
from ropechat.store.queries import Chat

FORMATS = ("md", "json", "html")


def unknown_words(model: str, id: int) -> bytes:
    """A Spell that knows no model: alternatives that were never said are shown by their ids."""
    return b""


def export(chat: Chat, form: str, path: Path, spell: Spell = unknown_words) -> None:
    """Export a chat to a file that only its owner may read. form: one of FORMATS. Raises FileAccessError."""
    write_private(path, format_chat(chat, form, spell))


def format_chat(chat: Chat, form: str, spell: Spell = unknown_words) -> str:
    """A chat in one of FORMATS. spell: the texts of alternatives in the page."""
    if form == "html":
        return "".join(to_html(chat, spell))
    return {"md": to_markdown, "json": to_json}[form](chat)
